"""Text to text: encoder and greedy decoder, a fixed number of tokens a call.

Performance of an artifact stands on its accuracy, which comes first: without it, it is provisional.
"""

import neuronbench as nb
from neuronbench import accuracy


@nb.bench(lane="seq2seq", grid="seq2seq/latency")
def bench_accuracy(compiled_model, measure):
    """Its tokens beside those of the same weights in fp32, not compiled and without any cache, on drawn inputs."""
    measure.accuracy(compiled_model, accuracy.drawn(compiled_model, 16), measure=accuracy.Tokens())


@nb.bench(lane="seq2seq", grid="seq2seq/latency")
def bench_latency(compiled_model, measure, point):
    """One generation after the other on one copy; per token, too."""
    measure.latency(compiled_model, calls=point["calls"])


@nb.bench(lane="seq2seq", grid="seq2seq/throughput")
def bench_throughput(compiled_model, measure, point):
    """Copies side by side: tokens per second, input and output together and output alone."""
    workers = None if point["workers"] == "all" else point["workers"]
    measure.throughput(compiled_model, seconds=point["window_s"], workers=workers)
