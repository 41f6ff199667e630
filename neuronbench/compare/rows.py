"""The rows of one point: each metric with its change, interval and noise floor, or why there are none."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from neuronbench.compare import intervals
from neuronbench.compare.fields import Allowed, Checked, check
from neuronbench.compare.matching import Pair
from neuronbench.compare.noise import Bands, Past, spread_of_history
from neuronbench.compare.reading import Keep, MetricKind, Reading
from neuronbench.compare.result import Row, Values, Verdict
from neuronbench.model import Provenance, RecordKind, Validity
from neuronbench.words import counted

ADVISORY_BELOW: Final = 3
"""With fewer repeats a side a verdict is advice."""
INVALID: Final = "invalid"
"""`--allow invalid`: records that a gate has failed are compared too, and marked."""
_USUAL: Final = ("", "p50", "p99", "mean")
_FEW: Final = 8
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


def rows_of(pair: Pair, options: Options, allow: Allowed) -> tuple[list[Row], dict[str, str]]:
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


def keeper(options: Options) -> Keep:
    """What a reader has to keep of a record's metrics for `kinds_of` to choose from: reading is most of the work."""

    def keep(record: RecordKind, lane: str, keys: Collection[str]) -> Iterable[str]:
        if options.metrics:
            return [key for key in keys if any(_may_mean(asked, key) for asked in options.metrics)]
        wanted = options.headline(lane) if record == "point" else _BOOT_KEYS
        return [key for key in wanted if key in keys] or keys

    return keep


def _may_mean(asked: str, key: str) -> bool:
    """Whether `asked` is a metric's key or a pattern of it, or may be the id that it begins with."""
    return key == asked or key.startswith(f"{asked}_") or fnmatch.fnmatchcase(key, asked)


def means(asked: str, kind: MetricKind) -> bool:
    """Whether `asked` is the metric's key, its id, or a pattern of its key."""
    return asked in (kind.key, kind.id) or fnmatch.fnmatchcase(kind.key, asked)


def kinds_of(readings: Sequence[Reading], options: Options) -> dict[str, MetricKind]:
    """The metrics to look at for repeats of a point: those asked for, else the lane's headline, else its usual ones."""
    known: dict[str, MetricKind] = {}
    shapes: set[tuple[str, ...]] = set()
    for reading in readings:
        if (shape := tuple(reading.values)) not in shapes:
            shapes.add(shape)
            for key, value in reading.values.items():
                known.setdefault(key, value.kind)
    if options.metrics:
        return {key: kind for key, kind in known.items() if any(means(asked, kind) for asked in options.metrics)}
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
    change = _scaled(second, log=log) - _scaled(first, log=log) if first and second else None
    row = replace(row, base=_values(first, log=log), head=_values(second, log=log), log=log, change=change)
    if checked.blocking:
        return replace(row, reason="; ".join(map(str, checked.blocking)))
    if why_a or why_b:
        return replace(row, reason="; ".join(dict.fromkeys(why for why in (why_a, why_b) if why)))
    versions = [{r.values[kind.key].kind.definition for r in side} for side in (base, head)]
    if len(versions[0] | versions[1]) > 1:
        told = f"definition: {' and '.join(sorted(versions[0]))} → {' and '.join(sorted(versions[1]))}"
        if not (said := allow("definition")):
            return replace(row, reason=told)
        row = replace(row, marks=[*row.marks, f"{told} ({said})"])
    if kind.better is None:
        return replace(row, reason=f"{kind.id} has no better direction: neither more nor less is a regression")
    past = _past(options.history, base, head, kind, log=log)
    floor = options.bands.floor(kind, row.lane, first, second, past, log=log)
    a, b = ([math.log(v) for v in side] if log else side for side in (first, second))
    spread = intervals.of_repeats(a, b)
    if spread is not None and log and kind.unit.endswith("/s"):
        spread = _quantised(spread, base, head, kind)
    if spread is None and past is not None:
        source = f"history of {counted(past.sessions, 'session')}"
        spread = intervals.Spread(base=past.sd**2, head=past.sd**2, df=past.sessions - 1, source=source)
    if spread is None:
        why = "one repeat a side: there is no interval, and no history of five sessions to take one from"
        return replace(row, floor=floor, verdict=Verdict.INCONCLUSIVE, more=ADVISORY_BELOW - 1, reason=why)
    found = intervals.contrast(a, b, spread)
    few = [f"advisory: {len(a)} against {counted(len(b), 'repeat')}"] if min(len(a), len(b)) < ADVISORY_BELOW else []
    sd = math.sqrt((spread.base + spread.head) / 2)
    return replace(
        row,
        floor=floor,
        lone=past is None and _lone(base, head),
        marks=[*row.marks, *few],
        verdict=Verdict.INCONCLUSIVE,
        change=found.difference,
        low=found.low,
        high=found.high,
        p=found.p,
        spread=spread.source,
        sd=sd,
        detectable=intervals.detectable(sd, len(a), len(b), floor.size),
    )


def _repeats(side: Sequence[Reading], kind: MetricKind, name: str) -> tuple[list[float], str]:
    """Values of one side, or none of them and why: what one repeat lacks is not averaged over the others."""
    found, missing = [], []
    for reading in side:
        value = reading.values.get(kind.key)
        if value is None or value.value is None:
            missing.append("" if value is None else value.note)
        else:
            found.append(value.value)
    if not missing:
        return found, ""
    where = name if len(missing) == len(side) else f"{len(missing)} of {counted(len(side), 'repeat')} of {name}"
    note = next((note for note in missing if note), "")
    return [], f"no value in {where}" + (f": {note}" if note else "")


def _on_log_scale(kind: MetricKind, first: Sequence[float], second: Sequence[float]) -> bool:
    """Ratios, but for shares and for what is zero or negative somewhere."""
    return kind.unit != "share" and all(value > 0 for value in (*first, *second))


def _lone(base: Sequence[Reading], head: Sequence[Reading]) -> bool:
    sessions = [{r.session for r in side} for side in (base, head)]
    return len(sessions[0]) == len(sessions[1]) == 1 and sessions[0] != sessions[1]


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
    steps = [min((r.values[kind.key].n for r in side), default=0) for side in (base, head)]
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
            one.value
            for r in readings
            if r.measured and r.validity is not Validity.INVALID and (one := r.values.get(kind.key)) is not None
            if one.value is not None and one.kind.definition == kind.definition
        ]
        if values and (not log or min(values) > 0):
            found.append(_scaled(values, log=log))
    return found


def _blanks(kinds: Mapping[str, MetricKind], readings: Sequence[Reading]) -> dict[str, str]:
    """Metrics that no repeat has a value for, and why."""
    found = {}
    for key in kinds:
        values = [value for reading in readings if (value := reading.values.get(key)) is not None]
        if all(value.value is None for value in values):
            found[key] = next((value.note for value in values if value.note), "no value")
    return found
