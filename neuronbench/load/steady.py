"""Whether the window was a steady state. "None found" is an answer.

Two looks at a series of equal bins. MSER (White, Simulation 69, 1997) finds the beginning that is best left out: the
cut that makes the standard error of the rest's mean smallest. A rank test for trend finds what grows or shrinks
throughout. Both only count when the change they see is significant and larger than `CHANGE_LIMIT`: noise has trends
too, but small ones.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

CHANGE_LIMIT: Final = 0.05
TREND_P: Final = 0.01
CUT_LIMIT: Final = 0.25
CUT_P: Final = 0.001
LEAST_BINS: Final = 20
_BATCH: Final = 5
_TREND_POINTS: Final = 20

Series = npt.NDArray[Any]


class Steady(NamedTuple):
    """Verdict on one series."""

    steady: bool | None
    """None when the series is too short to tell."""
    cut: float
    """Share of the window, from its beginning, that is best left out."""
    change: float
    """Mean of the last third over mean of the first, minus one."""
    trend_p: float
    """Chance of a trend like this in a series that has none."""
    why: str


def mser(series: Series, batch: int = _BATCH) -> float:
    """Share of the series, from its beginning, that MSER leaves out; searched over its first half."""
    means = batch_means(series, max(min(batch, len(series) // LEAST_BINS), 1))
    m = len(means)
    if m < 4:
        return 0.0
    best, cut = math.inf, 0
    # sums from the end, so that every cut is judged in one pass
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    for d in range(m // 2 + 1):
        k = m - d
        error = max(squares[d] - total[d] ** 2 / k, 0.0) / k**2
        if error < best - 1e-12 * abs(best if math.isfinite(best) else 0.0):
            best, cut = error, d
    return cut / m


def batch_means(series: Series, size: int) -> Series:
    whole = len(series) // size * size
    means: Series = np.asarray(series[:whole], dtype=np.float64).reshape(-1, size).mean(axis=1)
    return means


def trend(series: Series) -> float:
    """p-value of a monotone trend over at most 39 batch means: Mann and Kendall's test, ties accounted for."""
    means = batch_means(series, max(len(series) // _TREND_POINTS, 1))
    if len(means) < 4 or float(np.ptp(means)) == 0:
        return 1.0
    m = len(means)
    score = float(np.sign(means[None, :] - means[:, None])[np.triu_indices(m, 1)].sum())
    ties = np.unique(means, return_counts=True)[1].astype(float)
    variance = (m * (m - 1) * (2 * m + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return 1.0
    return math.erfc(max(abs(score) - 1, 0) / math.sqrt(2 * variance))


def differ(begin: Series, rest: Series) -> bool:
    """Whether the means differ beyond noise; strict, because the cut was chosen to make them differ."""
    if len(begin) < 2 or len(rest) < 2:
        return False
    if float(np.ptp(begin)) == 0 and float(np.ptp(rest)) == 0:
        return bool(begin[0] != rest[0])
    from scipy.special import stdtr

    a, b = (float(np.var(part, ddof=1)) / len(part) for part in (begin, rest))
    t = abs(float(np.mean(begin)) - float(np.mean(rest))) / math.sqrt(a + b)
    freedom = (a + b) ** 2 / (a**2 / (len(begin) - 1) + b**2 / (len(rest) - 1))  # Welch
    return 2 * float(stdtr(freedom, -t)) < CUT_P


def judge(series: Series, name: str) -> Steady:
    """Verdict on a series of equal bins, such as tokens per second or requests in flight."""
    n = len(series)
    if n < LEAST_BINS or float(np.sum(series)) == 0:
        return Steady(None, 0.0, 0.0, 1.0, f"{name}: too short a window to tell ({n} bins, {LEAST_BINS} needed)")
    third = n // 3
    first, last = float(np.mean(series[:third])), float(np.mean(series[-third:]))
    change = (last - first) / first if first else math.inf
    p = trend(series)
    cut = mser(series)
    k = round(cut * n)
    shift = 0.0
    if k:
        rest = float(np.mean(series[k:]))
        shift = abs(float(np.mean(series[:k])) - rest) / rest if rest else math.inf
    if p < TREND_P and abs(change) > CHANGE_LIMIT:
        word = "grows" if change > 0 else "falls"
        return Steady(False, cut, change, p, f"{name} {word} by {abs(change):.0%} over the window")
    if cut > CUT_LIMIT and shift > CHANGE_LIMIT and differ(series[:k], series[k:]):
        return Steady(
            False, cut, change, p, f"{name}: the first {cut:.0%} of the window differ from the rest by {shift:.0%}"
        )
    return Steady(True, cut, change, p, f"{name} is steady")
