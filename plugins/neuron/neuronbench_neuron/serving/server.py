"""A server that runs on leased cores: gives them back when it ends, and testifies about its windows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuronbench import Record
from neuronbench.definitions import metric
from neuronbench.model import Failure, Json, Metric, ResourceSpec
from neuronbench.protocols import SamplerSpec, Vocabulary
from neuronbench.serving.server import OpenAIServer
from neuronbench.witness import SeenWindow, Testimony
from neuronbench_neuron.caches import Delta, Snapshot, snapshot
from neuronbench_neuron.caches.layout import Kind
from neuronbench_neuron.cores import CoreLease
from neuronbench_neuron.profile.record import leave, mark
from neuronbench_neuron.serving import evidence, watch


class NeuronServer:
    """Satisfies `neuronbench.protocols.Endpoint` and `Witness`; made by `NeuronServingProvider.boot`."""

    def __init__(
        self,
        server: OpenAIServer,
        lease: CoreLease,
        known: evidence.Known,
        caches: Caches,
        *,
        facts: Mapping[str, Json],
        boot_metrics: Sequence[Metric],
        captured: Path | None = None,
        root: Path = Path("/"),
    ) -> None:
        """`captured`: where its runtime leaves profiles; None where it makes none. `root`: of the host."""
        self._captured, self._root = captured, root
        self._server, self._lease, self.known, self.caches = server, lease, known, caches
        self.facts, self.boot_metrics = facts, boot_metrics
        self.spec: ResourceSpec = server.spec
        self.base_url: str = server.base_url
        self.model: str = server.model
        self.vocabulary: Vocabulary | None = server.vocabulary
        self.metrics_url: str | None = server.metrics_url
        self.api_key: str | None = server.api_key
        self.logs: Sequence[Path] = server.logs

    def alive(self) -> bool:
        return self._server.alive()

    def pids(self) -> Sequence[int]:
        return self._server.pids()

    def diagnose(self, phase: str) -> Failure | None:
        return self._server.diagnose(phase)

    def stop(self) -> None:
        """End the server; its cores are free afterwards, and not before: the process that held them is gone."""
        self._server.stop()
        self._lease.release()

    def point_ends(self, record: Record, into: Path, *, failed: bool) -> None:
        """A server whose runtime captured a profile ends with its point: traces are whole when their processes have
        ended. Raises `PointFailure`."""
        if self._captured is None:
            return
        mark(record)
        self.stop()
        try:
            if not failed:
                leave(record, self._captured, into, self._root)
        finally:
            shutil.rmtree(self._captured, ignore_errors=True)

    def testify(self, seen: SeenWindow) -> Testimony:
        return evidence.testify(seen, self.known)

    def samplers(self) -> Sequence[SamplerSpec]:
        """What counts compiles while a window is open."""
        folders = self.caches.options() if self.caches.hold_something() else {}
        return [
            SamplerSpec(
                name=watch.NAME,
                target="neuronbench_neuron.serving.watch:CompileWatch",
                options={**folders, "log": str(self.logs[0]) if self.logs else None},
                period_s=watch.PERIOD_S,
            )
        ]


class Caches:
    """The folders in which a server's compiles show: the compiler's cache, and whole compiled models."""

    def __init__(self, folder: Path | None, kind: Kind, artifacts: Path | None) -> None:
        self._watched: list[tuple[Path, Kind]] = []
        if folder is not None:
            self._watched.append((folder, kind))
        if artifacts is not None:
            self._watched.append((artifacts, "nxdi"))
        self._folder, self._artifacts = folder, artifacts

    def look(self) -> list[Snapshot]:
        """What they hold now."""
        return [snapshot(folder, kind) for folder, kind in self._watched]

    def since(self, before: Sequence[Snapshot]) -> list[Delta]:
        """What happened in them since an earlier look."""
        return [then.delta(now) for then, now in zip(before, self.look(), strict=True)]

    def hold_something(self) -> bool:
        """Whether they are where this server keeps what it compiled: a ready one has compiled or loaded something."""
        return any(cache.modules for cache in self.look())

    def options(self) -> dict[str, Json]:
        return {
            "folder": str(self._folder) if self._folder is not None else None,
            "artifacts": str(self._artifacts) if self._artifacts is not None else None,
        }


def state(deltas: Sequence[Delta]) -> str:
    """`cold`: the compiler ran; `warm`: all was there; `empty`: nothing is; `unknown`: no folder to look at."""
    if not deltas:
        return "unknown"
    if any(delta.cold for delta in deltas):
        return "cold"
    return "warm" if any(delta.kept for delta in deltas) else "empty"


def compile_metrics(deltas: Sequence[Delta]) -> list[Metric]:
    """Graphs that the compiler began during a start; hits are null, since nothing tells which graphs it used."""
    if not deltas:
        note = "the compile cache is no folder on this host"
        return [metric("cache_hits", None, note=note), metric("cache_misses", None, note=note)]
    missed, kept = sum(delta.compiles for delta in deltas), sum(delta.kept for delta in deltas)
    return [
        metric("cache_misses", missed, n=1, note="compiles that this start began, by the cache's folder"),
        metric("cache_hits", None, note=f"{kept} compiled modules were there; which of them it used is not told"),
    ]
