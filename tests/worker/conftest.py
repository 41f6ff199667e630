"""Real workers with the toy handler, in this interpreter; all of them end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuronbench import processes
from neuronbench.testing import toy_model
from neuronbench.worker.client import Worker
from neuronbench.worker.compiled import WorkerModel

START_S = 200.0
OWN_TIME = Path(__file__).parent / "own_time"
"""Handlers on a clock of their own: what a busy host takes from a worker is in no number."""


@pytest.fixture
def spawn(tmp_path: Path) -> Callable[..., Any]:
    return partial(processes.spawn, pid_dir=tmp_path / "pids")


@pytest.fixture
def start(tmp_path: Path, spawn: Callable[..., Any]) -> Iterator[Callable[..., Worker]]:
    """Start a worker: `start("plain", work_us=100, env=...)`."""
    workers: list[Worker] = []

    def started(behaviour: str = "plain", *, name: str = "toy", **changes: Any) -> Worker:
        launch = toy_model.launch(behaviour, **changes)
        workers.append(Worker.start(launch, name=name, folder=tmp_path, spawn=spawn, deadline_s=START_S))
        return workers[-1]

    yield started
    for worker in workers:
        worker.stop()


@pytest.fixture
def toy(tmp_path: Path, spawn: Callable[..., Any]) -> Iterator[Callable[..., WorkerModel]]:
    """Load a toy: `toy("nan", work_us=100)`."""
    models: list[WorkerModel] = []

    def loaded(behaviour: str = "plain", **settings: Any) -> WorkerModel:
        spec = toy_model.toy_spec(behaviour=behaviour, **settings)
        start = toy_model.launch(behaviour, spec.settings["work_us"], handlers=OWN_TIME)
        models.append(toy_model.load(spec, tmp_path / f"model-{len(models)}", spawn, start))
        return models[-1]

    yield loaded
    for model in models:
        model.stop()
