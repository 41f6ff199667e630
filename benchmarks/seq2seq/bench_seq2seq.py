"""Text to text: encoder and greedy decoder, a fixed number of tokens a call."""

import neuronbench as nb


@nb.bench(lane="seq2seq", grid="seq2seq/latency")
def bench_latency(compiled_model, measure, point):
    """One generation after the other on one copy; per token, too."""
    measure.latency(compiled_model, calls=point["calls"])


@nb.bench(lane="seq2seq", grid="seq2seq/throughput")
def bench_throughput(compiled_model, measure, point):
    """Copies side by side: tokens per second, input and output together and output alone."""
    workers = None if point["workers"] == "all" else point["workers"]
    measure.throughput(compiled_model, seconds=point["window_s"], workers=workers)
