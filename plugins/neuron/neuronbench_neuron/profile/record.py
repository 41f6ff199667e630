"""What a profiled run leaves in its record: summaries, traces, and the mark that its times are none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from neuronbench import Gate, Record
from neuronbench.model import Failure
from neuronbench.protocols import PointFailure
from neuronbench_neuron.profile import tools
from neuronbench_neuron.profile.report import ProfileError

FOLDER: Final = "profile"
"""In the receipt."""
WORKLOAD: Final = "profile"


def leave(record: Record, captured: Path, into: Path, root: Path = Path("/")) -> None:
    """Summarise all traces below `captured` into `into`/profile. Raises `PointFailure` with what went wrong and a
    remedy; the record is marked before."""
    record.gate(
        Gate(
            id="profiled", passed=False, observed=True, limit=False,
            message="the runtime captured a profile meanwhile: times, rates and utilisations of this run are no result",
        )
    )  # fmt: skip
    try:
        found = _summaries(captured, into, tools.find(root))
    except ProfileError as error:
        text = str(error)
        raise PointFailure(
            Failure(kind=error.kind, phase="reduce", message=text, causal_line=text, remedy=error.remedy)
        ) from error
    record.workload[WORKLOAD] = found
    odd = [each for trace in found["traces"] for each in trace["odd"]]
    record.gate(
        Gate(
            id="profile_plausible", passed=not odd, observed=len(odd), limit=0, unit="metrics", severity="info",
            message=f"{', '.join(odd[:5])}: shares above 100 % or below 0; they are null" if odd else "",
        )
    )  # fmt: skip


def _summaries(captured: Path, into: Path, profiler: tools.Profiler) -> dict[str, Any]:
    pairs = tools.traces(captured)
    if not pairs:
        raise ProfileError(
            "profile_empty", f"the runtime captured no trace of a device below {captured.name}",
            remedy="NEURON_RT_INSPECT_DEVICE_PROFILE needs about 5 GB of the device's memory: try a smaller batch.",
        )  # fmt: skip
    folder = into / FOLDER
    folder.mkdir(exist_ok=True)
    traces = []
    for neff, ntff in pairs:
        target = folder / f"{ntff.stem}.json"
        summary = profiler.view(neff, ntff, target)
        kept = neff.stat().st_size + ntff.stat().st_size <= tools.LARGEST
        if kept:
            for path in (neff, ntff):
                shutil.copyfile(path, folder / path.name)
        traces.append(
            {
                "trace": ntff.name, "summary": f"{FOLDER}/{target.name}", "kept": kept, "odd": list(summary.odd),
                "versions": dict(summary.versions), "throttled": summary.throttled, "metrics": summary.headline(),
            }
        )  # fmt: skip
    return {"tool": profiler.name, "version": profiler.version, "shares": "fractions, 0 to 1", "traces": traces}
