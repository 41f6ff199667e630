"""The profilers: which is there, what a process needs to be profiled, and what they make of what it left.

`neuron-explorer` is the tool since SDK 2.29; `neuron-profile` is taken where only that is installed. There are two ways
to a trace. The runtime itself captures while a program runs (NEURON_RT_INSPECT_ENABLE): the program is slower then, and
has less memory for itself, so that no time of such a run is a result. Or the tool runs a compiled program once more, on
cores of its own and on inputs of its own (`capture`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from neuronbench_neuron.hardware import tool_environment
from neuronbench_neuron.profile.report import ProfileError, Summary, parse, parse_all
from neuronbench_neuron.tools import find_tool

NAMES: Final = ("neuron-explorer", "neuron-profile")
"""Newest first."""
VIEW_S: Final = 300.0
CAPTURE_S: Final = 600.0
EXECUTIONS: Final = 2
"""Of a program that `capture` runs; the last is traced, which has nothing of a first one's loading in it."""
Mode = Literal["model", "session"]
"""What the runtime captures: the first execution of each program on each core, a trace for each; or all executions of
a core in one trace. A server whose runtime executes asynchronously can be captured by the second only."""
INSPECT: Final = "NEURON_RT_INSPECT_"
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
        return parse(self._viewed(["-n", str(neff), "-s", str(ntff)], into))

    def view_session(self, folder: Path, into: Path) -> Mapping[str, Summary]:
        """Summarise all that a runtime has left in `folder`: traces of sessions, with many programs in each. By the
        tool's own names of them. Raises `ProfileError`."""
        return parse_all(self._viewed(["-d", str(folder)], into))

    def capture(self, neff: Path, folder: Path, environ: Mapping[str, str]) -> Path:
        """Have the tool execute a program on the cores that `environ` names; the trace of its last execution, in
        `folder`. Raises `ProfileError`."""
        command = [str(self.path), "capture", "-n", str(neff), "-s", str(folder / "profile.ntff"),
                   f"--num-exec={EXECUTIONS}", f"--profile-nth-exec={EXECUTIONS}"]  # fmt: skip
        done = _run(command, self.root, CAPTURE_S, environ, folder)
        self._check("capture", done)
        named = folder / f"profile_exec_{EXECUTIONS}.ntff"  # what the tool makes of -s when it traces a later execution
        found = [path for path in (named, *sorted(folder.glob("*.ntff"))) if path.is_file()]
        if not found:
            raise ProfileError(
                "profile_empty", f"{self.name} capture ended well and left no trace of {neff.name}",
                remedy="Run it by hand on the NEFF of the artifact, and see what it says.",
            )  # fmt: skip
        return found[0]

    def _viewed(self, what: Sequence[str], into: Path) -> str:
        command = [str(self.path), "view", *what, "--output-format", "summary-json", "--output-file", str(into)]
        done = _run(command, self.root, VIEW_S)
        self._check("view", done)
        if not into.is_file():  # older ones write to standard output
            into.write_text(done.stdout, encoding="utf-8")
        return into.read_text(encoding="utf-8", errors="replace")

    def _check(self, verb: str, done: subprocess.CompletedProcess[str]) -> None:
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
                "profile_failed", f"{self.name} {verb} ended with status {done.returncode}: {line.strip()[:300]}"
            )


def find(root: Path = Path("/")) -> Profiler:
    """The newest that is installed, asked for its version. Raises `ProfileError` where there is none."""
    path = installed(root)
    if path is None:
        raise ProfileError("profile_tool_missing", missing(root), remedy="Install aws-neuronx-tools.")
    said = _run([str(path), "--version"], root, 30.0)
    found = _VERSION.search(f"{said.stdout} {said.stderr}")
    return Profiler(path=path, version=found[0] if found else "", root=root)


def installed(root: Path = Path("/")) -> Path | None:
    """The newest profiler of this host; None where there is none."""
    return next((path for path in (find_tool(name, root) for name in NAMES) if path is not None), None)


def missing(root: Path = Path("/"), mode: Mode = "model") -> str:
    """Why this host's tools can make nothing of what is captured; empty when they can. Nothing is started."""
    path = installed(root)
    if path is None:
        return f"neither {' nor '.join(NAMES)} is on PATH or in /opt/aws/neuron/bin; install aws-neuronx-tools"
    if mode == "session" and path.name != NAMES[0]:
        return (
            f"{path.name} summarises traces of single programs, and this one has to be of a whole session; install "
            f"an aws-neuronx-tools that brings {NAMES[0]}"
        )
    return ""


def refused(asked: object, environ: Mapping[str, object], root: Path, mode: Mode = "model") -> str:
    """Why a resource cannot be profiled as a point asks, before anything boots; empty when it can.

    `environ`: the variables that the point gives to its processes. They may not profile behind the record's back.
    """
    behind = sorted(name for name in environ if name.startswith(INSPECT))
    if behind:
        return f"{', '.join(behind)} of the point's own environment: ask for --nb-profile, which marks the record"
    reason = missing(root, mode) if asked else ""
    return f"profile: {reason}" if reason else ""


def environment(folder: Path, mode: Mode = "model") -> dict[str, str]:
    """Variables with which the runtime captures into `folder`: the device's trace; the host's too where the device's
    is of a session, since the tool reads a folder of traces only with it."""
    session = mode == "session"
    return {
        "NEURON_RT_INSPECT_ENABLE": "1",
        "NEURON_RT_INSPECT_OUTPUT_DIR": str(folder),
        "NEURON_RT_INSPECT_DEVICE_PROFILE": "session" if session else "1",
        "NEURON_RT_INSPECT_SYSTEM_PROFILE": "1" if session else "0",
    }


def traces(folder: Path) -> list[tuple[Path, Path]]:
    """(NEFF, NTFF) of each trace below a folder: `neff_<hash>.neff`, `<hash>_instid_0_vnc_0.ntff`. Those without a NEFF
    cannot be read and are left out; those of sessions are no pairs."""
    programs = {path.stem.removeprefix("neff_"): path for path in sorted(folder.rglob("*.neff"))}
    found = []
    for path in sorted(folder.rglob("*.ntff")):
        stem = path.stem.partition("_instid_")[0].removeprefix("neff_")
        if stem in programs:
            found.append((programs[stem], path))
    return found


def sessions(folder: Path) -> list[Path]:
    """Traces of whole sessions below a folder: `profile_nc_0_session_0.ntff`."""
    return sorted(folder.rglob("*_session_*.ntff"))


def _run(
    command: Sequence[str],
    root: Path,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=deadline_s, stdin=subprocess.DEVNULL,
            env=tool_environment(root, environ), cwd=folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProfileError(
            "profile_failed", f"{Path(command[0]).name} {command[1]} did not answer within {deadline_s:g} s"
        ) from None
    except OSError as error:
        raise ProfileError("profile_failed", f"{command[0]} cannot be run: {error.strerror or error}") from None
