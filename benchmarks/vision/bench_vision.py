"""Image models: a classifier, and the towers of CLIP, each for itself."""

import neuronbench as nb


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
