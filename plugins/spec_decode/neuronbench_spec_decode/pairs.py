"""Speed-ups as pairs: the same prompt, its own baseline, decoding alone and the whole request side by side.

A speed-up of decoding alone says what speculation does, and one of the whole request what a user gets: the prompt is
read as slowly as before. Neither is ever given without the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A geometric mean over prompts, with the interval of its logarithm by Student's t; None where n is below 2."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """Baseline over candidate: above 1 is faster."""

    decode: Ratio
    e2e: Ratio


def ratio(baseline: Mapping[str, Sequence[float]], candidate: Mapping[str, Sequence[float]]) -> Ratio:
    """Of times by prompt, each a list over rounds: the mean of a prompt's rounds is what is divided.

    Raises `ValueError` for prompts that only one side has: they would be no pairs.
    """
    if baseline.keys() != candidate.keys() or not baseline:
        odd = sorted(baseline.keys() ^ candidate.keys())
        raise ValueError(f"expected the same prompts on both sides, found {', '.join(odd) or 'none'} on one only")
    logs = [math.log(fmean(baseline[name]) / fmean(candidate[name])) for name in sorted(baseline)]
    middle = fmean(logs)
    if len(logs) < 2:
        return Ratio(value=math.exp(middle), low=None, high=None, n=len(logs))
    from scipy.special import stdtrit

    half = float(stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)) * stdev(logs) / math.sqrt(len(logs))
    return Ratio(value=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half), n=len(logs))
