"""Points and their repeats: which of them make a row, and of what standing it is."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neuronbench.compare.matching import Keys
from neuronbench.compare.reading import MetricKind, Reading
from neuronbench.model import Json, Outcome, Point, Provenance, Validity


class Standing(enum.StrEnum):
    """Where a row is shown. Only the first is a headline."""

    VALID = "valid"
    PROVISIONAL = "provisional"
    INVALID = "invalid"
    IMPORTED = "imported"
    SIMULATED = "simulated"
    FAILED = "failed"
    ABSENT = "absent"
    """Skipped, expected to fail, or taken over from an earlier session that is not there."""


MARKED = (Standing.PROVISIONAL, Standing.INVALID, Standing.IMPORTED, Standing.SIMULATED)
_ABSENT = (Outcome.SKIPPED, Outcome.XFAILED, Outcome.CACHED)


def standing(reading: Reading) -> Standing:
    """Of one repeat: its outcome first, then whether its numbers may be quoted, then whose they are."""
    if reading.outcome in _ABSENT:
        return Standing.ABSENT
    if not reading.measured:
        return Standing.FAILED
    if reading.validity is Validity.INVALID:
        return Standing.INVALID
    if reading.provenance is Provenance.SIMULATED:
        return Standing.SIMULATED
    if reading.validity is Validity.PROVISIONAL:
        return Standing.PROVISIONAL
    if reading.provenance is Provenance.IMPORTED:
        return Standing.IMPORTED
    return Standing.VALID


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A metric over the repeats of a row. `value`: the median, or that of the only repeat; None: `note` says why."""

    kind: MetricKind
    value: float | None
    least: float | None = None
    most: float | None = None
    n: int = 0
    """Observations of the repeat that `reading` is."""
    note: str = ""
    reading: Reading | None = None
    """The repeat that has the median, or the one below the middle of an even number."""


@dataclass(kw_only=True)
class Row:
    """Repeats of one point in one environment that have the same standing."""

    point: Point
    standing: Standing
    readings: list[Reading]
    others: int = 0
    """Repeats of the same point that stand elsewhere."""
    _summaries: dict[str, Summary | None] = field(default_factory=dict, repr=False)

    @property
    def environment(self) -> str:
        return self.readings[0].environment_key

    @property
    def marks(self) -> list[str]:
        """What has to be said beside each of its numbers."""
        found = [self.standing.value] if self.standing in MARKED else []
        for provenance in dict.fromkeys(reading.provenance for reading in self.readings):
            if provenance is not Provenance.MEASURED and provenance.value not in found:
                found.append(provenance.value)
        return found

    @property
    def mark(self) -> str:
        """The first of them: what decides on how a point is drawn."""
        return next(iter(self.marks), "")

    @property
    def outcomes(self) -> str:
        """`ok`, `slo_miss`, `ok, failed`."""
        return ", ".join(dict.fromkeys(reading.outcome.value for reading in self.readings))

    @property
    def gates(self) -> list[str]:
        """Ids of the gates that failed, each once."""
        return list(dict.fromkeys(name for reading in self.readings for _, name in reading.failed))

    def get(self, key: str) -> Summary | None:
        """A metric over the repeats; None when none of them has it."""
        if key not in self._summaries:
            self._summaries[key] = _summary(self.readings, key)
        return self._summaries[key]

    def value(self, key: str) -> float | None:
        found = self.get(key)
        return None if found is None else found.value


def _summary(readings: Sequence[Reading], key: str) -> Summary | None:
    there = [(reading, reading.values[key]) for reading in readings if key in reading.values]
    if not there:
        return None
    first = there[0][1]
    same = [(reading, value) for reading, value in there if value.kind.definition == first.kind.definition]
    with_value = sorted(
        ((value.value, reading) for reading, value in same if value.value is not None), key=lambda pair: pair[0]
    )
    if not with_value:
        return Summary(kind=first.kind, value=None, n=first.n, note=first.note, reading=there[0][0])
    note = ""
    if len(with_value) < len(readings):
        missing = next((value.note for _, value in there if value.value is None and value.note), "")
        note = f"{len(readings) - len(with_value)} of {len(readings)} repeats have none" + (
            f": {missing}" if missing else ""
        )
    middle = with_value[(len(with_value) - 1) // 2][1]
    if note and any(value.value is None and value.note.startswith("unbounded") for _, value in there):
        # a repeat whose percentile falls on failed requests is slower than any number: the median must not forget it
        return Summary(
            kind=first.kind, value=None, n=first.n, note=f"unbounded in some repeats; {note}", reading=middle
        )
    values = [value for value, _ in with_value]
    return Summary(
        kind=first.kind,
        value=statistics.median(values),
        least=values[0] if len(values) > 1 else None,
        most=values[-1] if len(values) > 1 else None,
        n=middle.values[key].n,
        note=note or middle.values[key].note,
        reading=middle,
    )


def rows_of(readings: Iterable[Reading]) -> list[Row]:
    """Rows in the order of their points' first appearance. Repeats are of one row where benchmark (its source too),
    backend, parameters, environment and standing are equal; requests are never pooled."""
    keys = Keys()
    groups: dict[tuple[object, ...], dict[Standing, Row]] = {}
    for reading in readings:
        key = (*keys.of(reading), reading.fingerprint, reading.environment_key, reading.provenance)
        by_standing = groups.setdefault(key, {})
        mine = standing(reading)
        row = by_standing.get(mine)
        if row is None:
            by_standing[mine] = Row(point=reading.point, standing=mine, readings=[reading])
        else:
            row.readings.append(reading)
    for by_standing in groups.values():
        for row in by_standing.values():
            row.others = sum(len(other.readings) for other in by_standing.values() if other is not row)
    return [row for by_standing in groups.values() for row in by_standing.values()]


def by_lane(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Lanes in order of appearance."""
    lanes: dict[str, list[Row]] = {}
    for row in rows:
        lanes.setdefault(row.point.lane, []).append(row)
    return lanes


def benchmark_of(point: Point) -> str:
    """`closed_loop` of `benchmarks/serving/bench_closed_loop.py::bench_closed_loop`."""
    return point.benchmark.rpartition("::")[2].removeprefix("bench_") or point.benchmark or point.id


def varying(rows: Sequence[Row]) -> list[str]:
    """Names of the parameters in which `rows` differ, axes first."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row.point.axes))
    for row in rows:
        names.update(dict.fromkeys(row.point.params))
    found = []
    for name in names:
        values = {_flat(row.point.params.get(name)) for row in rows}
        if len(values) > 1:
            found.append(name)
    return found


def as_float(value: object) -> float | None:
    """A finite number as a float; None for anything else, and for what no float can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def text_of(value: Json) -> str:
    """Any value as text; of a whole number with more digits than Python writes, that it is one."""
    try:
        return str(value)
    except ValueError:
        return "a very large number"


def _flat(value: Json) -> str | float | None:
    return value if isinstance(value, (str, int, float)) or value is None else text_of(value)


def order(rows: Sequence[Row]) -> list[Row]:
    """By benchmark, backend, and then by the parameters that vary, numbers as numbers."""
    names = varying(rows)

    def key(row: Row) -> tuple[object, ...]:
        parts: list[tuple[int, float, str]] = []
        for name in names:
            number = as_float(row.point.params.get(name))
            if number is not None:
                parts.append((0, number, ""))
            else:
                parts.append((1, 0.0, text_of(row.point.params.get(name))))
        return (row.point.benchmark, row.point.backend, *parts)

    return sorted(rows, key=key)


def link(folder: Path, base: Path, file: str = "record.json") -> str:
    """Address of a file of a receipt, relative to the folder the report is written to."""
    import os
    from urllib.parse import quote

    return quote(os.path.relpath(folder / file, base).replace(os.sep, "/"))


def median_reading(row: Row, keys: Mapping[str, object] | Sequence[str]) -> Reading:
    """The repeat that stands for a row: the median one by the first metric that has a value."""
    for key in keys:
        found = row.get(key)
        if found is not None and found.reading is not None and found.value is not None:
            return found.reading
    return row.readings[0]
