"""A compiled classifier of texts: the encoder and its head, one row of scores per text."""

import neuronbench as nb


@nb.bench(lane="encoder", grid="encoder/classification")
def bench_classification(compiled_model, measure, point):
    """Latency on one copy."""
    measure.latency(compiled_model, calls=point["calls"])
