"""Comparing two sets: the one function that everything here leads to."""

from __future__ import annotations

import fnmatch
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from neuronbench.compare import intervals, outcomes
from neuronbench.compare.fields import Allowed, Checked, check, context
from neuronbench.compare.matching import Pair, pairs
from neuronbench.compare.noise import Bands, Past, spread_of_history
from neuronbench.compare.reading import MetricKind, Reading
from neuronbench.compare.result import Comparison, Described, Overall, Row, Values, Verdict
from neuronbench.compare.selecting import Side
from neuronbench.model import Provenance, Validity

ADVISORY_BELOW: Final = 3
"""With fewer repeats a side a verdict is advice."""
INVALID: Final = "invalid"
"""`--allow invalid`: records that a gate has failed are compared too, and marked."""
_USUAL: Final = ("", "p50", "p99", "mean")
_FEW: Final = 8
_MEAN_FROM: Final = 3
"""Points from which on a mean over points has an interval."""
_BOOT_KEYS: Final = ("boot_time_s", "compile_time_s", "load_time_s", "artifact_size_bytes")

History = Mapping[tuple[str, str], Sequence[Sequence[Reading]]]
"""Fingerprint and environment key → repeats of each earlier session, oldest first."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to compare."""

    headline: Callable[[str], Sequence[str]] = lambda lane: ()
    """Lane → metric keys that are compared unless others are asked for."""
    metrics: Sequence[str] = ()
    """Keys, ids or globs that are compared instead."""
    by: str = ""
    allow: Sequence[str] = ()
    bands: Bands = field(default_factory=Bands)
    history: History = field(default_factory=dict)


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
            here, empty = _rows(pair, options, allow)
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


def _blanks(kinds: Mapping[str, MetricKind], readings: Sequence[Reading]) -> dict[str, str]:
    """Metrics that no repeat has a value for, and why."""
    found = {}
    for key in kinds:
        values = [value[1] for reading in readings if (value := reading.values.get(key)) is not None]
        if all(value.value is None for value in values):
            found[key] = next((value.note for value in values if value.note), "no value")
    return found


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
# the rows of a point


def _rows(pair: Pair, options: Options, allow: Allowed) -> tuple[list[Row], dict[str, str]]:
    """Rows of a point, and the metrics that nobody has a value for."""
    usable = [[r for r in side if r.measured] for side in (pair.base, pair.head)]
    if not all(usable):
        return [], {}  # the outcome says it
    valid = [[r for r in side if r.validity is not Validity.INVALID] for side in usable]
    invalid_too = INVALID in options.allow
    base, head = usable if invalid_too else valid
    kinds = kinds_of([*pair.base, *pair.head], options)
    blanks = _blanks(kinds, [*usable[0], *usable[1]])
    kinds = {key: kind for key, kind in kinds.items() if key not in blanks}
    blank = Values(repeats=(), centre=None)
    found = Row(
        point=pair.label,
        lane=pair.lane,
        backends=(usable[0][0].point.backend, usable[1][0].point.backend),
        metric=next(iter(kinds.values()), _NOTHING),
        verdict=Verdict.INCOMPARABLE,
        base=blank,
        head=blank,
    )
    if not (base and head):
        sides = " and ".join(name for name, side in (("A", base), ("B", head)) if not side)
        why = f"every repeat of {sides} is invalid; in spite of that: --allow {INVALID}"
        return [replace(found, metric=kind, reason=why) for kind in kinds.values()], blanks
    checked = check(pair, base, head, allow)
    marks = _marks(base, head, checked, invalid_too)
    found = replace(found, marks=marks, differences=[*checked.blocking, *checked.allowed])
    rows = [_row(replace(found, metric=kind), base, head, checked, options, allow) for kind in kinds.values()]
    return rows, blanks


_NOTHING: Final = MetricKind(key="", id="", version=1, stat="", unit="", better=None)


def kinds_of(readings: Sequence[Reading], options: Options) -> dict[str, MetricKind]:
    """The metrics to look at for repeats of a point: those asked for, else the lane's headline, else its usual ones."""
    known: dict[str, MetricKind] = {}
    shapes: set[tuple[str, ...]] = set()
    for reading in readings:
        if (shape := tuple(reading.values)) not in shapes:
            shapes.add(shape)
            for key, (kind, _) in reading.values.items():
                known.setdefault(key, kind)
    if options.metrics:
        asked = options.metrics
        return {
            key: kind
            for key, kind in known.items()
            if any(p in (key, kind.id) or fnmatch.fnmatchcase(key, p) for p in asked)
        }
    one = readings[0]
    wanted = options.headline(one.point.lane) if one.kind == "point" else _BOOT_KEYS
    chosen = {key: known[key] for key in wanted if key in known and known[key].better is not None}
    if chosen:
        return chosen
    usual = {key: kind for key, kind in known.items() if kind.better is not None and kind.stat in _USUAL}
    return dict(list(usual.items())[:_FEW])


def _marks(base: Sequence[Reading], head: Sequence[Reading], checked: Checked, invalid_too: bool) -> list[str]:
    found = []
    for name, side in (("A", base), ("B", head)):
        if invalid_too and (gates := _gates(side, Validity.INVALID)):
            found.append(f"invalid {name}: {gates}")
        if gates := _gates(side, Validity.PROVISIONAL):
            found.append(f"provisional {name}: {gates}")
        for provenance in dict.fromkeys(r.provenance for r in side):
            if provenance is not Provenance.MEASURED:
                found.append(f"{provenance.value} {name}")
    if checked.unknown:
        found.append(f"{checked.unknown} fields of the protocol not known on one side")
    found += [f"{difference} ({difference.allowed})" for difference in checked.allowed]
    return found


def _gates(side: Sequence[Reading], validity: Validity) -> str:
    names = dict.fromkeys(
        name for r in side if r.validity is validity for severity, name in r.failed if severity == validity.value
    )
    return ", ".join(names)


def _row(
    row: Row, base: Sequence[Reading], head: Sequence[Reading], checked: Checked, options: Options, allow: Allowed
) -> Row:
    """One metric, all but for the verdict where there is a p value: that one takes all rows."""
    kind = row.metric
    (first, why_a), (second, why_b) = (_repeats(side, kind, name) for side, name in ((base, "A"), (head, "B")))
    log = _on_log_scale(kind, first, second)
    row = replace(row, base=_values(first, log=log), head=_values(second, log=log), log=log)
    if first and second:
        row = replace(row, change=_scaled(second, log=log) - _scaled(first, log=log))
    if checked.blocking:
        return replace(row, reason="; ".join(map(str, checked.blocking)))
    if why_a or why_b:
        return replace(row, reason="; ".join(dict.fromkeys(why for why in (why_a, why_b) if why)))
    versions = [{r.values[kind.key][0].definition for r in side} for side in (base, head)]
    if len(versions[0] | versions[1]) > 1:
        told = f"definition: {' and '.join(sorted(versions[0]))} → {' and '.join(sorted(versions[1]))}"
        if not (said := allow("definition")):
            return replace(row, reason=told)
        row = replace(row, marks=[*row.marks, f"{told} ({said})"])
    if kind.better is None:
        return replace(row, reason=f"{kind.id} has no better direction: neither more nor less is a regression")
    past = _past(options.history, base, head, kind, log=log)
    floor = options.bands.floor(kind, row.lane, first, second, past, log=log)
    row = replace(row, floor=floor)
    a, b = ([math.log(v) for v in side] if log else side for side in (first, second))
    spread = intervals.of_repeats(a, b)
    if spread is not None and log and kind.unit.endswith("/s"):
        spread = _quantised(spread, base, head, kind)
    if spread is None and past is not None:
        variance = past.sd**2
        source = f"history of {past.sessions} sessions"
        spread = intervals.Spread(base=variance, head=variance, df=past.sessions - 1, source=source)
    if spread is None:
        more = ADVISORY_BELOW - 1
        why = "one repeat a side: there is no interval, and no history of five sessions to take one from"
        return replace(row, verdict=Verdict.INCONCLUSIVE, more=more, reason=why)
    found = intervals.contrast(a, b, spread)
    sd = math.sqrt((spread.base + spread.head) / 2)
    marks = [*row.marks]
    if min(len(a), len(b)) < ADVISORY_BELOW:
        marks.append(f"advisory: {len(a)} against {len(b)} repeats")
    return replace(
        row,
        marks=marks,
        verdict=Verdict.INCONCLUSIVE,
        change=found.difference,
        low=found.low,
        high=found.high,
        p=found.p,
        spread=spread.source,
        detectable=intervals.detectable(sd, len(a), len(b), floor.size),
        more=_more(found.difference, sd, floor.size, min(len(a), len(b))),
    )


def _more(difference: float, sd: float, band: float, have: int) -> int | None:
    needed = intervals.repeats_needed(difference, sd, band)
    return None if needed is None else max(needed - have, 1)


def _repeats(side: Sequence[Reading], kind: MetricKind, name: str) -> tuple[list[float], str]:
    """Values of one side, or none of them and why: what one repeat lacks is not averaged over the others."""
    found, missing = [], []
    for reading in side:
        value = reading.values.get(kind.key)
        if value is None or value[1].value is None:
            missing.append("" if value is None else value[1].note)
        else:
            found.append(value[1].value)
    if not missing:
        return found, ""
    where = name if len(missing) == len(side) else f"{len(missing)} of {len(side)} repeats of {name}"
    note = next((note for note in missing if note), "")
    return [], f"no value in {where}" + (f": {note}" if note else "")


def _on_log_scale(kind: MetricKind, first: Sequence[float], second: Sequence[float]) -> bool:
    """Ratios, but for shares and for what is zero or negative somewhere."""
    return kind.unit != "share" and all(value > 0 for value in (*first, *second))


def _scaled(values: Sequence[float], *, log: bool) -> float:
    return math.fsum(map(math.log, values) if log else values) / len(values)


def _values(values: Sequence[float], *, log: bool) -> Values:
    if not values:
        return Values(repeats=(), centre=None)
    middle = _scaled(values, log=log)
    return Values(repeats=tuple(values), centre=math.exp(middle) if log else middle)


def _quantised(
    spread: intervals.Spread, base: Sequence[Reading], head: Sequence[Reading], kind: MetricKind
) -> intervals.Spread:
    """A rate counted from n events cannot be told apart to better than 1/n, however well its repeats agree."""
    steps = [min((r.values[kind.key][1].n for r in side), default=0) for side in (base, head)]
    a, b = (1 / (12 * n * n) if n > 0 else 0.0 for n in steps)
    return replace(spread, base=max(spread.base, a), head=max(spread.head, b))


def _past(
    history: History, base: Sequence[Reading], head: Sequence[Reading], kind: MetricKind, *, log: bool
) -> Past | None:
    """The larger of what the histories of both sides say."""
    found = []
    for key in dict.fromkeys((r.fingerprint, r.environment_key) for r in (*base, *head)):
        values = session_values(history.get(key, ()), kind, log=log)
        if (past := spread_of_history(values)) is not None:
            found.append(past)
    return max(found, key=lambda past: past.sd, default=None)


def session_values(sessions: Sequence[Sequence[Reading]], kind: MetricKind, *, log: bool) -> list[float]:
    """The value of each session on the scale of the comparison: the mean over its repeats that may be quoted."""
    found = []
    for readings in sessions:
        values = [
            pair[1].value
            for r in readings
            if r.measured and r.validity is not Validity.INVALID and (pair := r.values.get(kind.key)) is not None
            if pair[1].value is not None and pair[0].definition == kind.definition
        ]
        if values and (not log or min(values) > 0):
            found.append(_scaled(values, log=log))
    return found


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
        verdict = Verdict.REGRESSED if worse else Verdict.IMPROVED
        return replace(row, verdict=verdict, p_adjusted=adjusted, more=None)
    if -band <= row.low and row.high <= band:
        return replace(row, verdict=Verdict.UNCHANGED, p_adjusted=adjusted, more=None)
    if row.p <= intervals.ALPHA < adjusted and size > band:
        reason = "beyond chance alone, but not among so many comparisons"
    elif row.more is None:
        reason = "the change is as large as the noise floor itself: more repeats would not settle it"
    elif size > band:
        reason = "the interval reaches over zero"
    else:
        reason = "the interval reaches beyond the noise floor"
    return replace(row, p_adjusted=adjusted, reason=reason)


def _overall(rows: Sequence[Row]) -> list[Overall]:
    """Geometric means over points, of metrics that have ratios at two or more."""
    from scipy.special import stdtrit

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
