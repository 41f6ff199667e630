"""Speech to text: sound in, tokens out, greedy; the spectrogram is inside the timer.

Performance of an artifact stands on its accuracy, which comes first: without it, it is provisional.
"""

import neuronbench as nb
from neuronbench import accuracy


@nb.bench(lane="asr", grid="asr/latency")
def bench_accuracy(compiled_model, measure):
    """Its tokens beside those of the same weights in fp32, not compiled, no cache; drawn sound has no words."""
    measure.accuracy(compiled_model, accuracy.drawn(compiled_model, 16), measure=accuracy.Tokens())


@nb.bench(lane="asr", grid="asr/latency")
def bench_latency(compiled_model, measure, point):
    """One window of sound after the other on one copy."""
    measure.latency(compiled_model, calls=point["calls"])


@nb.bench(lane="asr", grid="asr/throughput")
def bench_throughput(compiled_model, measure, point):
    """Copies side by side: how many seconds of sound a second."""
    workers = None if point["workers"] == "all" else point["workers"]
    measure.throughput(compiled_model, seconds=point["window_s"], workers=workers)
