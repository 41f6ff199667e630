"""Comparing two sets: the one function that everything here leads to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from scipy.special import stdtrit

from neuronbench.compare import intervals, outcomes
from neuronbench.compare.fields import Allowed, context
from neuronbench.compare.matching import pairs
from neuronbench.compare.result import Comparison, Described, Overall, Row, Verdict
from neuronbench.compare.rows import Options, rows_of
from neuronbench.compare.selecting import Side

LONE: Final = "advisory: one session a side, and no history of how far sessions are apart by themselves"
_MEAN_FROM: Final = 3
"""Points from which on a mean over points has an interval."""


def compare(base: Side, head: Side, options: Options | None = None) -> Comparison:
    """Every metric of every point of two sets, with a verdict. Head is judged, base is what it is judged against."""
    options = options or Options()
    allow = Allowed(patterns=options.allow, by=options.by)
    rows: list[Row] = []
    blanks: list[tuple[str, str, str]] = []
    changes = []
    for pair in pairs(base, head, by=options.by):
        change = outcomes.change(pair)
        if change is not None:
            changes.append(change)
        if pair.base and pair.head:
            here, empty = rows_of(pair, options, allow)
            rows += here
            blanks += [(pair.label, key, why) for key, why in empty.items()]
    rows = _judged(rows)
    rows.sort(key=_worst_first(rows))
    changes.sort(key=lambda change: (not change.worse, change.kind in ("gone", "new"), change.kind))
    return Comparison(
        base=_described(base),
        head=_described(head),
        by=options.by,
        rows=rows,
        outcomes=changes,
        overall=_overall(rows),
        notes=_told(blanks),
    )


def _worst_first(rows: Sequence[Row]) -> Callable[[Row], tuple[int, float, str, float]]:
    """By verdict, then by the largest change of a point, whose rows stay together."""
    order = {verdict: index for index, verdict in enumerate(Verdict)}
    largest: dict[tuple[Verdict, str], float] = {}
    for row in rows:
        key = (row.verdict, row.point)
        largest[key] = max(largest.get(key, 0.0), row.severity)
    return lambda row: (order[row.verdict], -largest[row.verdict, row.point], row.point, -row.severity)


def _told(blanks: Sequence[tuple[str, str, str]]) -> list[str]:
    """A line for each metric that has no value on either side: point, metric, why."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for point, key, why in blanks:
        groups.setdefault(key, []).append((point, why))
    return [
        f"{key} has no value on either side at {len(told)} point{'s' if len(told) > 1 else ''} "
        f"(such as {told[0][0]}): {told[0][1]}"
        for key, told in groups.items()
    ]


def _described(side: Side) -> Described:
    return Described(
        label=side.label, sessions=side.sessions, receipts=len(side.readings), context=context(side.readings)
    )


# --------------------------------------------------------------------------------------------------------------------
# all rows together


def _judged(rows: Sequence[Row]) -> list[Row]:
    """Verdicts of all rows with a p value, after Benjamini–Hochberg over them."""
    tested = [index for index, row in enumerate(rows) if row.p is not None]
    adjusted = intervals.benjamini_hochberg([rows[index].p or 0.0 for index in tested])
    found = list(rows)
    for index, p in zip(tested, adjusted, strict=True):
        found[index] = _verdict(rows[index], p)
    return found


def _verdict(row: Row, adjusted: float) -> Row:
    assert row.p is not None
    assert row.floor is not None
    assert row.change is not None
    assert row.low is not None
    assert row.high is not None
    band, size = row.floor.size, abs(row.change)
    if adjusted <= intervals.ALPHA and size > band:
        worse = (row.change > 0) == (row.metric.better == "lower")
        marks = [*row.marks, LONE] if row.lone else row.marks
        said = Verdict.REGRESSED if worse else Verdict.IMPROVED
        return replace(row, verdict=said, p_adjusted=adjusted, marks=marks)
    if -band <= row.low and row.high <= band:
        return replace(row, verdict=Verdict.UNCHANGED, p_adjusted=adjusted)
    needed = intervals.repeats_needed(row.change, row.sd, band)
    more = None if needed is None else max(needed - min(row.base.n, row.head.n), 1)
    if row.p <= intervals.ALPHA and size > band:
        reason = "beyond chance alone, but not among so many comparisons"
    elif more is None:
        reason = f"too close to the noise floor for {intervals.REPEATS_LIMIT} repeats to settle it"
    elif size > band:
        reason = "the interval reaches over zero"
    else:
        reason = "the interval reaches beyond the noise floor"
    return replace(row, p_adjusted=adjusted, more=more, reason=reason)


def _overall(rows: Sequence[Row]) -> list[Overall]:
    """Geometric means over points, of metrics that have ratios at two or more."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.log and row.change is not None and row.verdict is not Verdict.INCOMPARABLE:
            groups.setdefault((row.lane, row.metric.key), []).append(row)
    found = []
    for members in groups.values():
        if len(members) < 2:
            continue
        changes = [row.change or 0.0 for row in members]
        mean, n = statistics.fmean(changes), len(changes)
        if n < _MEAN_FROM:
            found.append(Overall(metric=members[0].metric, points=n, change=mean, low=None, high=None))
            continue
        half = float(stdtrit(n - 1, 1 - intervals.ALPHA / 2)) * statistics.stdev(changes) / math.sqrt(n)
        found.append(Overall(metric=members[0].metric, points=n, change=mean, low=mean - half, high=mean + half))
    return found
