"""The same model through pytest-benchmark's own fixture, on the worker's clock: its table, JSON and comparisons."""

import neuronbench as nb


@nb.bench(lane="encoder", grid="encoder/call")
def bench_call(compiled_model, benchmark):
    """Single calls, as many as pytest-benchmark finds enough."""
    benchmark(compiled_model.call)
