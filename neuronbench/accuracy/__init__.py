"""Whether a fast model still answers right: samples, measures, the rule, and checks of outputs.

A benchmark says `measure.accuracy(compiled_model, samples, measure=accuracy.Labels())`. Candidate and reference (fp32,
not compiled, same host) answer the same samples under the same protocol, or they are not compared at all. The README
beside this file has the rule and the gates.
"""

from __future__ import annotations

from neuronbench.accuracy.compare import Comparison, compare
from neuronbench.accuracy.draws import drawn
from neuronbench.accuracy.measures import Labels, Measure, Scores, Similarity, Tensors, Tokens, ZeroShot
from neuronbench.accuracy.rule import Verdict, judge
from neuronbench.accuracy.samples import Answers, Incomparable, Samples
from neuronbench.accuracy.texts import decode, encode
from neuronbench.accuracy.words import WordErrors

__all__ = [
    "Answers",
    "Comparison",
    "Incomparable",
    "Labels",
    "Measure",
    "Samples",
    "Scores",
    "Similarity",
    "Tensors",
    "Tokens",
    "Verdict",
    "WordErrors",
    "ZeroShot",
    "compare",
    "decode",
    "drawn",
    "encode",
    "judge",
]
