"""Speculative decoding: what it gains, what it costs, and that it changes nothing."""

from typing import Any

import neuronbench as nb
from neuronbench_spec_decode.run import ladder, planned


@nb.bench(lane="spec_decode", grid="spec_decode/ladder", leases=("endpoint",))
def bench_ladder(measure: Any, point: nb.Point) -> None:
    """Draft lengths up and down, each beside k = 0, one request at a time; void unless every token is that of k = 0."""
    ladder(measure, planned(point))
