"""What `neuron-ls -j` says: running it with a deadline, and reading its answer whatever release wrote it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 20.0
_PAIR = re.compile(r'\b(?:msg|error)=(?:"([^"]*)"|(\S+))')


class NeuronLsError(Exception):
    """`neuron-ls` gave no usable answer; the text is one line and says why."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One Neuron device (chip)."""

    index: int
    cores: int
    """NeuronCores that programs see: logical ones where the release groups them."""
    memory_bytes: int | None = None
    logical_core_config: int | None = None
    """Physical cores per logical core; None where the tool does not say (trn1, inf2)."""
    instance_type: str = ""
    """Only newer tools say it."""
    processes: tuple[tuple[int, str], ...] = ()
    """Those that hold cores: pid and command line as shown."""


def find(root: Path, search_path: str | None) -> Path | None:
    """The tool: on the search path, or where its package puts it, which is on the path of login shells only."""
    found = shutil.which("neuron-ls", path=search_path)
    if found:
        return Path(found)
    usual = root / "opt/aws/neuron/bin/neuron-ls"
    return usual if usual.is_file() else None


def ask(tool: Path, *, timeout_s: float = TIMEOUT_S) -> list[Device]:
    """Run `neuron-ls -j` and return the devices. Raises `NeuronLsError`."""
    try:
        done = subprocess.run(
            [tool, "-j"], capture_output=True, text=True, errors="replace", timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise NeuronLsError(
            f"{tool} -j did not answer within {timeout_s:g} s; the driver may hang (see dmesg), reboot the instance"
        ) from None
    except OSError as error:
        raise NeuronLsError(f"{tool} cannot be run: {error.strerror or error}") from None
    if done.returncode != 0:
        raise NeuronLsError(f"{tool} -j ended with status {done.returncode}: {_cause(done.stderr, done.stdout)}")
    return parse(done.stdout)


def _cause(*texts: str) -> str:
    """The most telling line of a failed run: the tool logs `key="value"` pairs on either stream."""
    for text in texts:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            last = next((line for line in reversed(lines) if "fatal" in line or "error" in line), lines[-1])
            pairs = [quoted or bare for quoted, bare in _PAIR.findall(last)]
            return (": ".join(pairs) or last)[:300]
    return "no message"


def parse(text: str) -> list[Device]:
    """The devices in the output of `neuron-ls -j`. Raises `NeuronLsError` for anything else.

    Keys that a release lacks are None or empty. Cores are counted from their ids where those are given.
    """
    try:
        document = json.loads(text)
    except ValueError:
        raise NeuronLsError(f"neuron-ls -j: expected JSON, found {' '.join(text.split())[:80]!r}") from None
    if isinstance(document, dict):  # a wrapper around the list
        document = next((value for value in document.values() if isinstance(value, list)), None)
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise NeuronLsError("neuron-ls -j: expected a list with an object per device")
    devices = [_device(position, entry) for position, entry in enumerate(document)]
    if not devices:
        raise NeuronLsError("neuron-ls -j lists no device")
    return sorted(devices, key=lambda device: device.index)


def _device(position: int, entry: Mapping[str, Any]) -> Device:
    ids = entry.get("neuroncore_ids")
    count = _whole(entry.get("nc_count"))
    cores = len(ids) if isinstance(ids, list) and ids else count
    if not cores:
        raise NeuronLsError(f"neuron-ls -j: device {position} names no cores (neither neuroncore_ids nor nc_count)")
    index = _whole(entry.get("neuron_device"))
    return Device(
        index=position if index is None else index,
        cores=cores,
        memory_bytes=_whole(entry.get("memory_size")),
        logical_core_config=_whole(entry.get("logical_neuroncore_config")),
        instance_type=str(entry.get("instance_type") or ""),
        processes=tuple(_processes(entry.get("neuron_processes"))),
    )


def _processes(found: Any) -> Sequence[tuple[int, str]]:
    entries = found if isinstance(found, list) else []
    return [
        (pid, str(entry.get("command", "")))
        for entry in entries
        if isinstance(entry, dict) and (pid := _whole(entry.get("pid"))) is not None
    ]


def _whole(value: Any) -> int | None:
    """An integer, also where a release writes it as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else None
