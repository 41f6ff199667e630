"""Tables of a lane: the headline of what may be quoted, and everything else in places of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuronbench.compare.reading import Reading
from neuronbench.model import Metric
from neuronbench.report import tables
from neuronbench.report.gates import gate_line, unjudged_lines
from neuronbench.report.page.figure import Cell, Link, Table, Text, Tone
from neuronbench.report.page.gather import Content
from neuronbench.report.page.rows import Row, Standing, Summary, as_float, benchmark_of, median_reading, order, text_of
from neuronbench.words import counted

ROWS: Final = 500
"""Of one table at most: a phone has to scroll through them."""
COLUMNS: Final = 8
"""Metrics of a lane that names no headline."""
LOOKED: Final = 30
"""Records that are opened for what their gates observed: a page is of up to ten thousand."""
LINKS: Final = 6
"""Repeats that are linked one by one."""
_TITLES: Final = {
    Standing.VALID: "",
    Standing.PROVISIONAL: "Provisional: not to be quoted until the named gates are settled",
    Standing.INVALID: "Invalid: a gate has failed, the numbers say nothing",
    Standing.IMPORTED: "Imported: measured by others, by other rules",
    Standing.SIMULATED: "Simulated: not this hardware",
}


def tables_of(lane: str, rows: Sequence[Row], content: Content) -> list[Table | Text]:
    """The headline first; then provisional, invalid, imported, simulated, each with its gates."""
    found: list[Table | Text] = []
    for standing, title in _TITLES.items():
        members = order([row for row in rows if row.standing is standing])
        if not members and standing is not Standing.VALID:
            continue
        if not members:
            found.append(Text(lines=["No valid record of this lane: there is no number to quote."]))
            continue
        found.append(_table(title or "Headline", standing, members, content, lane))
        told = _record_notes(members[:ROWS], content)
        if standing in (Standing.VALID, Standing.PROVISIONAL):
            told = [*_unjudged(members, content), *told]
        if standing is not Standing.VALID:
            told = [*_gate_lines(members, content), *told]
        if told:
            found.append(Text(lines=told, bullet=True))
    return found


def keys_of(rows: Sequence[Row], headline: Sequence[str]) -> list[str]:
    """Metrics that are shown: of the headline those that any record has; else the first that have a value."""
    readings = [reading for row in rows for reading in row.readings]
    there: dict[str, None] = {}
    shapes: set[tuple[str, ...]] = set()
    for reading in readings:
        if (shape := tuple(reading.values)) not in shapes:
            shapes.add(shape)
            there.update(dict.fromkeys(shape))
    wanted = [key for key in dict.fromkeys((*headline, *tables.ACCURACY)) if key in there]
    with_value = {key for key in wanted if any(_has(reading, key) for reading in readings)}
    if with_value:
        return [key for key in wanted if key in with_value or key in headline]
    valued = [key for key in there if any(_has(reading, key) for reading in readings)]
    return valued[:COLUMNS] or list(there)[:COLUMNS]


def _has(reading: Reading, key: str) -> bool:
    return key in reading.values and reading.values[key].value is not None


def name_of(row: Row) -> str:
    """A point without what its columns say already."""
    stem = f"{row.point.lane}.{benchmark_of(row.point)}-{row.point.backend}"
    return row.point.id.removeprefix(stem).lstrip("-") or row.point.id or "–"


def label_of(row: Row, content: Content) -> str:
    """A point outside of its table: benchmark, backend, name, its environment where there are several, its marks."""
    several = len(content.environments) > 1
    environment = [content.environments[row.environment]] if several else []
    marks = [f"({', '.join(row.marks)})"] if row.marks else []
    return " ".join([benchmark_of(row.point), row.point.backend, name_of(row), *environment, *marks])


def _table(title: str, standing: Standing, rows: Sequence[Row], content: Content, lane: str) -> Table:
    keys = keys_of(rows, content.headline(lane))
    several = len({row.environment for row in rows}) > 1
    gated = any(row.gates for row in rows) and standing is not Standing.VALID
    columns = [
        *("point", "result"), *(_heading(rows, key) for key in keys), *("repeats", "n"),
        *(["env"] if several else []), *(["gates"] if gated else []), "receipts",
    ]  # fmt: skip
    shown = rows[:ROWS]
    made: list[list[Cell | str]] = [
        [
            Cell(text=name_of(row), sub=f"{benchmark_of(row.point)}, {row.point.backend}", title=_params(row)),
            Cell(text=row.outcomes, tone="good" if row.outcomes == "ok" else "warn", marks=row.marks),
            *(value_cell(row, key, content) for key in keys),
            _repeats(row),
            _count(row, keys),
            *([Cell(text=content.environments[row.environment], href="#environment")] if several else []),
            *([Cell(text=", ".join(row.gates), tone="warn")] if gated else []),
            _links(row, content),
        ]
        for row in shown
    ]
    notes = [*_notes(shown, keys)]
    omitted = len(rows) - len(shown)
    if omitted:
        many = counted(omitted, "more point is", "more points are")
        notes.append(
            f"{many} not in this table, which holds {ROWS} at most: name a part of them, such as "
            f"'{content.label}@{_narrower(rows[-1], lane)}'"
        )
    return Table(
        title=title,
        columns=columns,
        rows=made,
        right=frozenset(range(2, 4 + len(keys))),
        omitted=omitted,
        notes=notes,
        marks=[standing.value] if standing is not Standing.VALID else [],
        folded=standing is Standing.INVALID,
    )


def _narrower(row: Row, lane: str) -> str:
    """What could be added to a selector to see a row that had no room."""
    axis = next(iter(row.point.axes), "")
    return f"{axis}={text_of(row.point.params.get(axis))}" if axis else f"lane={lane}"


def _heading(rows: Sequence[Row], key: str) -> str:
    kind = next(found.kind for row in rows if (found := row.get(key)) is not None)
    return " ".join(tables.heading(Metric(id=kind.id or "x", value=None, unit=kind.unit, stat=kind.stat)).split())


def amount(summary: Summary, value: float | None) -> str:
    """A value as it stands in our other tables."""
    kind = summary.kind
    return tables.number(Metric(id=kind.id or "x", value=value, unit=kind.unit, stat=kind.stat, note=summary.note))


def value_cell(row: Row, key: str, content: Content) -> Cell:
    """A metric of a row, linked to the receipt of the median repeat, with what it lies between."""
    found = row.get(key)
    if found is None:
        return Cell(text="–", tone="faint", title="this record has no such metric")
    where = content.source.link(found.reading) if found.reading is not None else ""
    told = [f"{found.kind.definition}, n = {found.n}"]
    sub = ""
    if found.value is not None and found.least is not None:
        sub = f"{amount(found, found.least)}…{amount(found, found.most)}"
        told.insert(0, f"median of {len(row.readings)} repeats, least … most below it")
    elif found.value is not None and found.reading is not None:
        low, high = content.source.bounds(found.reading, key)
        if low is not None or high is not None:
            ends = (amount(found, end) if end is not None else "?" for end in (low, high))
            sub = f"[{', '.join(ends)}]"
            told.insert(0, "one repeat; in brackets the bounds of its own requests or calls")
        else:
            told.insert(0, "one repeat")
    if found.note:
        told.append(found.note)
    text = amount(found, found.value)
    tone: Tone = "faint" if found.value is None else ""
    return Cell(text=text, sub=sub, href=where, title="; ".join(told), tone=tone, sort=found.value)


def _repeats(row: Row) -> Cell:
    count = len(row.readings)
    if not row.others:
        return Cell(text=str(count), sort=float(count))
    title = (
        f"{counted(row.others, 'more repeat of this point is', 'more repeats of this point are')} of another standing"
    )
    return Cell(text=f"{count} of {count + row.others}", title=title, tone="warn", sort=float(count))


def _count(row: Row, keys: Sequence[str]) -> Cell:
    found = next((summary for key in keys if (summary := row.get(key)) is not None), None)
    if found is None:
        return Cell(text="–")
    return Cell(
        text=str(found.n), sort=as_float(found.n), title=f"observations of {found.kind.key}; the others' at them"
    )


def _params(row: Row) -> str:
    return ", ".join(f"{name}={text_of(value)}" for name, value in row.point.params.items())


def _links(row: Row, content: Content) -> Cell:
    """The repeats of a row, the one that stands for it first; the numbers have links of their own to the median."""
    one = median_reading(row, list(row.readings[0].values))
    ordered = [one, *(reading for reading in row.readings if reading is not one)]
    rest = len(ordered) - LINKS
    return Cell(
        text=f"and {rest} more" if rest > 0 else "",
        links=[
            Link(text=f"r{each.repeat}", href=content.source.link(each), title=each.receipt_id)
            for each in ordered[:LINKS]
        ],
    )


def _notes(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """What the `few` of a table would take, and why a column has no value."""
    found: dict[str, int] = {}
    for row in rows:
        for key in keys:
            summary = row.get(key)
            if summary is not None and summary.value is None and summary.note:
                text = summary.note.partition(", found")[0]
                found[f"{key}: {text}"] = found.get(f"{key}: {text}", 0) + 1
    lines = [f"{text} ({count} points)" if count > 1 else text for text, count in list(found.items())[:6]]
    return lines + ([f"and {counted(len(found) - 6, 'more reason')}, at the fields"] if len(found) > 6 else [])


GATES: Final = 40
NOTES: Final = 8


def _record_notes(rows: Sequence[Row], content: Content) -> list[str]:
    """Notes of the records themselves, each once, with the points it is of."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        for note in dict.fromkeys(content.source.notes(row.readings[0])):
            groups.setdefault(note, []).append(name_of(row))
    lines = [
        f"note of {names[0] if len(names) == 1 else f'{len(names)} points'}: {note}"
        for note, names in list(groups.items())[:NOTES]
    ]
    return lines + (
        [f"and {counted(len(groups) - NOTES, 'more note')}, in the receipts"] if len(groups) > NOTES else []
    )


def _gate_lines(rows: Sequence[Row], content: Content) -> list[str]:
    """Each failed gate once, with how many records, and what was observed in the first of them."""
    groups: dict[tuple[str, str], list[Reading]] = {}
    for row in rows:
        for reading in row.readings:
            for severity, name in reading.failed:
                groups.setdefault((severity, name), []).append(reading)
    lines = []
    for (severity, name), readings in list(groups.items())[:GATES]:
        looked = [record for reading in readings[:LOOKED] if (record := content.source.record(reading))]
        gates = [gate for record in looked for gate in record.gates if gate.id == name and gate.passed is False]
        alone = f"{severity}: {name}, {counted(len(readings), 'record')}"
        lines.append(gate_line(gates, len(readings)) if gates else alone)
    return lines


def _unjudged(rows: Sequence[Row], content: Content) -> list[str]:
    """Each gate once that could not be evaluated where a number may be taken for good."""
    records = [record for row in rows[:LOOKED] if (record := content.source.record(row.readings[0]))]
    return unjudged_lines(gate for record in records for gate in record.gates)
