"""Image models: a classifier, and the towers of CLIP, each for itself.

Performance of an artifact stands on its accuracy, which comes first: without it, it is provisional.
"""

import neuronbench as nb
from neuronbench import accuracy


@nb.bench(lane="vision", grid="vision/classifier")
def bench_classifier_accuracy(compiled_model, measure):
    """Its scores beside those of the same weights in fp32, not compiled, for drawn pictures."""
    measure.accuracy(compiled_model, accuracy.drawn(compiled_model, 100), measure=accuracy.Tensors())


@nb.bench(lane="vision", grid="vision/clip")
def bench_clip_accuracy(compiled_model, measure):
    """Its vectors beside those of the same weights in fp32, not compiled, for drawn pictures or texts."""
    measure.accuracy(compiled_model, accuracy.drawn(compiled_model, 100), measure=accuracy.Tensors())


@nb.bench(lane="vision", grid="vision/classifier")
def bench_classifier(compiled_model, measure, point):
    """One batch of images after the other on one copy, then copies side by side."""
    measure.latency(compiled_model, calls=point["calls"])
    measure.throughput(compiled_model, seconds=point["window_s"])


@nb.bench(lane="vision", grid="vision/clip")
def bench_clip(compiled_model, measure, point):
    """A tower of CLIP: one batch after the other on one copy, then copies side by side."""
    measure.latency(compiled_model, calls=point["calls"])
    measure.throughput(compiled_model, seconds=point["window_s"])
