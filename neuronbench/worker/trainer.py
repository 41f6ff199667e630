"""A trainer held by a worker: satisfies `neuronbench.protocols.Trainer` for any backend.

The worker's handler does the work; its verbs are `prepare`, `describe`, `train`, `evaluate` and `export` (see the
README of `neuronbench/training`). While it trains, this side waits and reads what rank 0 writes to its log: being
watched costs the measured path nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Failure, Json, Metric, ResourceSpec
from neuronbench.protocols import Peak, PointFailure, Progress
from neuronbench.training import steps
from neuronbench.weights.adapters import BASE, Base, write_base
from neuronbench.worker.client import Worker

if TYPE_CHECKING:
    from neuronbench.training.job import TrainJob

LIVE_LOG: Final = "steps-rank0.jsonl"


class WorkerTrainer:
    """A trainer in a worker. The worker is started, with its handler loaded, by whoever boots the trainer."""

    def __init__(
        self,
        spec: ResourceSpec,
        worker: Worker,
        *,
        world_size: int,
        cores: int,
        peak: Peak | None,
        facts: Mapping[str, Json],
        boot_metrics: Sequence[Metric],
        call_deadline_s: float,
        progress: Progress | None = None,
        restart: Callable[[int], Worker] | None = None,
    ) -> None:
        """`call_deadline_s`: for everything but training, which has a deadline of its own each time.

        `restart(n)` starts the n-th worker, from 2, with its handler loaded. With it a benchmark can go on after a run
        that cost the worker its life (a ladder up to the wall); without, only the next point gets a new one.
        """
        self.spec, self.facts, self.boot_metrics = spec, facts, boot_metrics
        self.world_size, self.cores, self.peak = world_size, cores, peak
        self._workers, self._restart = [worker], restart
        self._deadline_s, self._progress = call_deadline_s, progress

    # -- resource -----------------------------------------------------------------------------------------------------

    @property
    def logs(self) -> Sequence[Path]:
        return [worker.log for worker in self._workers]

    def alive(self) -> bool:
        return self._workers[-1].alive()

    def pids(self) -> Sequence[int]:
        return [self._workers[-1].pid] if self.alive() else []

    def diagnose(self, phase: str) -> Failure | None:
        return self._workers[-1].diagnose(phase)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def ready(self) -> Worker:
        """The worker; another one when it has died and can be started again. Raises `PointFailure`."""
        if not self.alive() and self._restart is not None:
            self._workers[-1].stop()
            self._workers.append(self._restart(len(self._workers) + 1))
        return self._workers[-1]

    # -- trainer ------------------------------------------------------------------------------------------------------

    def prepare(self, job: TrainJob) -> Mapping[str, Json]:
        """Tokenise and pack the data once; what it is. Raises `PointFailure`."""
        return self._ask("prepare", job)

    def describe(self, job: TrainJob) -> Mapping[str, Json]:
        """What the start line would say of model and data, without training."""
        return self._ask("describe", job)

    def train(
        self,
        job: TrainJob,
        *,
        folder: Path,
        resume: bool = False,
        watch: Callable[[Mapping[str, Json]], None] | None = None,
        deadline_s: float,
    ) -> Path:
        """Train into `folder` and return it; `watch` gets each line of rank 0's log. Raises `PointFailure`.

        The logs of earlier attempts in the folder are moved aside with `resume`; without, they are an error. That the
        worker says it is done means nothing by itself: whether a whole run was logged is for `training.steps` to say.
        """
        if job.world_size != self.world_size:
            raise ValueError(
                f"world_size: this trainer has {self.world_size} ranks, the job asks for {job.world_size}; "
                "both come from the point's parameter world_size"
            )
        folder.mkdir(parents=True, exist_ok=True)
        if not resume and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; train into a new folder, or go on from its checkpoint (resume)")
        steps.set_aside(folder, job.digest)
        tail = Tail(folder / LIVE_LOG, watch or (lambda entry: None))
        worker = self.ready()
        worker.begin("train", {"job": told(job), "folder": str(folder), "resume": resume})
        try:
            worker.finish(deadline_s=deadline_s, progress=self._progress, idle=tail.look)
        finally:
            tail.look()
        return folder

    def evaluate(self, job: TrainJob, *, folder: Path, split: str = "holdout") -> Mapping[str, Json]:
        """`loss` and `tokens` of a split by the state that training left in `folder`."""
        return self._ask("evaluate", job, folder=str(folder), split=split)

    def export(self, job: TrainJob, *, folder: Path, into: Path, merged: bool = True) -> Mapping[str, Json]:
        """Write the trained weights into `into`; `files` maps each name to its `sha256` and `bytes`."""
        into.mkdir(parents=True, exist_ok=True)
        made = self._ask("export", job, folder=str(folder), into=str(into), merged=merged)
        if merged or job.adapter is None:
            return made
        return {**made, "files": {**made["files"], **self._base(into)}}

    def _base(self, into: Path) -> dict[str, Json]:
        """Beside an adapter lies of which weights it is, by digest: a name is none. Nothing for weights from a seed."""
        model = self.facts.get("model")
        if not isinstance(model, Mapping) or model.get("weights") != "pretrained" or not model.get("weights_digest"):
            return {}
        base = Base(reference=str(model.get("reference") or ""), weights_digest=str(model["weights_digest"]))
        return {BASE: write_base(into, base)}

    def _ask(self, verb: str, job: TrainJob, **arguments: Json) -> Mapping[str, Json]:
        reply = self.ready().call(
            verb, {"job": told(job), **arguments}, deadline_s=self._deadline_s, progress=self._progress
        )
        if not isinstance(reply.value, dict):
            text = f"{verb!r} of the handler: expected an object, found {type(reply.value).__name__}"
            raise PointFailure(Failure(kind="worker_protocol", phase="window", message=text, causal_line=text))
        return reply.value


def told(job: TrainJob) -> dict[str, Json]:
    """The job as a handler gets it: its fields, and its digest, which goes into the start line."""
    return {**job.to_json(), "digest": job.digest}


class Tail:
    """Reads a growing log, line by line."""

    def __init__(self, path: Path, hear: Callable[[Mapping[str, Json]], None]) -> None:
        self._path, self._hear = path, hear
        self._at = 0
        self._rest = b""

    def look(self) -> None:
        """Pass on what was written since the last time. What cannot be read is left for the reader of the whole log."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            entry: Any = None
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
            if isinstance(entry, dict):
                self._hear(entry)


__all__ = ["PointFailure", "Tail", "WorkerTrainer", "told"]
