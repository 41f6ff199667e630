"""Percentiles with bounds that assume nothing about the distribution.

A percentile is the nearest rank on exact data: the ⌈np⌉-th smallest of `n` values, an observation and not a blend of
two. Its bounds are order statistics as well: how many of `n` independent values lie below the true quantile is
Binomial(n, p), which says between which two of them it lies at a given confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

CONFIDENCE: Final = 0.95


def _exact(p: float) -> float:
    if not 0 < p < 1:
        raise ValueError(f"p: expected a share between 0 and 1, found {p!r}")
    return p


def rank(n: int, p: float) -> int:
    """Nearest rank ⌈np⌉, from 1.

    `p` is taken as the decimal it is written as: 0.07 × 100 is 7, although the product of the floats is a little more.
    """
    from fractions import Fraction

    return max(math.ceil(n * Fraction(repr(_exact(p)))), 1)


def needed(p: float) -> int:
    """Fewest observations for which the nearest rank of `p` is not simply the largest: 2, 10, 100 for p50, p90, p99."""
    from fractions import Fraction

    return math.ceil(1 / (1 - Fraction(repr(_exact(p)))))


def percentile(values: Sequence[float] | npt.NDArray[Any], p: float, infinite: int = 0) -> float | None:
    """The ⌈np⌉-th smallest of `values` and `infinite` further ones at +∞.

    None when there is no observation, `inf` when the rank falls on one of the infinite ones.
    """
    import numpy as np

    data = np.asarray(values)
    n = len(data) + infinite
    if n == 0:
        return None
    k = rank(n, p)
    if k > len(data):
        return math.inf
    return float(np.partition(data, k - 1)[k - 1])


class Bounds(NamedTuple):
    """Ranks (from 1) of the order statistics that bound a quantile; None where `n` observations give no such bound."""

    low: int | None
    high: int | None


def bounds(n: int, p: float, confidence: float = CONFIDENCE) -> Bounds:
    """Ranks between which the `p` quantile lies with at least `confidence`, each side with half the remainder.

    The lower is the largest `l` with P(Binomial(n, p) < l) ≤ α/2, the upper the smallest `u` with P(Binomial(n, p) ≥ u)
    ≤ α/2 (David & Nagaraja, Order Statistics, 3rd ed., section 7.1).
    """
    from scipy.special import bdtr, bdtrc

    _exact(p)
    tail = (1 - _exact(confidence)) / 2
    low = _first(0, n + 1, lambda k: bdtr(k, n, p) > tail) if n else 0  # P(X ≤ k) = P(X < k + 1)
    high = _first(1, n + 1, lambda k: bdtrc(k - 1, n, p) <= tail) if n else 1
    return Bounds(low if 1 <= low <= n else None, high if high <= n else None)


def bounded_from(p: float, confidence: float = CONFIDENCE) -> int:
    """Fewest observations that give the `p` quantile an upper bound: 368 for p99 at 95 %."""
    tail = (1 - _exact(confidence)) / 2
    n = math.ceil(math.log(tail) / math.log(_exact(p)))
    return n if p**n <= tail else n + 1


def _first(start: int, stop: int, holds: Any) -> int:
    """Smallest k in [start, stop) for which the monotone predicate holds; `stop` when none does."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


class Quantile(NamedTuple):
    """A percentile as it may be quoted."""

    value: float | None
    """None when missing or unbounded; `note` says which."""
    low: float | None
    high: float | None
    n: int
    note: str


def quantile(
    values: npt.NDArray[Any], p: float, infinite: int = 0, *, confidence: float = CONFIDENCE, independent: bool = True
) -> Quantile:
    """Percentile of sorted `values` and `infinite` failures, with bounds, or the reason why there is none.

    Fewer than `needed(p)` observations give no value: the nearest rank would be the largest observation, whatever `p`
    says. `independent=False` leaves the bounds out, for observations that come in correlated groups.
    """
    n = len(values) + infinite
    name = f"p{100 * p:g}"
    if n < needed(p):
        return Quantile(None, None, None, n, f"{name} needs {needed(p)} observations, found {n}")

    def at(k: int | None) -> float | None:
        return float(values[k - 1]) if k is not None and k <= len(values) else None

    k = rank(n, p)
    low, high = bounds(n, p, confidence) if independent else Bounds(None, None)
    value = at(k)
    notes = []
    if value is None:
        notes.append(f"unbounded: rank {k} of {n} falls on one of {infinite} failures")
    if independent and high is None:
        notes.append(f"no upper bound below {bounded_from(p, confidence)} observations")
    elif high is not None and high > len(values) and value is not None:
        notes.append(f"upper bound falls on one of {infinite} failures")
    return Quantile(value, at(low), at(high), n, "; ".join(notes))


def mean_interval(batches: Sequence[float] | npt.NDArray[Any], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Interval of a long-run mean from means of successive equal stretches of one run (Student's t over batch means).

    Neighbours that are still alike (positive lag-one correlation r) carry less than they seem to: the variance is
    multiplied by (1 + r)/(1 − r), the factor of a first-order autoregression. Simulated on closed loops of 1 to 64 and
    Poisson arrivals with batches of two typical requests, 92 to 100 % of nominal 95 % intervals hold the truth.
    """
    import numpy as np
    from scipy.special import stdtrit

    data = np.asarray(batches, dtype=np.float64)
    if len(data) < 2:
        raise ValueError(f"batches: expected at least 2, found {len(data)}")
    mean = float(data.mean())
    left = data - mean
    squares = float((left**2).sum())
    variance = squares / (len(data) - 1) / len(data)
    if squares > 0:
        alike = min(max(float((left[1:] * left[:-1]).sum()) / squares, 0.0), 0.9)
        variance *= (1 + alike) / (1 - alike)
    half = float(stdtrit(len(data) - 1, (1 + _exact(confidence)) / 2)) * math.sqrt(variance)
    return mean - half, mean + half


# --------------------------------------------------------------------------------------------------------------------
# limits on a percentile: how many observations settle them

SLO_CONFIDENCE: Final = 0.99


def under_needed(over: int, p: float, confidence: float = SLO_CONFIDENCE) -> int:
    """Fewest observations within a limit which, with `over` beyond it, show that the `p` quantile is within it.

    The rule of MLPerf's early stopping without tolerance: the smallest h with I_p(h, over + 1) ≤ 1 − confidence, which
    is the chance to see so few beyond the limit if the share within it were only p (mlcommons/inference, LoadGen).
    459 for p99 and none beyond, 661 for one.
    """
    from scipy.special import betainc

    tail = 1 - _exact(confidence)
    high = 64
    while betainc(high, over + 1, _exact(p)) > tail:
        high *= 2
    return _first(1, high + 1, lambda h: betainc(h, over + 1, p) <= tail)


def early_stopping_estimate(
    values: npt.NDArray[Any], p: float, infinite: int = 0, *, confidence: float = SLO_CONFIDENCE
) -> Quantile:
    """MLPerf's estimate of a percentile: the smallest value of which these observations show that the `p` quantile is
    within it, at `confidence`. `values` are sorted, `infinite` further ones are at +∞."""
    n = len(values) + infinite
    over = _first(0, n + 1, lambda t: under_needed(t, p, confidence) + t > n) - 1
    name = f"p{100 * p:g}"
    if over < 1:
        needs = under_needed(1, p, confidence) + 1
        return Quantile(None, None, None, n, f"{name} needs {needs} observations for an estimate, found {n}")
    k = n - over  # rank of the largest that is not among the `over` beyond
    if k > len(values):
        return Quantile(None, None, None, n, f"unbounded: falls on one of {infinite} failures")
    return Quantile(float(values[k - 1]), None, None, n, f"{over} of {n} beyond")


class SloTest(NamedTuple):
    """What counts of observations within and beyond a limit say about it."""

    verdict: str
    """`met`, `missed` or `undecided`."""
    more: int
    """Undecided: how many more within the limit, and none beyond, would show that it is met."""


def slo_test(within: int, beyond: int, p: float, confidence: float = SLO_CONFIDENCE) -> SloTest:
    """Whether the share within a limit is at least `p`, by a one-sided exact test either way."""
    from scipy.special import bdtr

    needs = under_needed(beyond, p, confidence)
    if within >= needs:
        return SloTest("met", 0)
    if beyond and bdtr(within, within + beyond, p) <= 1 - confidence:
        return SloTest("missed", 0)
    return SloTest("undecided", needs - within)
