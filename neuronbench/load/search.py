"""The highest rate at which limits on latency are met, by bisection with a statistical test as the oracle.

A step is only left when its observations settle every limit; one that they cannot settle within the allowed number of
requests counts as not met, so the answer errs on the low side. Knows nothing of servers: `probe` measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from neuronbench import stats

_GROWTH: Final = 2.0
_MARGIN: Final = 1.2
"""Requests asked for beyond the fewest that could do: some always miss."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests within and beyond each limit. Failures are beyond every limit."""

    within: Mapping[str, int]
    beyond: Mapping[str, int]
    growing: bool = False
    """Requests queued up more and more while these were counted: such a rate is not sustained, whatever they say."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One rate and what was found."""

    rate: float
    requests: int
    verdict: str
    """`met`, `missed`, `growing` (the limits were kept, but the queue grew, twice) or `undecided`."""
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The bracket around the answer."""

    rate: float | None
    """Highest rate at which all limits were shown to be met; None when there was none."""
    missed_at: float | None
    """Lowest rate at which they were not shown to be met; None when the search ended at its upper end."""
    percentile: float
    confidence: float
    steps: tuple[Step, ...] = field(default_factory=tuple)
    message: str = ""


def requests_needed(p: float, confidence: float = stats.SLO_CONFIDENCE) -> int:
    """Requests to begin a step with: enough for a pass with a few beyond the limit."""
    return math.ceil(_MARGIN * (stats.under_needed(1, p, confidence) + 1))


def highest_rate(
    probe: Callable[[float, int], Counts],
    *,
    start: float,
    lowest: float,
    highest: float,
    percentile: float = 0.99,
    confidence: float = stats.SLO_CONFIDENCE,
    tolerance: float = 0.05,
    most_requests: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> SearchResult:
    """Search between `lowest` and `highest` requests per second, beginning at `start`.

    `probe(rate, n)` runs at `rate` for at least `n` requests and counts them; it is called again at the same rate, with
    the counts added up, while the test is undecided, up to `most_requests` per rate (default: eight times the fewest).
    The answer lies within a factor of 1 + `tolerance` of the true one if the limits are met below it and missed above.
    """
    if not 0 < lowest <= start <= highest:
        raise ValueError(f"rates: expected 0 < lowest ≤ start ≤ highest, found {lowest}, {start}, {highest}")
    if not tolerance > 0:
        raise ValueError(f"tolerance: expected a share above 0, found {tolerance}")
    first = requests_needed(percentile, confidence)
    most = most_requests or 8 * first
    steps: list[Step] = []

    def test(rate: float) -> bool:
        step = _settle(probe, rate, first, most, percentile, confidence)
        steps.append(step)
        if progress is not None:
            progress(f"{rate:.3g} req/s: {step.verdict} ({step.requests} requests)")
        return step.verdict == "met"

    met: float | None = None
    missed: float | None = None
    rate = start
    if test(rate):
        met = rate
        while met < highest and missed is None:
            rate = min(met * _GROWTH, highest)
            met, missed = (rate, None) if test(rate) else (met, rate)
    else:
        missed = rate
        while missed > lowest and met is None:
            rate = max(missed / _GROWTH, lowest)
            met, missed = (rate, missed) if test(rate) else (None, rate)
    while met is not None and missed is not None and missed / met > 1 + tolerance:
        rate = math.sqrt(met * missed)
        met, missed = (rate, missed) if test(rate) else (met, rate)
    return SearchResult(
        rate=met,
        missed_at=missed,
        percentile=percentile,
        confidence=confidence,
        steps=tuple(steps),
        message=""
        if met is not None
        else f"the limits were not shown to be met at {lowest:g} req/s, the lowest rate that was allowed",
    )


def _settle(
    probe: Callable[[float, int], Counts], rate: float, first: int, most: int, p: float, confidence: float
) -> Step:
    within: dict[str, int] = {}
    beyond: dict[str, int] = {}
    asked, wanted = 0, first
    grew = calm = 0
    verdict = "undecided"
    while verdict == "undecided" and asked < most:
        counts = probe(rate, wanted)
        asked += wanted
        grew, calm = grew + counts.growing, calm + (not counts.growing)
        for name, count in counts.within.items():
            within[name] = within.get(name, 0) + count
            beyond[name] = beyond.get(name, 0) + counts.beyond[name]
        tests = [stats.slo_test(within[name], beyond[name], p, confidence) for name in within]
        if any(found.verdict == "missed" for found in tests):
            verdict = "missed"
        elif tests and all(found.verdict == "met" for found in tests):
            # one growing window may be chance; its queue has to grow again for the rate to count as not met
            verdict = "met" if calm else "growing" if grew > 1 else "undecided"
            wanted = min(first, max(most - asked, 1))
        else:
            more = max((found.more for found in tests), default=first)
            wanted = max(min(math.ceil(_MARGIN * more), most - asked), 1)
    return Step(rate=rate, requests=asked, verdict=verdict, counts=Counts(within=within, beyond=beyond))
