"""Measured beside published: a row for each published figure of a point, and what is odd about where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from neuronbench.compare.reading import Reading
from neuronbench.model import Json
from neuronbench.report.page.figure import Cell, Table
from neuronbench.report.page.gather import Content
from neuronbench.report.page.lanes import amount, label_of
from neuronbench.report.page.rows import Row, Standing, as_float, text_of
from neuronbench.words import counted

POINTS: Final = 100
NOTES: Final = 40
RATIO: Final = "measured_over_published"


def published(rows: Sequence[Row], content: Content) -> list[Table]:
    """Of points that a published table has a row of: its figures, ours, and their ratio or why there is none."""
    made: list[list[Cell | str]] = []
    notes: dict[str, None] = {}
    marks: dict[str, None] = {}
    points = omitted = 0
    for row in rows:
        keys = [key for key in row.readings[0].values if key.startswith(f"{RATIO}_")]
        if not keys or row.standing in (Standing.FAILED, Standing.ABSENT):
            continue
        if points >= POINTS:
            omitted += 1
            continue
        reading = row.readings[(len(row.readings) - 1) // 2]
        record = content.source.record(reading)
        told = None if record is None else record.workload.get("published")
        if not isinstance(told, Mapping):
            continue
        points += 1
        made += [_row(row, reading, key, told, content) for key in keys]
        for id_, text in _findings(told):
            notes[f"{id_}: {text} ({_word(told, 'edition')}, {_word(told, 'model')})"] = None
        marks.update(dict.fromkeys(row.marks))
    if not made:
        return []
    lines = list(notes)[:NOTES]
    if len(notes) > NOTES:
        lines.append(f"and {counted(len(notes) - NOTES, 'more finding')}, in the receipts")
    if omitted:
        lines.append(f"{counted(omitted, 'more point is', 'more points are')} left out of this table.")
    columns = ["point", "figure", "published", "measured / published", "published in", "model there", "findings"]
    return [
        Table(
            title="Beside published figures",
            columns=columns,
            rows=made,
            right=frozenset({2, 3}),
            notes=lines,
            omitted=omitted,
            marks=list(marks),
        )
    ]


def _row(row: Row, reading: Reading, key: str, told: Mapping[str, Json], content: Content) -> list[Cell | str]:
    stat = key.removeprefix(f"{RATIO}_")
    found = row.get(key)
    pair = _compared(told, stat)
    figure = as_float(pair.get("published"))
    shown = Cell(text="–", tone="faint")
    if figure is not None:
        shown = Cell(text=f"{figure:,g} {_word(pair, 'unit', '')}".strip(), sort=figure)
    where = content.source.link(found.reading if found is not None and found.reading is not None else reading)
    ratio = Cell(text="–", tone="faint")
    if found is not None and found.value is None:
        ratio = Cell(text="not compared", sub=found.note, tone="faint", href=where)
    elif found is not None:
        ratio = Cell(text=amount(found, found.value), href=where, title=found.note, sort=found.value)
    source = f"{_word(told, 'edition')}, {_word(told, 'instance_type')}, SDK {_word(told, 'sdk_version', 'not stated')}"
    findings = ", ".join(id_ for id_, _ in _findings(told))
    return [
        Cell(text=label_of(row, content), href=content.source.link(reading)),
        stat.replace("_", " "),
        shown,
        ratio,
        Cell(text=source, sub=_word(told, "as_of", ""), title=_word(told, "source", "")),
        _word(told, "model"),
        Cell(text=findings or "–", tone="warn" if findings else ""),
    ]


def _compared(told: Mapping[str, Json], stat: str) -> Mapping[str, Json]:
    pairs = told.get("compared")
    found = [each for each in pairs if isinstance(each, Mapping)] if isinstance(pairs, list) else []
    return next((each for each in found if each.get("stat") == stat), {})


def _findings(told: Mapping[str, Json]) -> list[tuple[str, str]]:
    found = told.get("findings")
    many = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    return [(_word(each, "id"), _word(each, "text")) for each in many]


def _word(told: Mapping[str, Json], name: str, missing: str = "–") -> str:
    value = told.get(name)
    return missing if value is None or value == "" else text_of(value)
