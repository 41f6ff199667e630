"""Load from many nodes in benchmarks: with `NEURONBENCH_LOAD_NODES=4`, what `measure.serve` sends comes from four."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Final

from neuronbench import hookimpl

VARIABLE: Final = "NEURONBENCH_LOAD_NODES"
_made: dict[int, Any] = {}


def asked() -> int | None:
    """How many nodes; 0 for all that are meant for load, None for this host alone. Raises `ValueError`."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdigit():
        raise ValueError(
            f"{VARIABLE}: expected a whole number of nodes, 0 for all that are meant for load; found {text!r}"
        )
    return int(text)


@hookimpl(wrapper=True)
def measuring(record: Any) -> Generator[None, Any, Any]:
    """Nothing is connected to before something is sent: a point that sends no load never hears of a cluster."""
    nodes = asked()
    if nodes is None:
        return (yield)
    from neuronbench.load import crew as crews
    from neuronbench_ray.load.crew import made  # signals are pytest's

    if nodes not in _made:
        _made[nodes] = made(nodes)
    with crews.using(_made[nodes]):
        return (yield)


@hookimpl
def session_finished() -> None:
    while _made:
        _made.popitem()[1].close()
