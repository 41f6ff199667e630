"""What went wrong, what was not measured, and where the rest was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from neuronbench.compare.reading import Reading
from neuronbench.model import Json, Provenance, Record
from neuronbench.receipts.files import inside
from neuronbench.report.page.figure import Cell, Link, Table, Text
from neuronbench.report.page.gather import Content
from neuronbench.report.page.rows import Row, Standing, text_of
from neuronbench.words import counted

GROUPS: Final = 60
NAMES: Final = 5
REASONS: Final = 40
ENVIRONMENTS: Final = 12
LINE: Final = 600
"""Characters of a causal line."""
_HOST_FIRST: Final = ("backend.", "neuron.", "host.", "stack.", "env.", "git.", "harness.")


# --------------------------------------------------------------------------------------------------------------------
# failures


def failures(rows: Sequence[Row], boots: Sequence[Reading], content: Content) -> list[Table | Text]:
    """Failures by class and causal line, the most frequent first; and what was skipped, with its reason."""
    failed = [reading for row in rows if row.standing is Standing.FAILED for reading in row.readings]
    failed += [reading for reading in boots if reading.outcome.value != "ok"]
    groups: dict[str, list[Reading]] = {}
    for reading in failed:
        groups.setdefault(reading.error or f"{reading.outcome.value}: {reading.reason}", []).append(reading)
    found: list[Table | Text] = []
    if not groups:
        found.append(Text(lines=["Nothing failed."]))
    else:
        found += _failure_tables(failed, groups, content)
    absent = [reading for row in rows if row.standing is Standing.ABSENT for reading in row.readings]
    if absent:
        found.append(_absent(absent))
    return found


def _failure_tables(
    failed: Sequence[Reading], groups: Mapping[str, Sequence[Reading]], content: Content
) -> list[Table | Text]:
    classes = Counter(reading.error.partition(":")[0] or reading.outcome.value for reading in failed)
    counted = ", ".join(f"{name} {count}" for name, count in classes.most_common())
    ranked = sorted(groups.values(), key=lambda group: -len(group))
    rows: list[list[Cell | str]] = []
    for group in ranked[:GROUPS]:
        first = group[0]
        record = content.source.record(first)
        error = None if record is None else record.error
        line = (error.causal_line or error.message if error else "") or first.error or first.reason
        log = ""
        if record is not None and error is not None and error.log and inside(first.path, error.log):
            log = content.source.link(first, error.log)
        rows.append(
            [
                Cell(text=error.kind if error else first.outcome.value, tone="bad", marks=_marks(group)),
                error.phase if error else "–",
                Cell(text=str(len(group)), sort=float(len(group))),
                Cell(text=" ".join(line.split())[:LINE], href=log, title="its log" if log else "", tone="bad"),
                " ".join((error.remedy or error.cause).split()) if error else "",
                _receipts(group, content),
            ]
        )
    notes = [f"By class: {counted}."]
    if len(ranked) > GROUPS:
        notes.append(f"{len(ranked) - GROUPS} rarer ones are left out of this table.")
    columns = ["class", "phase", "records", "causal line", "remedy", "receipt"]
    return [
        Table(
            title=f"{len(failed)} failure{'s' * (len(failed) != 1)}",
            columns=columns,
            rows=rows,
            right=frozenset({2}),
            notes=notes,
            omitted=max(0, len(ranked) - GROUPS),
        )
    ]


def _marks(group: Sequence[Reading]) -> list[str]:
    """Whose failures they are, where they are not of this hardware, here."""
    words = dict.fromkeys(reading.provenance for reading in group)
    return [word.value for word in words if word is not Provenance.MEASURED]


def _receipts(group: Sequence[Reading], content: Content) -> Cell:
    rest = len(group) - NAMES
    return Cell(
        text=f"and {rest} more" if rest > 0 else "",
        links=[Link(text=each.name, href=content.source.link(each), title=each.receipt_id) for each in group[:NAMES]],
    )


def _absent(absent: Sequence[Reading]) -> Table:
    groups: dict[tuple[str, str], list[Reading]] = {}
    for reading in absent:
        groups.setdefault((reading.outcome.value, reading.reason), []).append(reading)
    rows: list[list[Cell | str]] = [
        [outcome, Cell(text=str(len(members)), sort=float(len(members))), reason or "–", members[0].point.id]
        for (outcome, reason), members in sorted(groups.items(), key=lambda each: -len(each[1]))[:REASONS]
    ]
    more = max(0, len(groups) - REASONS)
    return Table(
        title="Not measured",
        columns=["outcome", "points", "reason", "first of them"],
        rows=rows,
        right=frozenset({1}),
        omitted=more,
        folded=True,
        notes=[f"{counted(more, 'more reason is', 'more reasons are')} left out."] if more else [],
    )


# --------------------------------------------------------------------------------------------------------------------
# environments


def environments(readings: Sequence[Reading], content: Content) -> list[Table | Text]:
    """Facts of each environment that anything was measured in; in what they differ comes first."""
    first: dict[str, Reading] = {}
    for reading in readings:
        first.setdefault(reading.environment_key, reading)
    records: dict[str, Record] = {}
    for key, reading in list(first.items())[:ENVIRONMENTS]:
        record = content.source.record(reading)
        if record is not None:
            records[key] = record
    if not records:
        return [Text(lines=["No environment is known."])]
    facts: dict[str, None] = {}
    for record in records.values():
        facts.update(dict.fromkeys(record.environment.facts))
    ordered = sorted(facts, key=lambda name: (_rank(name), name))

    def value(key: str, name: str) -> str:
        return _told(records[key].environment.facts.get(name))

    differing = [name for name in ordered if len({value(key, name) for key in records}) > 1]
    columns = ["fact", *(f"{content.environments.get(key, '?')} ({key[:8] or 'unknown'})" for key in records)]
    heads: list[list[Cell | str]] = [
        ["first receipt", *(Cell(text=first[key].receipt_id, href=content.source.link(first[key])) for key in records)]
    ]
    found: list[Table | Text] = []
    if len(records) > 1:
        title = f"In what the {len(records)} environments differ"
        found.append(Table(title=title, columns=columns, rows=[*heads, *_facts(differing, records, value)]))
    same = [name for name in ordered if name not in differing]
    title = "What they have in common" if len(records) > 1 else "Environment"
    more = len(first) - len(records)
    notes = [f"{counted(more, 'more environment is', 'more environments are')} left out."] if more > 0 else []
    one = next(iter(records))
    rows: list[list[Cell | str]] = [] if len(records) > 1 else [list(heads[0])]
    rows += [[name, value(one, name)] for name in same if value(one, name) != "–"]
    found.append(
        Table(title=title, columns=["fact", "value"], rows=rows, folded=True, notes=notes, omitted=max(0, more))
    )
    return found


def _facts(names: Sequence[str], records: Mapping[str, Record], value: object) -> list[list[Cell | str]]:
    assert callable(value)
    return [[name, *(value(key, name) for key in records)] for name in names]


def _rank(name: str) -> int:
    return next((index for index, prefix in enumerate(_HOST_FIRST) if name.startswith(prefix)), len(_HOST_FIRST))


def _told(value: Json) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, (list, tuple)):
        return " ".join(map(text_of, value))
    return text_of(value)
