"""One load several times: the repeat is the unit of statistics, and its spread what a single run cannot tell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.model import Json
from neuronbench.standalone.result import Result

SEED_STEP: Final = 104_729
"""Between the seeds of two repeats, so that none meets prompts that one before it left in a cache."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A metric over the repeats that have a value of it."""

    key: str
    unit: str
    median: float
    mean: float
    low: float | None
    high: float | None
    """95 % confidence interval of the mean by Student's t; None below 2 values."""
    smallest: float
    largest: float
    n: int
    values: tuple[float, ...] = ()
    """Of each repeat, in order."""

    def to_json(self) -> dict[str, Json]:
        return dict(vars(self))


def spreads(results: Sequence[Result]) -> list[Spread]:
    """Over the repeats that were measured to their end and are not invalid, each metric that all of them have."""
    good = [result for result in results if result.measured and result.validity != "invalid"]
    found = []
    for metric in good[0].metrics if good else ():
        values = [
            each.value
            for result in good
            for each in result.metrics
            if each.key == metric.key and each.value is not None
        ]
        if len(values) == len(good):
            low, high = _interval(values)
            found.append(
                Spread(
                    key=metric.key, unit=metric.unit, median=statistics.median(values), mean=statistics.fmean(values),
                    low=low, high=high, smallest=min(values), largest=max(values), n=len(values), values=tuple(values),
                )
            )  # fmt: skip
    return found


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return None, None
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def rows(found: Sequence[Spread], keys: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows of name, median, mean, interval, range, n."""
    made: list[tuple[str, ...]] = []
    for one in found:
        if one.key not in keys:
            continue
        interval = "–" if one.low is None or one.high is None else f"{one.low:.4g} to {one.high:.4g}"
        span = f"{one.smallest:.4g} to {one.largest:.4g}"
        made.append((one.key, f"{one.median:.4g}", f"{one.mean:.4g}", interval, span, str(one.n)))
    return made
