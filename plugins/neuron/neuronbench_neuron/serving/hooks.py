"""What the plugin's hooks do for servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neuronbench import Backend, Gate, Point, Record, Resource, Unsupported, models
from neuronbench_neuron.serving import endpoint, generations
from neuronbench_neuron.serving.server import NeuronServer
from neuronbench_neuron.serving.settings import prompt_refused

if TYPE_CHECKING:
    from neuronbench.config import Settings


def check_point(point: Point, session: Any) -> Unsupported | None:
    """Why the requests of a point do not fit the server it asks for; None when they do."""
    if session.settings.endpoint or point.get("model") is None:
        return None
    info = session.plugins.provider_for("endpoint", point.backend)
    provider = session.plugins.provider(info.name) if info is not None else None
    if not isinstance(provider, endpoint.NeuronServingProvider):
        return None
    reason = point_refused(point, session.plugins.backend(point.backend), provider, session.settings)
    return Unsupported(reason=reason) if reason else None


def point_refused(point: Point, backend: Backend, provider: endpoint.NeuronServingProvider, settings: Settings) -> str:
    """Why the requests of a point do not fit the server it asks for; empty when they do, or nobody knows."""
    prompt, output = point.get("input_tokens"), point.get("output_tokens")
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in (prompt, output)):
        return ""
    asked = provider.spec(point, backend, settings).settings
    try:
        generation = generations.of(backend.stack("serving", settings).packages)
    except LookupError:
        return ""
    length = asked["max_model_len"] or models.metadata(asked["model"], settings).max_model_len
    return prompt_refused(asked, generation, prompt=prompt, output=output, length=length)


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
