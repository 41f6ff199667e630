"""The arithmetic of a comparison: two samples of repeats, their difference, its interval, and what it would take.

Values are compared as differences of logarithms (`log`), or as they are where they can be zero or are shares
(`difference`). Everything here is about positions on that scale; nothing knows of metrics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scipy.special import nctdtr, ndtr, stdtr, stdtrit

CONFIDENCE: Final = 0.95
ALPHA: Final = 1 - CONFIDENCE
POWER: Final = 0.8
"""Chance of finding a difference that the detectable difference and the number of further repeats are meant for."""
REPEATS_LIMIT: Final = 50
"""No advice to measure more often than this."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What the interval rests on: the variance of one repeat on each side, and how well it is known."""

    base: float
    head: float
    """Variances of one value, on the scale of the comparison."""
    df: float
    """Degrees of freedom of the standard error."""
    source: str
    """`repeats`, `repeats of A`, `repeats of B`, or `history`."""


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Head minus base, with its interval."""

    difference: float
    se: float
    df: float
    low: float
    high: float
    p: float
    """Two-sided, for no difference at all."""
    spread: Spread


def variance(values: Sequence[float]) -> float:
    """Of a sample, with n − 1; the same whatever the order of the values."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def of_repeats(base: Sequence[float], head: Sequence[float]) -> Spread | None:
    """Spread from the repeats themselves; None when neither side has two.

    Two or more on both sides: Welch's, each side its own variance, with Welch–Satterthwaite degrees of freedom. Where
    one side is a single repeat, it is taken to vary like the other one.
    """
    n, m = len(base), len(head)
    if n > 1 and m > 1:
        a, b = variance(base), variance(head)
        return Spread(base=a, head=b, df=satterthwaite(a, n, b, m), source="repeats")
    if n > 1 and m == 1:
        a = variance(base)
        return Spread(base=a, head=a, df=n - 1, source="repeats of A")
    if m > 1 and n == 1:
        b = variance(head)
        return Spread(base=b, head=b, df=m - 1, source="repeats of B")
    return None


def satterthwaite(a: float, n: int, b: float, m: int) -> float:
    """Degrees of freedom of Welch's t (Welch 1947): (a/n + b/m)² / [(a/n)²/(n−1) + (b/m)²/(m−1)]."""
    top = max(a, b)
    if top <= 0:
        return n + m - 2
    u, v = a / top / n, b / top / m  # scaled, so that no square underflows
    return (u + v) ** 2 / (u * u / (n - 1) + v * v / (m - 1))


def contrast(base: Sequence[float], head: Sequence[float], spread: Spread) -> Contrast:
    """Difference of the means with its interval, by Student's t with the degrees of freedom of `spread`."""
    difference = math.fsum(head) / len(head) - math.fsum(base) / len(base)
    se = math.sqrt(spread.base / len(base) + spread.head / len(head))
    if se == 0:
        p = 1.0 if difference == 0 else 0.0
        return Contrast(
            difference=difference, se=0.0, df=spread.df, low=difference, high=difference, p=p, spread=spread
        )
    half = float(stdtrit(spread.df, 1 - ALPHA / 2)) * se
    p = 2 * float(stdtr(spread.df, -abs(difference) / se))
    return Contrast(
        difference=difference, se=se, df=spread.df, low=difference - half, high=difference + half, p=p, spread=spread
    )


# --------------------------------------------------------------------------------------------------------------------
# many at once


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given: rejecting those ≤ q keeps the share of false ones ≤ q on average.

    The step-up procedure of Benjamini and Hochberg (1995): min over k ≥ rank of p₍ₖ₎·m/k.
    """
    m, least = len(p), 1.0
    adjusted = [1.0] * m
    for rank, index in zip(range(m, 0, -1), sorted(range(m), key=p.__getitem__, reverse=True), strict=True):
        least = min(least, p[index] * m / rank)
        adjusted[index] = least
    return adjusted


# --------------------------------------------------------------------------------------------------------------------
# power


def welch_df(n: int, m: int) -> float:
    """Degrees of freedom of Welch's t on average, when both sides vary alike: (n + m − 2)·h/(h + 1), h harmonic mean.

    Satterthwaite's formula over the two sample variances, whose share of the sum has the variance 1/(4n) for n = m.
    """
    h = 2 * n * m / (n + m)
    return (n + m - 2) * h / (h + 1)


def chance_of_change(true: float, sd: float, n: int, m: int, band: float) -> float:
    """Chance that a true difference is called one: t beyond its limit, and the difference seen beyond the band.

    From the non-central t with the degrees of freedom that Welch's has on average (`welch_df`); the two conditions help
    each other, so that their product is a lower bound. Before any correction for many comparisons.
    """
    if n < 2 or m < 2:
        return 0.0
    size = abs(true)
    if sd <= 0:
        return float(size > band)
    se, df = sd * math.sqrt(1 / n + 1 / m), welch_df(n, m)
    delta = size / se
    beyond = float(ndtr((size - band) / se))
    if delta > 30:  # the non-central t is not evaluated that far out, and there is nothing to say
        return beyond
    return beyond * (1 - float(nctdtr(df, delta, float(stdtrit(df, 1 - ALPHA / 2)))))


def chance_of_equivalence(true: float, sd: float, n: int, m: int, band: float) -> float:
    """Chance that the interval lies inside the band, taking its width as known."""
    if n < 2 or m < 2:
        return 0.0
    size = abs(true)
    if sd <= 0:
        return float(size <= band)
    se = sd * math.sqrt(1 / n + 1 / m)
    room = band - float(stdtrit(welch_df(n, m), 1 - ALPHA / 2)) * se
    if room <= 0:
        return 0.0
    return max(float(ndtr((room - size) / se) - ndtr((-room - size) / se)), 0.0)


def detectable(sd: float, n: int, m: int, band: float) -> float | None:
    """The smallest true difference that is found with a chance of `POWER`; None below two repeats a side."""
    if n < 2 or m < 2:
        return None
    if sd <= 0:
        return band
    found = _detectable(float(f"{band / sd:.3g}"), n, m)
    return None if found is None else found * sd


@functools.lru_cache(maxsize=16_384)
def _detectable(band: float, n: int, m: int) -> float | None:
    """In units of the standard deviation, of which there are few to three digits."""
    low, high = 0.0, band + 40.0
    if chance_of_change(high, 1.0, n, m, band) < POWER:
        return None
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if chance_of_change(middle, 1.0, n, m, band) >= POWER else (middle, high)
    return high


def repeats_needed(true: float, sd: float, band: float) -> int | None:
    """Repeats a side that would settle it with a chance of `POWER`, were the difference just as large as it seems.

    Settled is a change or an equivalence. None when more than `REPEATS_LIMIT` would be needed: a difference as large as
    the band itself is neither, however often it is measured.
    """

    def settled(n: int) -> bool:
        return chance_of_change(true, sd, n, n, band) + chance_of_equivalence(true, sd, n, n, band) >= POWER

    high = 2
    while not settled(high):
        if high >= REPEATS_LIMIT:
            return None
        high = min(2 * high, REPEATS_LIMIT)
    low = max(high // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if settled(middle) else (middle, high)
    return high
