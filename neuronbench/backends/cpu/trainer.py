"""Training on the CPU with trl, peft and transformers, in a worker; above one rank by torchrun over gloo.

The parameters of a point are the fields of `neuronbench.training.TrainJob`, of which `neuronbench.trainers` says what
makes a trainer; here `threads` does too. Further parameter:

| parameter | default | meaning |
|---|---|---|
| `worker_env` | {} | more environment variables of the worker |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from neuronbench.backends.cpu.compiled import HANDLERS
from neuronbench.backends.cpu.processor import floor, host_cores
from neuronbench.model import Json, Point, ResourceSpec
from neuronbench.protocols import Backend, BootContext, Peak, Stack
from neuronbench.trainers import TrainerBoot, TrainerProvider, environment, one_of
from neuronbench.training import TrainJob
from neuronbench.worker.client import Launch
from neuronbench.worker.trainer import WorkerTrainer

if TYPE_CHECKING:
    from neuronbench.config import Settings

MODULE: Final = "training.handler"
DTYPES: Final = ("float32", "bfloat16")
OPTIMIZERS: Final = ("adamw", "sgd", "adafactor")
ALLOCATOR: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
"""Memory of a step goes to the next one and not back to the system (glibc): a step's tensors are large, and having
their pages made anew each time is a tenth of its time."""


class TrlCpuProvider(TrainerProvider):
    """`neuronbench.protocols.Provider` of trainers on the CPU."""

    def more(self, job: TrainJob, point: Point) -> dict[str, Json]:
        return {"threads": threads_of(job)}

    def wrong(self, job: TrainJob, backend: Backend, settings: Settings, point: Point) -> str:
        cores = len(host_cores())
        wrong = one_of("dtype", job.dtype, DTYPES, " on the CPU") or one_of("optimizer", job.optimizer, OPTIMIZERS)
        if wrong:
            return wrong
        if job.world_size > cores:
            return f"world_size: {job.world_size} ranks are asked for, this process may use {cores} cores"
        if job.world_size * threads_of(job) > cores:
            asked = f"{job.world_size} ranks of {threads_of(job)} threads"
            return f"threads: {asked} are asked for, this process may use {cores} cores"
        return ""

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerTrainer:
        return _Boot(spec, context).run()


class _Boot(TrainerBoot):
    def launch(self, stack: Stack, arguments: Mapping[str, Json]) -> Launch:
        given = self.given
        cores = self._cores
        pinned = hasattr(os, "sched_setaffinity") and given["world_size"] == 1
        return Launch(
            python=stack.python, handlers=HANDLERS, module=MODULE,
            env=environment(given, self.scratch, given["threads"], more=ALLOCATOR),
            cores=cores if pinned else None, rules=tuple(self.context.backend.failure_rules()),
            arguments={**arguments, "cores": cores, "threads": given["threads"]},
        )  # fmt: skip

    @property
    def _cores(self) -> list[int]:
        return host_cores()[: self.given["threads"] * self.given["world_size"]]

    def cores(self) -> int:
        return len(self._cores)

    def peak(self) -> Peak:
        return peak(self.given["dtype"])


def threads_of(job: TrainJob) -> int:
    """Threads of a rank: what the job says, else its share of the cores."""
    return job.threads or max(len(host_cores()) // job.world_size, 1)


def peak(dtype: str) -> Peak:
    """A bound of what a core can do: the processor's widest instructions at a clock that no processor reaches."""
    bound = floor(0.0, dtype, 1)
    return Peak(
        flops=bound.peak_flops, dtype=dtype, source=f"bound by instruction set, not a measurement: {bound.source}",
        date=datetime.now(UTC).date().isoformat(), bound=True,
    )  # fmt: skip


__all__ = ["TrlCpuProvider", "peak", "threads_of"]
