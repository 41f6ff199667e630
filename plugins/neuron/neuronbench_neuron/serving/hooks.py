"""What the plugin's hooks do for servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from neuronbench import Gate, Point, Record, Resource, Unsupported
from neuronbench_neuron.serving import endpoint
from neuronbench_neuron.serving.server import NeuronServer


def check_point(point: Point, session: Any) -> Unsupported | None:
    """Why the requests of a point do not fit the server it asks for; None when they do."""
    if session.settings.endpoint or point.get("model") is None:
        return None
    info = session.plugins.provider_for("endpoint", point.backend)
    provider = session.plugins.provider(info.name) if info is not None else None
    if not isinstance(provider, endpoint.NeuronServingProvider):
        return None
    reason = endpoint.point_refused(point, session.plugins.backend(point.backend), provider, session.settings)
    return Unsupported(reason=reason) if reason else None


@contextmanager
def watched(resource: Resource, record: Record) -> Iterator[None]:
    """Look at the compile caches before and after a load, and record what happened in them.

    A single window has a gate of its own for what happened inside it; where a record has many loads (a search for a
    rate) this is the one that marks it.
    """
    if not isinstance(resource, NeuronServer) or not resource.caches.hold_something():
        yield
        return
    before = resource.caches.look()
    yield
    happened = resource.caches.since(before)
    compiled = sum(delta.compiles for delta in happened)
    record.gate(
        Gate(
            id="compiled_under_load",
            passed=compiled == 0,
            observed=compiled,
            limit=0,
            unit="graphs",
            severity="provisional",
            message="graphs were compiled between the first request of this load and its last: a size that no request "
            "before had; measure again, now that they are cached"
            if compiled
            else "",
        )
    )
