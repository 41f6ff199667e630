"""Real toy trainers: a worker, its protocol, a thread with a queue for a device; all of them end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuronbench import processes
from neuronbench.testing import toy_trainer
from neuronbench.worker.trainer import WorkerTrainer


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Callable[..., WorkerTrainer]]:
    """Start a toy trainer: `toy("lazy", work_ms=5)`."""
    trainers: list[WorkerTrainer] = []

    def started(behaviour: str = "plain", **settings: Any) -> WorkerTrainer:
        spec = toy_trainer.toy_spec(behaviour=behaviour, **{"work_ms": 1.0, **settings})
        folder = tmp_path / f"trainer-{len(trainers)}"
        folder.mkdir()
        trainers.append(toy_trainer.start(spec, folder, partial(processes.spawn, pid_dir=tmp_path / "pids")))
        return trainers[-1]

    yield started
    for trainer in trainers:
        trainer.stop()
