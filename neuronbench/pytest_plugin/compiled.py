"""The fixture `compiled_model`: a thin lease on a model compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from neuronbench.model import Point
from neuronbench.protocols import CompiledModel
from neuronbench.pytest_plugin.benchmark_clock import worker_clock
from neuronbench.pytest_plugin.fixtures import leased


@pytest.fixture
def compiled_model(request: pytest.FixtureRequest, point: Point) -> Iterator[CompiledModel]:
    """A compiled model, loaded and verified; shared by all points that need the same one.

    `measure.latency(compiled_model, calls=...)` and `measure.throughput(compiled_model, seconds=...)` time it;
    `compiled_model.call()` is one call, whose time pytest-benchmark's `benchmark` fixture sees as the worker saw it.
    """
    with leased(request, point, "compiled_model") as resource:
        model = cast(CompiledModel, resource)
        previous = getattr(model, "clock", None)
        if previous is not None:
            model.clock = worker_clock.advance  # type: ignore[attr-defined]
        try:
            yield model
        finally:
            if previous is not None:
                model.clock = previous  # type: ignore[attr-defined]
