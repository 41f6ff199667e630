"""A fake classifier in real workers, and samples for it; all workers end with the test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench import processes
from neuronbench.accuracy import Samples
from neuronbench.model import FrozenMap, ResourceSpec
from neuronbench.protocols import Floor
from neuronbench.stacks import clean_environment
from neuronbench.worker.client import Launch
from neuronbench.worker.compiled import Plan, WorkerModel, start_copy
from neuronbench.worker.references import References

HANDLERS = Path(__file__).parent / "fake_handlers"
WIDTH = 12


@pytest.fixture
def classifier(tmp_path: Path) -> Iterator[Callable[..., WorkerModel]]:
    """`classifier("nan")`: a model that misbehaves so, with a reference that does not."""
    models: list[WorkerModel] = []

    def loaded(behaviour: str = "plain", artifact: str = "") -> WorkerModel:
        launch = Launch(
            python=Path(sys.executable), handlers=HANDLERS, module="classifier", env=clean_environment(),
            arguments={"behaviour": behaviour},
        )  # fmt: skip
        spec = ResourceSpec(
            kind="compiled_model", backend="fake", provider="fake", settings=FrozenMap(behaviour=behaviour, task="t")
        )
        plan = Plan(
            launch=lambda index: launch, load={}, reference=launch, folder=tmp_path,
            spawn=partial(processes.spawn, pid_dir=tmp_path / "pids"), name=f"{spec.id}-{len(models)}",
            call_deadline_s=30.0, load_deadline_s=30.0,
            references=References(cache_dir=tmp_path / "cache", parts={"weights": "w1"}, title="a classifier"),
        )  # fmt: skip
        worker, reply = start_copy(plan, 0)
        facts = {"artifact": {"key": artifact or f"key-{behaviour}"}, "model": {"weights_digest": "w1"}}
        models.append(
            WorkerModel(
                spec, plan, worker, reply.value,
                batch_size=4, floor=Floor(), max_workers=1, facts=facts, boot_metrics=[],
            )
        )  # fmt: skip
        return models[-1]

    yield loaded
    for model in models:
        model.stop()


def token_rows(count: int = 200, **more: Any) -> Samples:
    """Rows of tokens of several lengths; the first token counts up, three of a hundred are below 3."""
    draw = np.random.default_rng(3)
    ids = draw.integers(0, 100, size=(count, WIDTH))
    ids[:, 0] = np.arange(count) % 100
    lengths = draw.integers(4, WIDTH + 1, size=count)
    mask = (np.arange(WIDTH)[None, :] < lengths[:, None]).astype("int64")
    return Samples(name="rows", inputs={"ids": ids * mask, "attention_mask": mask}, **more)


@pytest.fixture
def rows() -> Callable[..., Samples]:
    return token_rows
