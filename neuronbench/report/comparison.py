"""A comparison in words and as tables for a terminal: worst first, and why wherever there is no verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from neuronbench.compare import Comparison, Row, Verdict
from neuronbench.model import Metric
from neuronbench.report import tables
from neuronbench.words import counted

if TYPE_CHECKING:
    from rich.table import Table

ROWS: Final = 60
"""Rows of a table on a terminal; more of them are counted, not shown."""
NOTES: Final = 6
STYLES: Final = {
    Verdict.REGRESSED: "red",
    Verdict.IMPROVED: "green",
    Verdict.UNCHANGED: "dim",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INCOMPARABLE: "yellow",
}


# --------------------------------------------------------------------------------------------------------------------
# words


def amount(value: float | None, row: Row) -> str:
    """A value of a row as it stands in our other tables."""
    kind = row.metric
    metric = Metric(id=kind.id or "x", value=value, unit=kind.unit, stat=kind.stat)
    return tables.number(metric)


def change(value: float | None, row: Row) -> str:
    """`+5.2 %`, `−0.3 pp`, `+4.1 ms`: a change on the scale of the row."""
    if value is None:
        return "–"
    if row.log:
        size = 100 * math.expm1(value) if value < 700 else math.inf
        if size >= 900:
            return f"× {size / 100 + 1:.3g}"
        return _signed(size, " %")
    if row.metric.unit == "share":
        return _signed(100 * value, " pp")
    return _signed(value, f" {row.metric.unit}".rstrip())


def _percent(log_ratio: float) -> str:
    return _signed(100 * math.expm1(min(log_ratio, 700.0)), " %")


def _size(log_ratio: float) -> str:
    """`3.2 %`, `180 %`, `× 45`: how large a change has to be, for a rise."""
    size = 100 * math.expm1(min(log_ratio, 700.0))
    if size >= 900:
        return f"× {size / 100 + 1:.3g}"
    return f"{size:.0f} %" if size >= 100 else f"{size:.2g} %"


def _signed(value: float, unit: str) -> str:
    text = f"{abs(value):.3g}" if abs(value) >= 100 else f"{abs(value):.1f}" if abs(value) >= 0.95 else f"{value:.2g}"
    text = text.lstrip("-")
    if float(text) == 0:
        return f"0{unit}"
    return f"{'−' if value < 0 else '+'}{text}{unit}"


def interval(row: Row) -> str:
    """`−1.2 … +3.4 %`; empty without one."""
    if row.low is None or row.high is None:
        return ""
    low, high = change(row.low, row), change(row.high, row)
    number, _, unit = low.partition(" ")
    return f"{number} … {high}" if high.endswith(f" {unit}") else f"{low} … {high}"


def verdict(row: Row) -> str:
    """`regressed`, or `inconclusive (3 more)`: so many more repeats a side would settle it."""
    if row.verdict is Verdict.INCONCLUSIVE and row.more is not None:
        return f"{row.verdict.value} ({row.more} more)"
    return row.verdict.value


def counts(comparison: Comparison) -> str:
    """`1 regressed, 2 incomparable, 9 unchanged`, and before it how many points ended worse, are gone, or are new."""
    parts = [f"{count} {verdict.value}" for verdict, count in comparison.counts.items() if count]
    kinds = Counter(change.kind for change in comparison.outcomes)
    if kinds["failing"]:
        parts.append(f"{counted(kinds['failing'], 'point')} failing on both sides")
    parts[:0] = [f"{counted(kinds[kind], 'point')} {kind}" for kind in ("gone", "new") if kinds[kind]]
    worse = sum(change.worse for change in comparison.outcomes)
    if worse:
        parts.insert(0, f"{counted(worse, 'point')} ended worse")
    return ", ".join(parts) or "nothing to compare"


def heading(comparison: Comparison) -> list[str]:
    """What A and B are, and what else is different about them."""
    lines = []
    for name, side in (("A", comparison.base), ("B", comparison.head)):
        sessions = ", ".join(side.sessions[:3]) + (f" and {len(side.sessions) - 3} more" * (len(side.sessions) > 3))
        told = "" if side.sessions == (side.label,) else f" = {sessions}"
        lines.append(f"{name}  {side.label}{told}, {counted(side.receipts, 'receipt')}")
    a, b = comparison.base.context, comparison.head.context
    differs = [
        f"{name} {_facts(a.get(name, ()))} → {_facts(b.get(name, ()))}"
        for name in dict.fromkeys((*a, *b))
        if a.get(name) != b.get(name)
    ]
    if differs:
        lines.append("also differs (not a reason not to compare): " + ", ".join(differs))
    return lines


def _facts(values: Iterable[object]) -> str:
    told = [str(value) for value in values] or ["unknown"]
    short = [text[:10] if len(text) == 40 else text for text in told]
    return short[0] if len(short) == 1 else f"{short[0]} and {len(short) - 1} more"


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why there is no verdict, each reason once with how many rows it is about; and how to get one."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.verdict in (Verdict.INCOMPARABLE, Verdict.INCONCLUSIVE):
            groups.setdefault((row.verdict.value, row.reason), []).append(row)
    lines = []
    for (name, reason), members in groups.items():
        points = {row.point for row in members}
        where = f"{members[0].point} {members[0].metric.key}" if len(members) == 1 else _counted(members, points)
        lines.append(f"{name}: {where}: {reason}")
        fields = [d.field for d in members[0].differences if not d.allowed]
        if fields and name == Verdict.INCOMPARABLE.value and any(field in reason for field in fields):
            lines.append(f"    in spite of that: {' '.join(f'--allow {field}' for field in fields[:6])}")
    return lines


def _counted(rows: Sequence[Row], points: set[str]) -> str:
    where = f"of {next(iter(points))}" if len(points) == 1 else f"at {counted(len(points), 'point')}"
    return f"{counted(len(rows), 'metric')} {where}"


def marks(rows: Sequence[Row]) -> list[str]:
    """What has to be said beside verdicts, each once."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.verdict is not Verdict.INCOMPARABLE:
            for mark in row.marks:
                groups.setdefault(mark, []).append(row)
    return [
        f"{mark}: {members[0].point}"
        if len(points := {r.point for r in members}) == 1
        else f"{mark}: {len(points)} points"
        for mark, members in groups.items()
    ]


def footing(comparison: Comparison) -> list[str]:
    """What the verdicts rest on: floors, spreads, what so many repeats can find, and the means over points."""
    rows = [row for row in comparison.rows if row.floor is not None]
    lines = []
    floors: dict[str, set[str]] = {}
    for row in rows:
        if row.floor is not None:
            floors.setdefault(row.floor.text, set()).add(row.metric.key)
    if floors:
        told = [f"{text}: {', '.join(sorted(keys)[:4])}" for text, keys in list(floors.items())[:8]]
        lines.append("noise floors: " + "; ".join(told))
    finds = sorted((row.detectable, row.metric.key) for row in rows if row.detectable is not None and row.log)
    if finds:
        least, most = finds[0], finds[-1]
        lines.append(
            f"so many repeats find a change of {_size(least[0])} ({least[1]}) to {_size(most[0])} ({most[1]}) "
            "with a chance of 80 % each"
        )
    spreads = dict.fromkeys(row.spread for row in rows if row.spread and row.spread != "repeats")
    if spreads:
        lines.append(f"intervals rest on: {', '.join(spreads)}")
    for each in comparison.overall:
        between = "" if each.low is None or each.high is None else f" ({_percent(each.low)} … {_percent(each.high)})"
        lines.append(
            f"{each.metric.key} over {counted(each.points, 'point')}: geometric mean {_percent(each.change)}{between}"
        )
    notes = list(comparison.notes)
    if len(notes) > NOTES:
        notes[NOTES - 1 :] = [
            f"and {counted(len(notes) - NOTES + 1, 'more metric has', 'more metrics have')} no value on either side"
        ]
    return [*lines, *notes]


def shown(rows: Sequence[Row], limit: int) -> tuple[list[Row], str]:
    """The rows a table shows, and a line on those it does not."""
    compared = [row for row in rows if row.verdict is not Verdict.INCOMPARABLE]
    if limit <= 0 or len(compared) <= limit:
        return compared, ""
    rest = compared[limit:]
    names = [f"{sum(row.verdict is v for row in rest)} {v.value}" for v in Verdict if any(r.verdict is v for r in rest)]
    return compared[
        :limit
    ], f"{counted(len(rest), 'more row is', 'more rows are')} not shown ({', '.join(names)}): --all shows them"


# --------------------------------------------------------------------------------------------------------------------
# a terminal


def rows_table(rows: Sequence[Row], title: str) -> Table:
    """One line a metric and point. `n` is repeats of A against B."""
    from rich.text import Text

    table = tables.plain_table(title)
    table.add_column("point", overflow="fold")
    table.add_column("metric", overflow="fold")
    for name in ("A", "B", "change", "95 % interval", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    before = ""
    for row in rows:
        style = STYLES[row.verdict]
        starred = "*" if any(mark.split(" ")[0] != "advisory:" for mark in row.marks) else ""
        cells = [
            row.point if row.point != before else "",
            row.metric.key,
            amount(row.base.centre, row),
            amount(row.head.centre, row),
            change(row.change, row),
            interval(row),
            f"{row.base.n}:{row.head.n}",
        ]
        table.add_row(*map(Text, cells), Text(verdict(row) + starred, style=style))
        before = row.point
    return table


def outcomes_table(comparison: Comparison) -> Table:
    from rich.text import Text

    table = tables.plain_table("how points ended")
    table.add_column("", no_wrap=True)
    table.add_column("point", overflow="fold")
    table.add_column("A → B", overflow="fold")
    for each in comparison.outcomes:
        style = "red" if each.worse else "green" if each.kind in ("fixed", "validated", "slo_met") else "dim"
        table.add_row(Text(each.kind, style=style), Text(each.point), Text(each.text))
    return table


def parts(comparison: Comparison, *, limit: int = ROWS) -> list[Table | str]:
    """All there is to show, in order: lines of text and tables."""
    found: list[Table | str] = [*heading(comparison)]
    if comparison.outcomes:
        found.append(outcomes_table(comparison))
    rows, more = shown(comparison.rows, limit)
    if rows:
        found.append(rows_table(rows, "A against B, worst first"))
    if more:
        found.append(more)
    told = marks(comparison.rows)
    found += reasons(comparison.rows)
    if told:
        found += ["marked (*):", *(f"  {line}" for line in told[:12])]
        if len(told) > 12:
            found.append(f"  and {len(told) - 12} more: --format json has all of them")
    found += footing(comparison)
    found.append(counts(comparison))
    return found
