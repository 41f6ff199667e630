"""What the plugin's hooks do for compiled models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from neuronbench import Gate, Record, Resource
from neuronbench_neuron import caches
from neuronbench_neuron.compiled.boot import NeuronModel


@contextmanager
def watched(resource: Resource, record: Record) -> Iterator[None]:
    """Look at the compile cache of a model's workers before and after what is measured: nothing is compiled there."""
    if not isinstance(resource, NeuronModel) or resource.compile_cache is None:
        yield
        return
    before = caches.snapshot(resource.compile_cache, "xla")
    yield
    happened = before.delta(caches.snapshot(resource.compile_cache, "xla"))
    graphs = ", ".join((*happened.compiled, *happened.failed, *happened.begun))
    record.gate(
        Gate(
            id="compiled_under_load", passed=not happened.cold, observed=happened.compiles, limit=0, unit="graphs",
            message=f"while it was measured the compiler ran: {graphs}" if happened.cold else "",
        )
    )  # fmt: skip
