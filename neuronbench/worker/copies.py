"""Copies of a compiled model: what it takes to start one, and starting one or many, each in a worker of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuronbench.model import Json
from neuronbench.protocols import Progress
from neuronbench.worker.client import Launch, Reply, Worker
from neuronbench.worker.references import References


@dataclass(kw_only=True)
class Plan:
    """All that a compiled model needs to start copies of itself."""

    launch: Callable[[int], Launch]
    """How to start copy `n`, from 0."""
    load: Mapping[str, Json]
    """Arguments of the handler's verb `load`."""
    reference: Launch
    """How to start the worker of the reference model."""
    reference_arguments: Mapping[str, Json] = field(default_factory=dict)
    folder: Path
    """Logs; side files while they travel."""
    spawn: Callable[..., Any]
    name: str
    call_deadline_s: float
    """For one request to a loaded copy."""
    load_deadline_s: float
    """For a worker to start, for the model to load, and for one answer of the reference model."""
    trash: Sequence[Path] = ()
    """Folders to remove with the model."""
    release: Callable[[], None] = lambda: None
    """Called when the model has stopped: what it was loaded from is no longer needed."""
    references: References | None = None
    """Where answers of the reference model are kept; None: they are computed each time."""


def start_copy(plan: Plan, index: int, progress: Progress | None = None) -> tuple[Worker, Reply]:
    """Start copy `index` and load the model in it. Returns the answer of `load` too. Raises `PointFailure`."""
    worker = Worker.start(
        plan.launch(index), name=f"{plan.name}-{index}", folder=plan.folder, spawn=plan.spawn,
        deadline_s=plan.load_deadline_s, phase="boot" if index == 0 else "warmup", progress=progress,
    )  # fmt: skip
    try:
        return worker, worker.call("load", plan.load, deadline_s=plan.load_deadline_s, phase="boot", progress=progress)
    except BaseException:
        worker.stop()
        raise


def start_copies(plan: Plan, indices: Sequence[int]) -> list[Worker]:
    """Start these copies and load the model in them, all at the same time. Raises `PointFailure`; none runs then."""
    workers: list[Worker] = []
    try:
        for index in indices:
            workers.append(
                Worker.start(
                    plan.launch(index), name=f"{plan.name}-{index}", folder=plan.folder, spawn=plan.spawn,
                    deadline_s=plan.load_deadline_s, phase="warmup", wait=False,
                )
            )  # fmt: skip
        for worker in workers:
            worker.finish(deadline_s=plan.load_deadline_s, phase="warmup")
            worker.begin("load", plan.load, phase="boot")
        for worker in workers:
            worker.finish(deadline_s=plan.load_deadline_s, phase="boot")
    except BaseException:
        for worker in workers:
            worker.stop()
        raise
    return workers
