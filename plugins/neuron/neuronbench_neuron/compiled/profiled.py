"""Profiles of compiled models: when a point has ended, the tool executes the artifact's NEFFs once more.

What the point measured ran without the profiler. It is marked all the same: who asks for a profile asks for that, and
a run whose cores are wanted by the tool as soon as it ends is nobody's best one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench import Record
from neuronbench.model import Failure, Json
from neuronbench.protocols import PointFailure
from neuronbench.worker.compiled import WorkerModel
from neuronbench_neuron import cores
from neuronbench_neuron.hardware import Hardware
from neuronbench_neuron.profile import record as records
from neuronbench_neuron.profile import tools
from neuronbench_neuron.profile.report import ProfileError

MESSAGE: Final = (
    "this point was run for its profile: the tool executed its NEFFs once more, on inputs of the tool's own, and the "
    "point's times, rates and utilisations are no result"
)


@dataclass(frozen=True, kw_only=True)
class Captured:
    """What the tool is to execute."""

    neffs: Mapping[str, str]
    """Name of the graph → the file of its NEFF in the artifact."""
    executables: Mapping[str, int]
    """Name of the graph → how many NEFFs the compiler made of it; the largest is the one that is kept."""
    host: Hardware
    environ: Mapping[str, str]
    """Of the tool, before it is told which cores."""


class ProfiledModel(WorkerModel):
    """A compiled model that may have been asked to leave a profile of itself."""

    captured: Captured | None = None
    """None: it was not."""

    def point_ends(self, record: Record, into: Path, *, failed: bool) -> None:
        """Stop the model, whose cores the tool needs, and leave a profile. Raises `PointFailure`."""
        given = self.captured
        if given is None:
            return
        records.mark(record, MESSAGE)
        with tempfile.TemporaryDirectory(prefix="neuron-capture-") as scratch:
            copies = {}
            for name, neff in given.neffs.items():  # the artifact is let go of with the model
                copies[name] = Path(scratch, f"{name}.neff")
                if not failed:
                    shutil.copyfile(Path(str(self._plan.load["folder"]), neff), copies[name])
            self.stop()
            if not failed:
                _leave(record, given, copies, Path(scratch), into)


def _leave(record: Record, given: Captured, neffs: Mapping[str, Path], scratch: Path, into: Path) -> None:
    with records.failing():
        if not neffs:
            raise ProfileError(
                "profile_empty", "the compiler left no NEFF in the artifact: there is nothing that a profiler executes"
            )
        profiler = tools.find(given.host.root)
        folder = into / records.FOLDER
        folder.mkdir(exist_ok=True)
        made = []
        with _core(given.host) as lease:
            environ = lease.environ(given.environ)
            for name, neff in neffs.items():
                work = scratch / name
                work.mkdir()
                ntff = profiler.capture(neff, work, environ)
                kept = ntff.rename(scratch / f"{name}.ntff")
                told = folder / f"{name}.json"
                more: dict[str, Json] = {
                    "mode": "capture", "graph": name, "execution": tools.EXECUTIONS, "inputs": "the tool's own",
                    "executables": given.executables.get(name),
                }  # fmt: skip
                summary = profiler.view(neff, kept, told)
                made.append(records.Trace(name=kept.name, files=(neff, kept), summary=summary, told=told, more=more))
        records.keep(record, profiler, made, folder)


def _core(host: Hardware) -> cores.CoreLease:
    """One core: that is what a NEFF of `torch_neuronx.trace` runs on."""
    try:
        return cores.take(1, host=host, owner="capturing a profile")
    except cores.CoresBusy as error:
        line = " ".join(str(error).split())
        raise PointFailure(
            Failure(
                kind="cores_busy", phase="reduce", message=line, causal_line=line,
                cause="somebody took the NeuronCores between the model's end and the capture of its profile",
                remedy="Wait for who has them or end it, and run the point again.",
            )
        ) from error  # fmt: skip
