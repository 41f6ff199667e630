"""Mixtures of experts: what routing costs and saves under load, and where tokens are sent."""

from typing import Any

import neuronbench as nb
from neuronbench_moe.serving import serve
from neuronbench_moe.study import study


@nb.bench(lane="moe", grid="moe/serving", leases=("moe_model",))
def bench_serving(measure: Any, point: nb.Point) -> None:
    """A mixture under steady load, beside dense models of equal active and of equal total parameters."""
    serve(measure, point)


@nb.bench(lane="moe", grid="moe/routing", leases=("moe_router",))
def bench_routing(measure: Any, point: nb.Point) -> None:
    """Load of the experts, by text and by random tokens; what batches touch and capacities drop. Nothing is timed."""
    study(measure, point)
