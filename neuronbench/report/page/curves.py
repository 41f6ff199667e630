"""What a lane's points say together: latency over throughput, and where it turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from neuronbench.model import Provenance, canonical_json
from neuronbench.report.page.figure import SYMBOLS, Cell, Figure, Panel, Table, Text, Trace
from neuronbench.report.page.gather import Content
from neuronbench.report.page.lanes import label_of, value_cell
from neuronbench.report.page.rows import Row, Standing, as_float, benchmark_of, median_reading, text_of, varying
from neuronbench.training.curves import bounded

LOADS: Final = ("concurrency", "rate", "request_rate", "workers", "batch_size")
"""Parameters that a curve goes along, the first that varies."""
SERIES: Final = 8
POINTS: Final = 200
KNEE_NEEDS: Final = 3
SHOWN: Final = (Standing.VALID, Standing.PROVISIONAL, Standing.IMPORTED, Standing.SIMULATED)
VALUE: Final = 32
"""Characters of a parameter's value in a name."""
KNEE: Final = (
    "Knee: the load at which throughput / median latency is largest (Kleinrock's power, 1979); beside it the load with "
    "the most good requests a second, where limits were set. Valid points of one environment, three loads at least."
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which metrics make a curve."""

    x: str
    x_label: str
    y: Sequence[tuple[str, Sequence[str]]]
    """Label of a panel → metric keys: the first is drawn solid, the others dashed."""
    latency: Sequence[str]
    """For the knee: the first that is there."""


SHAPES: Final = (
    Shape(
        x="output_throughput_tok_s",
        x_label="output tok/s",
        y=(("TTFT ms", ("ttft_p50_ms", "ttft_p99_ms")), ("TPOT p50 ms", ("tpot_p50_ms",))),
        latency=("e2e_p50_ms", "ttft_p50_ms"),
    ),
    Shape(
        x="throughput_items_s",
        x_label="items/s",
        y=(("latency ms", ("latency_p50_ms", "latency_p99_ms")),),
        latency=("latency_p50_ms",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points that differ in their load only, by rising load."""

    name: str
    axis: str
    rows: Sequence[Row]


def shown(rows: Sequence[Row]) -> list[Row]:
    """What is drawn. Numbers of invalid records say nothing and would set the scale: they are only drawn where there is
    nothing else."""
    found = [row for row in rows if row.standing in SHOWN]
    return found or [row for row in rows if row.standing is Standing.INVALID]


def not_drawn(rows: Sequence[Row]) -> list[str]:
    """Says so of invalid points that are left out."""
    count = sum(row.standing is Standing.INVALID for row in rows)
    if not count or not any(row.standing in SHOWN for row in rows):
        return []
    return [f"{count} invalid point{'s are' if count > 1 else ' is'} not drawn: see the table of invalid ones."]


def series_of(rows: Sequence[Row], shape: Shape, content: Content) -> list[Series]:
    """Points with the metrics of `shape`, by all they share but the load; those with the most points first."""
    fit = [
        row
        for row in shown(rows)
        if row.value(shape.x) is not None and any(row.value(key) is not None for _, keys in shape.y for key in keys)
    ]
    groups: dict[tuple[str, str, str, str, str, str], list[Row]] = {}
    axes: dict[tuple[str, str, str, str, str, str], str] = {}
    for row in fit:
        axis = next((name for name in LOADS if name in row.point.axes), "") or next(
            (name for name in LOADS if name in row.point.params), ""
        )
        rest = {name: value for name, value in row.point.params.items() if name != axis}
        provenance = row.readings[0].provenance.value
        key = (row.point.benchmark, row.point.backend, row.environment, provenance, axis, canonical_json(rest))
        groups.setdefault(key, []).append(row)
        axes[key] = axis
    differing = varying([members[0] for members in groups.values()])
    found = []
    for key, members in groups.items():
        axis = axes[key]
        members.sort(key=lambda row: _load(row, axis))
        found.append(Series(name=_name(members[0], axis, differing), axis=axis, rows=members))
    names = Counter(one.name for one in found)
    found = [
        one
        if names[one.name] == 1
        else replace(one, name=f"{one.name} {content.environments[one.rows[0].environment]}")
        for one in found
    ]
    names = Counter(one.name for one in found)
    found = [
        one if names[one.name] == 1 else replace(one, name=f"{one.name} #{number}")
        for number, one in enumerate(found, start=1)
    ]
    return sorted(found, key=lambda one: -len(one.rows))


def _load(row: Row, axis: str) -> float:
    return as_float(row.point.params.get(axis)) or 0.0


def _name(row: Row, axis: str, differing: Sequence[str]) -> str:
    """Benchmark, backend, and what else tells a series from the others: axes first, then the model."""
    named = [name for name in differing if name != axis and (name in row.point.axes or name == "model")]
    params = [f"{name} {_short(text_of(row.point.params[name]))}" for name in named if name in row.point.params]
    provenance = row.readings[0].provenance
    marks = [] if provenance is Provenance.MEASURED else [f"({provenance.value})"]
    return " ".join([benchmark_of(row.point), row.point.backend, *params[:4], *marks])


def _short(text: str) -> str:
    return text if len(text) <= VALUE else f"{text[: VALUE - 1]}…"


def load_curve(lane: str, rows: Sequence[Row], content: Content) -> list[Figure | Table | Text]:
    """Latency over throughput, a line for each series, and the knees; nothing where no point has both."""
    for shape in SHAPES:
        many = series_of(rows, shape, content)
        if many:
            return [_curve(lane, many, shape, not_drawn(rows), content), *_knees(many, shape, content)]
    return []


def _curve(lane: str, many: Sequence[Series], shape: Shape, notes: list[str], content: Content) -> Figure:
    drawn, marks = many[:SERIES], dict[str, None]()
    if len(many) > SERIES:
        notes.append(f"{SERIES} of {len(many)} series are drawn: those with the most loads.")
    panels = []
    for label, keys in shape.y:
        traces = []
        for colour, one in enumerate(drawn):
            for number, key in enumerate(keys):
                kept, all_ = thinned([row for row in one.rows if row.value(key) is not None])
                if all_ and number == 0:
                    notes.append(f"{one.name}: {len(kept)} of {all_} points are drawn.")
                traces += _traces(one, kept, shape.x, key, colour, dashed=number > 0, content=content)
                marks.update(dict.fromkeys(mark for row in kept for mark in row.marks))
        panels.append(Panel(traces=traces, y=label, from_zero=True))
    axes = ", ".join(dict.fromkeys(one.axis for one in drawn if one.axis))
    if axes:
        notes.insert(0, f"Along a line {axes} rises. Solid: p50, dashed: p99." if len(shape.y[0][1]) > 1 else "")
    notes += legend(marks)
    return Figure(
        title=f"{lane}: latency over throughput",
        x=shape.x_label,
        panels=panels,
        notes=[note for note in dict.fromkeys(notes) if note],
        marks=list(marks),
    )


def thinned(rows: Sequence[Row]) -> tuple[list[Row], int]:
    if len(rows) <= POINTS:
        return list(rows), 0
    return [rows[index] for index in bounded(len(rows), POINTS)], len(rows)


def _traces(
    one: Series, rows: Sequence[Row], x: str, y: str, colour: int, *, dashed: bool, content: Content
) -> list[Trace]:
    """A line through all loads, and over it points that look like their standing."""
    if not rows:
        return []
    name = one.name
    line = Trace(
        name=name if not dashed else f"{name} p99",
        group=name,
        x=[row.value(x) or 0.0 for row in rows],
        y=[row.value(y) for row in rows],
        mode="lines",
        colour=colour,
        dashed=dashed,
    )
    found = [line]
    for mark in dict.fromkeys(row.mark for row in rows):
        members = [row for row in rows if row.mark == mark]
        found.append(points(name, members, (lambda row: row.value(x)), (lambda row: row.value(y)), y, colour, content))
    return found


def points(
    name: str,
    rows: Sequence[Row],
    x: Callable[[Row], float | None],
    y: Callable[[Row], float | None],
    key: str,
    colour: int,
    content: Content,
) -> Trace:
    """Points of one standing, with what they are and their receipts; least and most of repeats as bars."""
    ends = [row.get(key) for row in rows]
    return Trace(
        name=f"_{name}",
        group=name,
        x=[x(row) or 0.0 for row in rows],
        y=[y(row) for row in rows],
        mode="markers",
        colour=colour,
        symbol=SYMBOLS.get(rows[0].mark, "cross"),
        texts=[_told(row, key, content) for row in rows],
        links=[content.source.link(median_reading(row, [key])) for row in rows],
        low=[None if end is None else end.least for end in ends],
        high=[None if end is None else end.most for end in ends],
    )


def _told(row: Row, key: str, content: Content) -> str:
    repeats = f"median of {len(row.readings)} repeats" if len(row.readings) > 1 else ""
    return ": ".join(part for part in (label_of(row, content), ", ".join(filter(None, (key, repeats)))) if part)


def legend(marks: Sequence[str] | dict[str, None]) -> list[str]:
    words = {"open": "hollow circles", "square": "squares", "diamond": "diamonds", "cross": "crosses"}
    told = [f"{words[SYMBOLS[mark]]}: {mark}" for mark in marks if mark in SYMBOLS]
    return [f"Not a headline: {', '.join(told)}."] if told else []


# --------------------------------------------------------------------------------------------------------------------
# knee


@dataclass(frozen=True, kw_only=True)
class Knee:
    """Where a series turns."""

    row: Row
    key: str
    """Of the latency it was found with."""
    at_end: str
    """Empty when loads on both sides of it were measured; else on which side none was."""


def knee(one: Series, shape: Shape) -> Knee | str:
    """The load of largest throughput / median latency among valid points, or why there is none."""
    key = next((key for key in shape.latency if any(row.value(key) for row in one.rows)), "")
    rows = [row for row in one.rows if row.standing is Standing.VALID and row.value(key) and row.value(shape.x)]
    if len(rows) < KNEE_NEEDS or not one.axis:
        return f"no knee: {len(rows)} valid loads, {KNEE_NEEDS} needed"
    power = [(row.value(shape.x) or 0.0) / (row.value(key) or 1.0) for row in rows]
    best = power.index(max(power))
    side = "below" if best == 0 else "above" if best == len(rows) - 1 else ""
    return Knee(row=rows[best], key=key, at_end=side)


def _knees(many: Sequence[Series], shape: Shape, content: Content) -> list[Table | Text]:
    rows: list[list[Cell | str]] = []
    missing: list[str] = []
    for one in many[:SERIES]:
        if len(one.rows) < 2:
            continue
        found = knee(one, shape)
        best = max(
            (r for r in one.rows if r.standing is Standing.VALID and r.value("goodput_req_s")),
            key=lambda r: r.value("goodput_req_s") or 0.0,
            default=None,
        )
        if isinstance(found, str):
            missing.append(f"{one.name}: {found}")
            continue
        told = "between loads that were measured" if not found.at_end else f"no load {found.at_end} it was measured"
        rows.append(
            [
                one.name,
                Cell(text=f"{one.axis} {text_of(found.row.point.params.get(one.axis))}"),
                value_cell(found.row, shape.x, content),
                value_cell(found.row, found.key, content),
                Cell(text=told, tone="warn" if found.at_end else ""),
                Cell(text="–", tone="faint") if best is None else value_cell(best, "goodput_req_s", content),
                "–" if best is None else f"{one.axis} {text_of(best.point.params.get(one.axis))}",
            ]
        )
    notes = [KNEE, *missing]
    if not rows:
        return [Text(lines=missing, bullet=True)] if missing else []
    columns = ["series", "knee at", shape.x_label, "median latency ms", "bracketed", "most good req/s", "at"]
    return [Table(title="Knee", columns=columns, rows=rows, right=frozenset({2, 3, 5}), notes=notes)]
