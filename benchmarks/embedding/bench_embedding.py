"""Sentence embeddings: pooled over the real tokens, of length 1."""

import neuronbench as nb


@nb.bench(lane="embedding", grid="embedding/latency")
def bench_latency(compiled_model, measure, point):
    """One batch after the other on one copy."""
    measure.latency(compiled_model, calls=point["calls"])


@nb.bench(lane="embedding", grid="embedding/throughput")
def bench_throughput(compiled_model, measure, point):
    """Copies side by side: sentences and tokens per second."""
    workers = None if point["workers"] == "all" else point["workers"]
    measure.throughput(compiled_model, seconds=point["window_s"], workers=workers)
