"""A `torch_neuronx` that is not one: the documented calls of the real package, on torch's CPU, for a made-up host.

`trace` gives a ScriptModule that carries a NEFF, saved and loaded by `torch.jit` alone; where this package was not
imported, such a file cannot be loaded, as with the real one. A process that loads one takes all cores it may see, and
is refused where another has one of them. Arguments that the real functions do not have are refused. Nothing here says
how fast or how right a Neuron device is.

It works on a made-up host only (`NEURONBENCH_NEURON_ROOT`). What is to go wrong is ordered by variables:

| variable | what it does |
|---|---|
| `NEURONBENCH_FAKE_COMPILE_ERROR` | `[STATUS:]TEXT`: the compiler says TEXT and ends with STATUS (70) |
| `NEURONBENCH_FAKE_UNSUPPORTED` | names of operators (`aten::linear,...`) that it cannot lower |
| `NEURONBENCH_FAKE_EXEC_MS` | what a call takes on the device at least |
| `NEURONBENCH_FAKE_EXEC_ERROR` | what the runtime says of each call, instead of an answer |
| `NEURONBENCH_FAKE_WRONG` | factor: outputs that are floats come out so much larger, silently |
| `NEURONBENCH_FAKE_TRACE_CACHE` | `1`: traces go through the compile cache, as lazily compiled graphs do |
| `NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS` | the real one's: that many calls return before the device is done |

With calls in flight an output is a tensor whose contents are not there yet; whatever reads it waits. Who times the call
and not the reading times nothing.
"""

from __future__ import annotations

from . import _runtime  # first of all: refuses hosts that are real
from ._compiler import __version__
from ._parallel import DataParallel
from ._placement import (
    async_load,
    dynamic_batch,
    lazy_load,
    move_trace_to_device,
    multicore_context,
    neuron_cores_context,
    set_multicore,
    set_neuron_cores,
)
from ._trace import PartitionerConfig, analyze, trace

_runtime.install()

__all__ = [
    "DataParallel", "PartitionerConfig", "__version__", "analyze", "async_load", "dynamic_batch", "lazy_load",
    "move_trace_to_device", "multicore_context", "neuron_cores_context", "set_multicore", "set_neuron_cores", "trace",
]  # fmt: skip
