"""A compiled encoder called in a loop: latency, throughput of copies side by side, and whether it still agrees."""

import neuronbench as nb


@nb.bench(lane="encoder", grid="encoder/latency")
def bench_latency(compiled_model, measure, point):
    """One call after the other on one copy of the model."""
    measure.latency(compiled_model, calls=point["calls"])


@nb.bench(lane="encoder", grid="encoder/throughput")
def bench_throughput(compiled_model, measure, point):
    """Data parallel: one copy of the model per core, each calling without pauses."""
    workers = None if point["workers"] == "all" else point["workers"]
    measure.throughput(compiled_model, seconds=point["window_s"], workers=workers)


@nb.bench(lane="encoder", grid="encoder/agreement")
def bench_agreement(compiled_model, measure, point):
    """A fast graph can be wrong: its outputs beside those of the same weights in fp32, not compiled."""
    measure.agreement(compiled_model, compiled_model.batch(seed=7))
    measure.check("max_abs_err", at_most=point["tolerance"])
