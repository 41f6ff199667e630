"""A compiled classifier of texts: the encoder and its head, one row of scores per text."""

import neuronbench as nb
from neuronbench import accuracy


@nb.bench(lane="encoder", grid="encoder/classification")
def bench_classification_accuracy(compiled_model, measure):
    """Its labels beside those of the same weights in fp32, not compiled, of tokens drawn from a seed."""
    measure.accuracy(compiled_model, accuracy.drawn(compiled_model, 100), measure=accuracy.Labels())


@nb.bench(lane="encoder", grid="encoder/classification")
def bench_classification(compiled_model, measure, point):
    """Latency on one copy."""
    measure.latency(compiled_model, calls=point["calls"])
