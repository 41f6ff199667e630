"""A fast encoder can be wrong: whether it still finds the sentences that mean the same.

Performance of an artifact stands on this: it runs first of all points of its model; without it they are provisional.
"""

from pathlib import Path

import neuronbench as nb
from neuronbench import accuracy

PAIRS = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "sentences.tsv").read_text(encoding="utf-8").splitlines()
]
"""Sentences and another way to say each."""


@nb.bench(lane="encoder", grid="encoder/accuracy")
def bench_accuracy(compiled_model, measure):
    """The nearest of all other sentences is the one of the same meaning, as often as with fp32, not compiled."""
    sentences = [sentence for pair in PAIRS for sentence in pair]
    partners = [index ^ 1 for index in range(len(sentences))]
    samples = accuracy.encode(compiled_model, sentences, name="sentence pairs", truth=partners)
    measure.accuracy(compiled_model, samples, measure=accuracy.Similarity())
    measure.check("rank_agreement", at_least=0.99)
