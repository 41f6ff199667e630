"""Whether the window was a steady state. "None found" is an answer.

Two looks at a series of equal parts of the window, each long enough to hold several requests one after the other:
shorter ones show the rhythm of requests, and neighbours among them are alike for no other reason than that the same
request is in both. MSER (White, Simulation 69, 1997) finds the beginning that is best left out: the cut that makes the
standard error of the rest's mean smallest. A rank test for trend finds what grows or shrinks throughout. Both only
count when the change they see is significant and larger than `CHANGE_LIMIT`: noise has trends too, but small ones.

Finding nothing is only a verdict where something would have been found: a series whose noise would hide a drift of
`DRIFT_LIMIT` is not evaluable, and says how much longer the window had to be. Simulated with closed loops of 1, 8
and 64 and request times of any spread: at most 5 % false alarms; of true drifts of 20 % in evaluable windows three in
four are found, and a little more than half where noise was only just small enough.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from neuronbench.load.series import LEAST_PARTS, joined, parts

CHANGE_LIMIT: Final = 0.05
DRIFT_LIMIT: Final = 0.2
"""Change over the window that has to be visible through the noise before "steady" is said of a throughput."""
QUEUE_LIMIT: Final = 0.5
"""The same of the requests in flight of an open loop, whose number is noisy by the arrivals' own law."""
TREND_P: Final = 0.005
POWER: Final = 0.9
CUT_LIMIT: Final = 0.25
CUT_P: Final = 0.001
LEAST_POINTS: Final = 10
LEAST_LIVES: Final = 10
"""A window shorter than this many requests, one after the other, shows their rhythm and not the server's state."""
LIVES_PER_POINT: Final = 2
SURGE: Final = 0.5
_SURGE_SIGMAS: Final = 4.0
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
    visible: float = math.inf
    """Smallest change over the window that would have been found nine times in ten."""


def mser(series: Series, batch: int = _BATCH) -> float:
    """Share of the series, from its beginning, that MSER leaves out; searched over its first half."""
    means = batch_means(series, max(min(batch, len(series) // _TREND_POINTS), 1))
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


def visible(series: Series) -> float:
    """Smallest change over the window, as a share of the mean, that the test for trend finds nine times in ten."""
    means = batch_means(series, max(len(series) // _TREND_POINTS, 1))
    n, level = len(means), float(np.mean(means))
    if n < 4 or level == 0:
        return math.inf
    from scipy.special import stdtrit

    x = np.arange(n) - (n - 1) / 2
    left = means - level - x * float((x * means).sum() / (x * x).sum())
    spread = math.sqrt(float((left**2).sum()) / (n - 2))
    far = float(stdtrit(n - 2, 1 - TREND_P / 2) + stdtrit(n - 2, POWER))
    return far * spread * math.sqrt(12 / n) / abs(level)


def judge(series: Series, name: str, *, limit: float = DRIFT_LIMIT) -> Steady:
    """Verdict on a series of equal parts of a window, such as tokens per second or requests in flight.

    `limit`: the change that has to be visible through the noise for "steady" to mean anything.
    """
    n = len(series)
    if n < LEAST_POINTS or float(np.sum(series)) == 0:
        return Steady(None, 0.0, 0.0, 1.0, f"{name}: too short a window to tell ({n} parts, {LEAST_POINTS} needed)")
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
    seen = visible(series[k:] if cut <= CUT_LIMIT else series)  # a short beginning is tolerated, so it is no noise
    if seen > limit:
        why = f"{name}: noise would hide a change of {limit:.0%}"
        return Steady(None, cut, change, p, why, seen)
    return Steady(
        True, cut, change, p, f"{name} is steady (a change of {max(seen, CHANGE_LIMIT):.0%} would show)", seen
    )


def over_lives(series: Series, lives: float, name: str, seconds: float, *, limit: float = DRIFT_LIMIT) -> Steady:
    """`judge` on parts of the window that last `LIVES_PER_POINT` requests one after the other (one in a short window).

    `series`: fine bins of a window of `seconds` that lasts `lives` typical requests. Too few of them, or too much
    noise, is no verdict; `why` says what length would give one.
    """
    if lives < LEAST_LIVES:
        why = (
            f"not evaluable: the window lasts {lives:.1f} typical requests one after the other, {LEAST_LIVES} needed "
            f"({seconds * LEAST_LIVES / lives:.3g} s)"
        )
        return Steady(None, 0.0, math.nan, 1.0, why)
    count = parts(max(lives / LIVES_PER_POINT, LEAST_PARTS))
    assert count is not None
    look = judge(joined(series, count), name, limit=limit)
    if look.steady is not None:
        return look
    if not math.isfinite(look.visible):
        return look._replace(why=f"not evaluable: {look.why}")
    needs = seconds * (look.visible / limit) ** 2
    return look._replace(why=f"not evaluable: {look.why}; a window of about {needs:.3g} s would show it")


def surges(in_flight: Series) -> bool:
    """Whether requests in flight grow by far more than independent arrivals explain, however short the window is.

    Their number is Poisson where requests do not wait for each other, so thirds of a window differ by less than two
    such spreads; a queue that is not worked off exceeds any such limit.
    """
    third = len(in_flight) // 3
    first, last = float(np.mean(in_flight[:third])), float(np.mean(in_flight[-third:]))
    return last > (1 + SURGE) * first and last - first > _SURGE_SIGMAS * math.sqrt(2 * max(first, 1.0))
