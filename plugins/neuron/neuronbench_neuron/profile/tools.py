"""The profilers: which is there, what a process needs to be profiled, and what they make of what it left.

`neuron-explorer` is the tool since SDK 2.29; `neuron-profile` is taken where only that is installed. The runtime itself
captures while a program runs (NEURON_RT_INSPECT_ENABLE): the program is slower then, and has less memory for itself,
so that no time of such a run is a result.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench_neuron.hardware import tool_environment
from neuronbench_neuron.profile.report import ProfileError, Summary, parse
from neuronbench_neuron.tools import find_tool

NAMES: Final = ("neuron-explorer", "neuron-profile")
"""Newest first."""
VIEW_S: Final = 300.0
LARGEST: Final = 64 << 20
"""Bytes of a trace that is kept with the record; a larger one stays where it was captured, and only its summary is
kept."""
_VERSION = re.compile(r"\d+\.\d+[\w.+%-]*")
_MISMATCH = re.compile(r"NTFF version (\S+) is not supported[^\n]*")


@dataclass(frozen=True, kw_only=True)
class Profiler:
    """An installed one."""

    path: Path
    version: str
    root: Path

    @property
    def name(self) -> str:
        return self.path.name

    def view(self, neff: Path, ntff: Path, into: Path) -> Summary:
        """Summarise a trace into the file `into`, and read it. Raises `ProfileError`."""
        command = [str(self.path), "view", "-n", str(neff), "-s", str(ntff), "--output-format", "summary-json",
                   "--output-file", str(into)]  # fmt: skip
        done = _run(command, self.root, VIEW_S)
        said = f"{done.stdout}\n{done.stderr}"
        mismatch = _MISMATCH.search(said)
        if mismatch:
            raise ProfileError(
                "profile_version", f"{self.name} {self.version}: {mismatch[0]}",
                remedy="Runtime and tools are of different releases: upgrade aws-neuronx-tools and "
                "aws-neuronx-runtime-lib together.",
            )  # fmt: skip
        if done.returncode != 0:
            line = next((line for line in reversed(said.splitlines()) if line.strip()), "no message")
            raise ProfileError(
                "profile_failed", f"{self.name} view ended with status {done.returncode}: {line.strip()[:300]}"
            )
        if not into.is_file():  # older ones write to standard output
            into.write_text(done.stdout, encoding="utf-8")
        return parse(into.read_text(encoding="utf-8", errors="replace"))


def find(root: Path = Path("/")) -> Profiler:
    """The newest that is installed, asked for its version. Raises `ProfileError` where there is none."""
    for name in NAMES:
        path = find_tool(name, root)
        if path is not None:
            said = _run([str(path), "--version"], root, 30.0)
            found = _VERSION.search(f"{said.stdout} {said.stderr}")
            return Profiler(path=path, version=found[0] if found else "", root=root)
    raise ProfileError(
        "profile_tool_missing", f"neither {' nor '.join(NAMES)} is on PATH or in /opt/aws/neuron/bin",
        remedy="Install aws-neuronx-tools.",
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Variables with which the runtime captures into `folder`: the device's trace, and not the host's."""
    return {
        "NEURON_RT_INSPECT_ENABLE": "1",
        "NEURON_RT_INSPECT_OUTPUT_DIR": str(folder),
        "NEURON_RT_INSPECT_DEVICE_PROFILE": "1",
        "NEURON_RT_INSPECT_SYSTEM_PROFILE": "0",
    }


def traces(folder: Path) -> list[tuple[Path, Path]]:
    """(NEFF, NTFF) of each trace below a folder: `neff_<hash>.neff`, `<hash>_instid_0_vnc_0.ntff`. Those without a NEFF
    cannot be read and are left out."""
    programs = {path.stem.removeprefix("neff_"): path for path in sorted(folder.rglob("*.neff"))}
    found = []
    for path in sorted(folder.rglob("*.ntff")):
        stem = path.stem.partition("_instid_")[0].removeprefix("neff_")
        if stem in programs:
            found.append((programs[stem], path))
    return found


def _run(command: Sequence[str], root: Path, deadline_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=deadline_s, stdin=subprocess.DEVNULL,
            env=tool_environment(root),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProfileError(
            "profile_failed", f"{Path(command[0]).name} {command[1]} did not answer within {deadline_s:g} s"
        ) from None
    except OSError as error:
        raise ProfileError("profile_failed", f"{command[0]} cannot be run: {error.strerror or error}") from None
