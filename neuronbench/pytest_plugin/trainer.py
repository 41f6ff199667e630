"""The fixture `trainer`: a thin lease on something that trains jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from neuronbench.model import Point
from neuronbench.protocols import Trainer
from neuronbench.pytest_plugin.fixtures import leased


@pytest.fixture
def trainer(request: pytest.FixtureRequest, point: Point) -> Iterator[Trainer]:
    """A trainer, shared by all points that need the same one; each job starts from a fresh state.

    `measure.train(trainer, TrainJob.from_point(point))` trains and records; `trainer.evaluate(...)` and
    `trainer.export(...)` take the folder of what it returns.
    """
    with leased(request, point, "trainer") as resource:
        yield cast(Trainer, resource)
