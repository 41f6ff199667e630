"""The past of points: how they spread from session to session, and where they jumped."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuronbench.compare import steps
from neuronbench.compare.fields import context
from neuronbench.compare.matching import Keys, label
from neuronbench.compare.noise import Bands
from neuronbench.compare.protocol import short
from neuronbench.compare.reading import MetricKind, Reading
from neuronbench.compare.rows import History, Options, kinds_of, session_values
from neuronbench.compare.selecting import SelectionError, Selector, Side, receipts_in
from neuronbench.model import Json, Provenance, Validity, canonical_json
from neuronbench.receipts.sessions import is_session_id
from neuronbench.words import counted

RECEIPTS_LIMIT: Final = 4000
"""Receipts of the past that are looked at for noise floors: a comparison is not to wait for all of history."""


def past(selector: Selector, sides: Sequence[Side], sessions: int) -> History:
    """Earlier repeats of the points of `sides`, from up to `sessions` other sessions of the store, the youngest first.

    Ends early at `RECEIPTS_LIMIT`. Only sessions measured here count, not imports.
    """
    if sessions <= 0:
        return {}
    wanted = frozenset(r.fingerprint for side in sides for r in side.readings)
    own = {session for side in sides for session in side.sessions}
    names = [name for name in selector.store.sessions() if is_session_id(name) and name not in own]
    found: dict[tuple[str, str], list[list[Reading]]] = {}
    looked_at = 0
    for name in reversed(names[-sessions:]):
        folders = receipts_in(selector.store.root / name)
        if looked_at and looked_at + len(folders) > RECEIPTS_LIMIT:
            break
        looked_at += len(folders)
        here: dict[tuple[str, str], list[Reading]] = {}
        for reading in selector.reader.read(folders, wanted=wanted):
            here.setdefault((reading.fingerprint, reading.environment_key), []).append(reading)
        for key, readings in here.items():
            found.setdefault(key, []).insert(0, readings)
    return found


# --------------------------------------------------------------------------------------------------------------------
# series


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The value of one session."""

    session: str
    started_at: str
    value: float
    """Geometric mean of its repeats, or their mean where that is not defined."""
    repeats: int
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Jump:
    """A step, where it begins and what changed there."""

    session: str
    before: float
    after: float
    worse: bool | None
    """None for a metric without a better direction."""
    percent: float | None
    p: float
    changed: tuple[str, ...] = ()
    """Fields of the protocol and facts (commit, host) that changed with that session."""

    def to_json(self) -> dict[str, Json]:
        return {
            "session": self.session, "before": self.before, "after": self.after, "worse": self.worse,
            "percent": self.percent, "p": self.p, "changed": list(self.changed),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of a point over sessions."""

    point: str
    lane: str
    backend: str
    metric: MetricKind
    entries: Sequence[Entry]
    jumps: Sequence[Jump]
    floor: str
    """The noise floor that steps were held against."""
    left_out: int = 0
    """Sessions whose repeats were all invalid or without a value."""

    def to_json(self) -> dict[str, Json]:
        return {
            "point": self.point,
            "lane": self.lane,
            "backend": self.backend,
            "metric": self.metric.key,
            "definition": self.metric.definition,
            "unit": self.metric.unit,
            "better": self.metric.better,
            "sessions": [
                {
                    "session": entry.session, "started_at": entry.started_at, "value": entry.value,
                    "repeats": entry.repeats, "marks": list(entry.marks),
                }
                for entry in self.entries
            ],
            "steps": [jump.to_json() for jump in self.jumps],
            "noise_floor": self.floor,
            "left_out": self.left_out,
        }  # fmt: skip


def series(
    selector: Selector, asked: str, *, sessions: int, options: Options, lanes: Callable[[], Sequence[str]]
) -> list[Series]:
    """A series for each metric of each point that `asked` means: a lane, a point's id or a glob of ids; empty is all.

    Sessions are the youngest `sessions`. Raises `SelectionError` when there is no such point.
    """
    names = [name for name in selector.store.sessions() if is_session_id(name)][-sessions:]
    groups: dict[tuple[str, ...], list[Reading]] = {}
    ids: set[str] = set()
    keys = Keys()
    for name in names:
        for reading in selector.side_of(name):
            point = reading.point
            ids.add(point.id)
            if not asked or asked in (point.lane, point.id) or fnmatch.fnmatchcase(point.id, asked):
                groups.setdefault(keys.of(reading), []).append(reading)
    if not ids:
        there = f"{len(names)} without a receipt of a point" if names else "none"
        raise SelectionError(
            f"expected sessions in {selector.store.root}, found {there} yet; to make one: pytest benchmarks -m cpu"
        )
    if not groups:
        what = f"no point of lane {asked!r}" if asked in lanes() else f"no point or lane {asked!r}"
        raise SelectionError(
            f"{what} in the last {counted(len(names), 'session')} of {selector.store.root}; "
            f"lanes: {', '.join(lanes())}; points: {', '.join(sorted(ids)[:8])}"
        )
    found = []
    for readings in groups.values():
        by_session: dict[str, list[Reading]] = {}
        for reading in readings:
            by_session.setdefault(reading.session, []).append(reading)
        for kind in kinds_of(readings, options).values():
            one = _series(by_session, kind, options.bands)
            if one is not None:
                found.append(one)
    found.sort(key=lambda one: (-len(one.jumps), one.lane, one.point))
    return found


def _series(by_session: Mapping[str, Sequence[Reading]], kind: MetricKind, bands: Bands) -> Series | None:
    usable = {
        name: [r for r in readings if r.measured and r.validity is not Validity.INVALID]
        for name, readings in by_session.items()
    }
    values = [
        found.value
        for readings in usable.values()
        for r in readings
        if (found := r.values.get(kind.key)) is not None and found.value is not None
    ]
    log = kind.unit != "share" and bool(values) and min(values) > 0
    entries, scaled, kept = [], [], []
    for name, readings in sorted(usable.items()):
        level = session_values([readings], kind, log=log)
        if level:
            kept.append(readings)
            scaled += level
            value = math.exp(level[0]) if log else level[0]
            entries.append(
                Entry(
                    session=name,
                    started_at=min(r.started_at for r in readings),
                    value=value,
                    repeats=len(readings),
                    marks=_marks(readings),
                )
            )
    if not entries:
        return None
    centres = [entry.value for entry in entries]
    floor = bands.floor(kind, kept[0][0].point.lane, centres, centres, None, log=log)
    jumps = [_jump(step, kept, entries, kind, log=log) for step in steps.find(scaled, floor.size)]
    point = kept[0][0].point
    return Series(
        point=label(point, ""), lane=point.lane, backend=point.backend, metric=kind, entries=entries, jumps=jumps,
        floor=floor.text, left_out=len(usable) - len(entries),
    )  # fmt: skip


def _jump(
    step: steps.Step, kept: Sequence[Sequence[Reading]], entries: Sequence[Entry], kind: MetricKind, *, log: bool
) -> Jump:
    scale = math.exp if log else float
    return Jump(
        session=entries[step.index].session,
        before=scale(step.before),
        after=scale(step.after),
        worse=None if kind.better is None else (step.change > 0) == (kind.better == "lower"),
        percent=100 * math.expm1(step.change) if log else None,
        p=step.p,
        changed=tuple(_changed(kept[step.index - 1], kept[step.index])),
    )


def _changed(before: Sequence[Reading], after: Sequence[Reading]) -> list[str]:
    one, other = before[0].protocol, after[0].protocol
    names = sorted({*one.fields, *other.fields}) if one is not other else []
    found = [f"{n}: {short([one.get(n)])} → {short([other.get(n)])}" for n in names if one.get(n) != other.get(n)]
    a: Mapping[str, Any] = context(before)
    b: Mapping[str, Any] = context(after)
    for name in dict.fromkeys((*a, *b)):
        old, new = a.get(name, []), b.get(name, [])
        if old != new:
            found.append(f"{name}: {short(map(canonical_json, old), 14)} → {short(map(canonical_json, new), 14)}")
    return found


def _marks(readings: Sequence[Reading]) -> tuple[str, ...]:
    found = [] if all(r.validity is Validity.VALID for r in readings) else ["provisional"]
    others = {r.provenance.value for r in readings if r.provenance is not Provenance.MEASURED}
    return (*found, *sorted(others))
