"""What `neuron-ls -j` says: running it with a deadline, and reading its answer whatever release wrote it."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronbench_neuron.tools import find_tool

TIMEOUT_S = 20.0
_PAIR = re.compile(r'\b(?:msg|error)=(?:"([^"]*)"|(\S+))')
_LARGEST = 1 << 62


class NeuronLsError(Exception):
    """`neuron-ls` gave no usable answer; the text is one line and says why."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that holds cores of a device; the tool does not say which of them."""

    pid: int
    command: str = ""
    """As the tool shows it: it may be cut short."""
    runtime: str = ""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One Neuron device (chip). What the tool does not say is None or empty."""

    index: int
    core_ids: tuple[int, ...]
    """Ids of its cores as programs see them: logical ones where the release groups them."""
    memory_bytes: int | None = None
    logical_core_config: int | None = None
    """Physical cores per logical core; None where the tool does not say (trn1, inf2)."""
    instance_type: str = ""
    """Only newer tools say it."""
    connected_to: tuple[int, ...] = ()
    processes: tuple[Process, ...] = ()

    @property
    def cores(self) -> int:
        return len(self.core_ids)


def find(root: Path, search_path: str | None) -> Path | None:
    """The tool: on the search path, or where its package puts it, which is on the path of login shells only."""
    return find_tool("neuron-ls", root, search_path)


def ask(tool: Path, *, timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] | None = None) -> list[Device]:
    """Run `neuron-ls -j` and return the devices. Raises `NeuronLsError`."""
    try:
        done = subprocess.run(
            [tool, "-j"], capture_output=True, text=True, errors="replace", timeout=timeout_s,
            stdin=subprocess.DEVNULL, env=None if environ is None else dict(environ),
        )  # fmt: skip
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

    Keys that a release lacks, or that are null or of another type, are None or empty; but what devices and cores there
    are must be told, and told once. Where a release gives the number of cores only, ids count on from device to device.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise NeuronLsError(f"neuron-ls -j: expected JSON, found {' '.join(text.split())[:80]!r}") from None
    if isinstance(document, dict):  # a wrapper around the list
        document = next((value for value in document.values() if isinstance(value, list)), None)
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise NeuronLsError("neuron-ls -j: expected a list with an object per device")
    devices: list[Device] = []
    for position, entry in enumerate(document):
        devices.append(_device(position, entry, first=sum(device.cores for device in devices)))
    if not devices:
        raise NeuronLsError("neuron-ls -j lists no device")
    _refuse_repeats("device", [device.index for device in devices])
    _refuse_repeats("core", [core for device in devices for core in device.core_ids])
    return sorted(devices, key=lambda device: device.index)


def _refuse_repeats(what: str, numbers: Sequence[int]) -> None:
    twice = sorted(number for number, times in Counter(numbers).items() if times > 1)
    if twice:
        raise NeuronLsError(f"neuron-ls -j: {what} {twice[0]} is listed more than once")


def _device(position: int, entry: Mapping[str, Any], *, first: int) -> Device:
    index = _whole(entry.get("neuron_device"))
    if index is None and entry.get("neuron_device") is not None:
        raise NeuronLsError(
            f"neuron-ls -j: device {position}: neuron_device: expected a whole number, "
            f"found {str(entry['neuron_device'])[:40]!r}"
        )
    return Device(
        index=position if index is None else index,
        core_ids=_core_ids(position, entry, first),
        memory_bytes=_positive(entry.get("memory_size")),
        logical_core_config=_positive(entry.get("logical_neuroncore_config")),
        instance_type=_text(entry.get("instance_type")),
        connected_to=tuple(_numbers(entry.get("connected_to")) or ()),
        processes=tuple(_processes(entry.get("neuron_processes"))),
    )


def _core_ids(position: int, entry: Mapping[str, Any], first: int) -> tuple[int, ...]:
    count = _positive(entry.get("nc_count"))
    listed = entry.get("neuroncore_ids")
    if listed is None or listed == []:
        if not count:
            raise NeuronLsError(f"neuron-ls -j: device {position} names no cores (neither neuroncore_ids nor nc_count)")
        if count > 1 << 12:
            raise NeuronLsError(f"neuron-ls -j: device {position}: nc_count: {count} cores cannot be")
        return tuple(range(first, first + count))
    ids = _numbers(listed)
    if ids is None:
        raise NeuronLsError(
            f"neuron-ls -j: device {position}: neuroncore_ids: expected a list of whole numbers, "
            f"found {str(listed)[:40]!r}"
        )
    if count and count != len(ids):
        raise NeuronLsError(f"neuron-ls -j: device {position}: nc_count is {count}, but {len(ids)} ids are listed")
    return tuple(ids)


def _processes(found: Any) -> Sequence[Process]:
    entries = found if isinstance(found, list) else []
    return [
        Process(pid=pid, command=_text(entry.get("command")), runtime=_text(entry.get("neuron_runtime_version")))
        for entry in entries
        if isinstance(entry, dict) and (pid := _positive(entry.get("pid"))) is not None
    ]


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _numbers(value: Any) -> list[int] | None:
    """A list of whole numbers; None for anything else."""
    if not isinstance(value, list):
        return None
    numbers = [number for entry in value if (number := _whole(entry)) is not None]
    return numbers if len(numbers) == len(value) else None


def _positive(value: Any) -> int | None:
    number = _whole(value)
    return number if number else None


def _whole(value: Any) -> int | None:
    """A number from 0, also where a release writes it as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) < 19:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= _LARGEST else None
