"""Arrival instants from one seeded generator, and proof that they are what was asked for.

A law gives arrivals of unit rate; a profile is turned into the mean number of arrivals up to each instant, and
inverting it maps one onto the other (time rescaling; Daley & Vere-Jones, An Introduction to the Theory of Point
Processes, 7.4). So every law goes with every profile, and all instants are absolute: no gap is ever waited for after
another.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronbench.load.arrivals import OpenLoop, Segment
from neuronbench.model import Json

Instants = npt.NDArray[np.float64]

_MAX_ARRIVALS: Final = 5_000_000
_RAMP_PIECES: Final = 4096
_LEAST_IN_BIN: Final = 5.0
_TOO_FEW: Final = 30
SIGNIFICANCE: Final = 0.001
"""Of the tests: a schedule that is what it claims fails one in a thousand times."""


def segments_of(arrivals: OpenLoop) -> list[Segment]:
    """Lead, window and tail."""
    first, last = arrivals.profile[0], arrivals.profile[-1]
    # a ramp from or to nothing has no rate to hold
    lead, tail = first.start or first.end, last.end or last.start
    return [
        Segment(seconds=arrivals.lead_s, start=lead, end=lead),
        *arrivals.profile,
        Segment(seconds=arrivals.tail_s, start=tail, end=tail),
    ]


def cumulative(segments: list[Segment]) -> tuple[Instants, Instants]:
    """Knots of time and the mean number of arrivals up to each, fine enough to invert linearly."""
    times, counts = [np.zeros(1)], [np.zeros(1)]
    for segment in segments:
        if segment.seconds <= 0:
            continue
        pieces = 1 if segment.start == segment.end else _RAMP_PIECES
        x = np.arange(1, pieces + 1) / pieces
        grown = segment.seconds * (segment.start * x + (segment.end - segment.start) * x**2 / 2)
        times.append(times[-1][-1] + segment.seconds * x)
        counts.append(counts[-1][-1] + grown)
    return np.concatenate(times), np.concatenate(counts)


def arrivals_of_unit_rate(arrivals: OpenLoop, total: float, rng: np.random.Generator) -> Instants:
    """Arrivals in [0, total) at a mean rate of one."""
    if arrivals.law == "constant":
        return np.arange(math.floor(total) + 1, dtype=np.float64) + 0.5
    if arrivals.law == "burst":
        size = arrivals.size
        return np.repeat((np.arange(math.floor(total / size) + 1) + 0.5) * size, size)
    shape = arrivals.shape if arrivals.law == "gamma" else 1.0
    parts: list[Instants] = []
    at = 0.0
    if shape != 1.0:
        at = -float(rng.uniform(0, 50 * max(1.0, 1 / shape)))  # let the process forget where it started
    while at < total:
        many = int(total - at + 10 * math.sqrt(max(total - at, 1.0)) + 100)
        parts.append(at + np.cumsum(rng.gamma(shape, 1 / shape, many)))
        at = float(parts[-1][-1])
    found = np.concatenate(parts) if parts else np.empty(0)
    return found[found >= 0]


def instants(arrivals: OpenLoop, seed: int) -> Instants:
    """Seconds from the start of the schedule: lead, window, and tail. Sorted."""
    times, counts = cumulative(segments_of(arrivals))
    total = float(counts[-1])
    if total > _MAX_ARRIVALS:
        raise ValueError(
            f"arrivals: expected at most {_MAX_ARRIVALS}, found {total:.0f}; ask for a lower rate or less time"
        )
    unit = arrivals_of_unit_rate(arrivals, total, np.random.default_rng([seed, 11]))
    found: Instants = np.interp(unit[unit < total], counts, times)
    return found


def think_times(count: int, mean_s: float, seed: int) -> Instants:
    """Pauses before the later turns of sessions, exponential."""
    if mean_s == 0:
        return np.zeros(count)
    return np.random.default_rng([seed, 12]).exponential(mean_s, count)


def lag_one(gaps: Instants) -> float | None:
    """Correlation of each gap with the next; None where it is not defined."""
    if len(gaps) < _TOO_FEW or float(gaps.std()) == 0:
        return None
    return float(np.corrcoef(gaps[:-1], gaps[1:])[0, 1])


def realised(at: Instants, arrivals: OpenLoop | None, start: float, seconds: float) -> dict[str, Json]:
    """How arrivals between `start` and `start + seconds` came out, against what they should be.

    `dispersion` is variance over mean of counts in bins of equal expected count (1 for Poisson; Cox & Lewis, The
    Statistical Analysis of Series of Events, 6.3), with the interval it should lie in; `lag_one` the correlation of
    successive gaps with its limit; `gap_cv` the coefficient of variation of the gaps. Instants are taken through the
    profile first, so that a ramp is judged by its law and not by its slope. `passed` is None where nothing can be said.
    """
    inside = at[(at >= start) & (at < start + seconds)]
    found: dict[str, Json] = {"count": len(inside), "rate": len(inside) / seconds}
    if arrivals is None:
        return found
    times, counts = cumulative(segments_of(arrivals))
    unit = np.interp(inside, times, counts)
    low, high = (float(x) for x in np.interp([start, start + seconds], times, counts))
    expected = high - low
    found["expected"] = expected
    if arrivals.law == "burst":
        unit = np.unique(unit)
    gaps = np.diff(unit)
    if len(gaps) < _TOO_FEW:
        return found | {"passed": None, "why": f"fewer than {_TOO_FEW} gaps"}
    found["gap_cv"] = float(gaps.std() / gaps.mean())
    correlation = lag_one(gaps)
    if arrivals.law in ("constant", "burst"):
        found["passed"] = bool(found["gap_cv"] < 1e-3)
        return found
    from scipy.special import chdtri, ndtri

    limit = float(ndtri(1 - SIGNIFICANCE / 2)) / math.sqrt(len(gaps))
    shape = arrivals.shape if arrivals.law == "gamma" else 1.0
    found |= {"lag_one": correlation, "lag_one_limit": limit}
    passed = correlation is None or abs(correlation) <= limit
    if shape == 1.0:
        bins = max(int(expected / max(_LEAST_IN_BIN, expected / 200)), 2)
        counted = np.histogram(unit, bins=bins, range=(low, high))[0]
        dispersion = float(counted.var(ddof=1) / counted.mean())
        lowest, highest = (
            float(chdtri(bins - 1, 1 - p) / (bins - 1)) for p in (SIGNIFICANCE / 2, 1 - SIGNIFICANCE / 2)
        )
        found |= {"dispersion": dispersion, "dispersion_interval": [lowest, highest]}
        passed = passed and lowest <= dispersion <= highest
    else:
        # cumulated gamma gaps: the spread of a sample CV is about sqrt((1/2 + 1/shape) / n) of itself
        should = 1 / math.sqrt(shape)
        spread = float(ndtri(1 - SIGNIFICANCE / 2)) * math.sqrt((0.5 + 1.5 / shape) / len(gaps))
        found |= {"gap_cv_expected": should, "gap_cv_tolerance": spread}
        passed = passed and abs(found["gap_cv"] / should - 1) <= spread
    found["passed"] = bool(passed)
    return found


def to_ns(at: Instants) -> npt.NDArray[Any]:
    return np.rint(at * 1e9).astype(np.int64)
