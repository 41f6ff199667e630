"""`@nb.bench`: sugar that sets marks, and nothing else.

A bare `bench_*` function that uses the fixtures works too; the decorator names its lane, its grid, and what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from neuronbench.model import Json

F = TypeVar("F", bound=Callable[..., object])

MARK = "neuronbench"
"""The pytest mark that carries what `bench` was given."""


def bench(
    *,
    lane: str | None = None,
    grid: str | None = None,
    backends: Sequence[str] | None = None,
    params: dict[str, Json] | None = None,
    slo: dict[str, float] | None = None,
    leases: Sequence[str] = (),
) -> Callable[[F], F]:
    """Mark a function as a benchmark.

    `lane`: family whose metric vocabulary it uses (default: from its fixtures). `grid`: name of a grid file below
    `benchmarks/grids`, such as `"serving/short"`. `backends`: names it is meant for (default: all that are known).
    `params`: shared settings of every point, below those of the grid. `slo`: limits per request in milliseconds by
    metric id, such as `{"ttft": 500, "tpot": 50}`, for goodput. `leases`: kinds of resource that it leases itself with
    `measure.lease`, so that its points are skipped where one of them cannot be had.
    """
    import pytest

    def decorate(function: F) -> F:
        marked: F = pytest.mark.neuronbench(
            lane=lane,
            grid=grid,
            backends=tuple(backends) if backends else None,
            params=params or {},
            slo=slo or {},
            leases=tuple(leases),
        )(function)
        return marked

    return decorate
