"""What a profiled run leaves in its record: summaries, traces, and the mark that its times are none."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench import Gate, Record
from neuronbench.model import Failure
from neuronbench.protocols import PointFailure
from neuronbench_neuron.profile import tools
from neuronbench_neuron.profile.report import ProfileError, Summary

FOLDER: Final = "profile"
"""In the receipt."""
WORKLOAD: Final = "profile"
GATE: Final = "profiled"
LARGEST: Final = 64 << 20
"""Bytes of a trace, its program included, that is kept with the record; of a larger one only the summary is."""
ROOM: Final = 256 << 20
"""Bytes of traces that one record keeps."""
MOST: Final = 32
"""Traces that one record has summaries of: a server has one for each of its programs on each of its cores."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A trace and what the tool makes of it."""

    name: str
    files: Sequence[Path]
    """Of it and of its program; they are kept together or not at all."""
    summary: Summary
    told: Path
    """The tool's own words."""
    more: Mapping[str, Any]


def mark(record: Record, message: str = "") -> None:
    """Say in the record, once, that its times are no result."""
    if any(gate.id == GATE for gate in record.gates):
        return
    record.gate(
        Gate(
            id=GATE, passed=False, observed=True, limit=False,
            message=message
            or "the runtime captured a profile meanwhile: times, rates and utilisations of this run are no result",
        )
    )  # fmt: skip


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """What is wrong with a profile is what is wrong with its point: `ProfileError` becomes `PointFailure`."""
    try:
        yield
    except ProfileError as error:
        text = str(error)
        raise PointFailure(
            Failure(kind=error.kind, phase="reduce", message=text, causal_line=text, remedy=error.remedy)
        ) from error


def leave(record: Record, captured: Path, into: Path, root: Path = Path("/")) -> None:
    """Summarise all traces that a runtime left below `captured` into `into`/profile. Raises `PointFailure` with what
    went wrong and a remedy; the record is marked before."""
    mark(record)
    with failing():
        profiler = tools.find(root)
        folder = into / FOLDER
        folder.mkdir(exist_ok=True)
        pairs = tools.traces(captured)
        made = [_pair(profiler, neff, ntff, folder) for neff, ntff in pairs[:MOST]]
        whole = tools.sessions(captured)
        if whole:
            made += _sessions(profiler, captured, whole, folder)
        if not made:
            raise ProfileError(
                "profile_empty", f"the runtime captured no trace of a device below {captured.name}",
                remedy="NEURON_RT_INSPECT_DEVICE_PROFILE needs about 5 GB of the device's memory: try a smaller batch.",
            )  # fmt: skip
        keep(record, profiler, made, folder, beyond=max(0, len(pairs) - MOST))


def keep(record: Record, profiler: tools.Profiler, traces: Sequence[Trace], folder: Path, *, beyond: int = 0) -> None:
    """Write summaries into the record, and copy the traces that there is room for into `folder` of its receipt."""
    room, rows = ROOM, []
    for trace in traces:
        size = sum(path.stat().st_size for path in trace.files)
        fits = bool(trace.files) and size <= min(LARGEST, room)
        if fits:
            room -= size
            for path in trace.files:
                shutil.copyfile(path, folder / path.name)
        summary = trace.summary
        rows.append(
            {
                "trace": trace.name, "summary": f"{FOLDER}/{trace.told.name}", "kept": fits, "bytes": size,
                "odd": list(summary.odd), "versions": dict(summary.versions), "throttled": summary.throttled,
                "metrics": summary.headline(), **trace.more,
            }
        )  # fmt: skip
    record.workload[WORKLOAD] = {
        "tool": profiler.name, "version": profiler.version, "shares": "fractions, 0 to 1", "beyond": beyond,
        "traces": rows,
    }  # fmt: skip
    odd = [each for trace in traces for each in trace.summary.odd]
    record.gate(
        Gate(
            id="profile_plausible", passed=not odd, observed=len(odd), limit=0, unit="metrics", severity="info",
            message=f"{', '.join(odd[:5])}: shares above 100 % or below 0; they are null" if odd else "",
        )
    )  # fmt: skip


def _pair(profiler: tools.Profiler, neff: Path, ntff: Path, folder: Path) -> Trace:
    told = folder / f"{ntff.stem}.json"
    summary = profiler.view(neff, ntff, told)
    return Trace(name=ntff.name, files=(neff, ntff), summary=summary, told=told, more={})


def _sessions(profiler: tools.Profiler, captured: Path, whole: Sequence[Path], folder: Path) -> list[Trace]:
    """The tool summarises a folder of sessions at once. Their traces have many programs and are large: what is copied
    is the first one's, with the programs beside it."""
    told = folder / "session.json"
    found = profiler.view_session(captured, told)
    first = (whole[0], *sorted(whole[0].parent.glob("*.neff")))
    return [
        Trace(name=name, files=first if not index else (), summary=summary, told=told, more={"mode": "session"})
        for index, (name, summary) in enumerate(list(found.items())[:MOST])
    ]
