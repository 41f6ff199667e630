"""A `torch_xla` that is not one: the documented calls that trainers on Neuron use, on torch's CPU, for a made-up host.

Tensors are computed on the CPU when they are traced; what the device would take for them is slept by a thread, one
execution after the other, while the host goes on. A timer that does not wait for the device sees the host alone, as
with the real one. At the first execution of a graph there is a compile, unless the compile cache has it. With
NEURON_EXTRACT_GRAPHS_ONLY=1 graphs are only collected.

| variable | what it does |
|---|---|
| `NEURONBENCH_FAKE_EXECUTION_MS` | what a forward and backward pass takes on the device (20); an optimizer takes a
tenth |
| `NEURONBENCH_FAKE_COMPILE_MS` | what compiling a graph takes (100) |
| `NEURONBENCH_FAKE_LAZY_BARRIER` | `1`: barriers return at once, as with a runtime that lies |
| `NEURONBENCH_FAKE_NATIVE` | `1`: the device is torch's own (`torch.neuron`): calls are handed over at once, and only
`torch.neuron.synchronize` and values that are fetched wait; `hidden`: the same, without `torch.neuron` |
| `NEURONBENCH_FAKE_RECOMPILE` | `1`: every step has a graph of its own |
"""

from __future__ import annotations

from . import _device, runtime
from .core import xla_model

__version__ = "2.8.0"

__all__ = ["__version__", "device", "runtime", "sync", "xla_model"]


def device(index: int | None = None) -> object:
    return xla_model.xla_device(index)


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Hand over what was traced; with `wait`, return when it has been executed."""
    xla_model.mark_step(wait, reset_scope)


_device.begin()
