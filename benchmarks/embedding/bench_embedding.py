"""Sentence embeddings: pooled over the real tokens, of length 1.

Performance of an artifact stands on its accuracy, which comes first: without it, it is provisional.
"""

from pathlib import Path

import neuronbench as nb
from neuronbench import accuracy

SENTENCES = Path(__file__).parent.parent / "encoder" / "sentences.tsv"


@nb.bench(lane="embedding", grid="embedding/latency")
def bench_accuracy(compiled_model, measure):
    """The nearest of all other sentences is the one of the same meaning, as often as with fp32, not compiled."""
    pairs = [line.split("\t") for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    sentences = [sentence for pair in pairs for sentence in pair]
    partners = [index ^ 1 for index in range(len(sentences))]
    samples = accuracy.encode(compiled_model, sentences, name="sentence pairs", truth=partners)
    measure.accuracy(compiled_model, samples, measure=accuracy.Similarity(output="embedding"))
    measure.check("rank_agreement", at_least=0.99)


@nb.bench(lane="embedding", grid="embedding/latency")
def bench_latency(compiled_model, measure, point):
    """One batch after the other on one copy."""
    measure.latency(compiled_model, calls=point["calls"])


@nb.bench(lane="embedding", grid="embedding/throughput")
def bench_throughput(compiled_model, measure, point):
    """Copies side by side: sentences and tokens per second."""
    workers = None if point["workers"] == "all" else point["workers"]
    measure.throughput(compiled_model, seconds=point["window_s"], workers=workers)
