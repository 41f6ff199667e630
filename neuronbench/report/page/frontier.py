"""The frontier between users and cores: how fast an answer is for one, against how much a core gives to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuronbench.model import canonical_json
from neuronbench.report.page.curves import legend, not_drawn, points, shown, thinned
from neuronbench.report.page.figure import Figure, Panel, Text, Trace
from neuronbench.report.page.gather import Content, cores_of
from neuronbench.report.page.rows import Row, Standing, benchmark_of
from neuronbench.words import counted

PARETO: Final = (
    "tok/s a user sees: 1000 / TPOT p50. tok/s a core: output tok/s / cores of the resource. A point is on the "
    "frontier when no valid point is better in both."
)


def user_rate(row: Row) -> float | None:
    """Tokens per second that one user sees: 1000 / TPOT p50 (ms)."""
    tpot = row.value("tpot_p50_ms")
    return None if not tpot else 1e3 / tpot


def pareto(lane: str, rows: Sequence[Row], content: Content) -> list[Figure | Text]:
    """tok/s per user against tok/s per core, with the frontier of the valid points; nothing without such points."""
    fit = [row for row in shown(rows) if user_rate(row) and row.value("output_throughput_tok_s")]
    if not fit:
        return []
    known: dict[tuple[str, str], tuple[float, str] | None] = {}
    for row in fit:
        key = _hardware(row)
        if key not in known:
            record = content.source.record(row.readings[0])
            known[key] = None if record is None else cores_of(record)
    told = [row for row in fit if known[_hardware(row)] is not None]
    without = len(fit) - len(told)
    notes = [PARETO, *not_drawn(rows)]
    if without:
        notes.append(f"{counted(without, 'point is', 'points are')} left out: nothing says on how many cores.")
    if not told:
        return [Text(lines=[f"{lane}: no frontier of tok/s per user and per core. {notes[-1]}"])]

    def per_core(row: Row) -> float | None:
        cores, rate = known[_hardware(row)], row.value("output_throughput_tok_s")
        return None if cores is None or rate is None else rate / cores[0]

    notes.append("cores: " + ", ".join(sorted({f"{c[0]:g} ({c[1]})" for c in known.values() if c is not None})))
    valid = [row for row in told if row.standing is Standing.VALID]
    best = frontier([(per_core(row) or 0.0, user_rate(row) or 0.0) for row in valid])
    traces = []
    if best:
        traces.append(Trace(name="frontier", x=[x for x, _ in best], y=[y for _, y in best], colour="ink", dashed=True))
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in told:
        groups.setdefault((f"{benchmark_of(row.point)} {row.point.backend}", row.mark), []).append(row)
    names = list(dict.fromkeys(name for name, _ in groups))
    for (name, _), members in groups.items():
        kept, all_ = thinned(members)
        if all_:
            notes.append(f"{name}: {len(kept)} of {all_} points are drawn.")
        traces.append(points(name, kept, per_core, user_rate, "", names.index(name), content))
    marks = list(dict.fromkeys(mark for row in told for mark in row.marks))
    panel = Panel(traces=traces, y="tok/s per user", from_zero=True)
    return [
        Figure(
            title=f"{lane}: tok/s per user against tok/s per core",
            x="tok/s per core",
            panels=[panel],
            notes=[*notes, *legend(marks)],
            marks=marks,
        )
    ]


def _hardware(row: Row) -> tuple[str, str]:
    """Points that have the same cores: environment and all that was asked of the resource."""
    return row.environment, canonical_json(
        {name: value for name, value in row.readings[0].protocol.fields.items() if name.startswith("resource.")}
    )


def frontier(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of points those that none exceeds in one coordinate without losing in the other, by rising x."""
    found: list[tuple[float, float]] = []
    for place in sorted(set(places), key=lambda place: (-place[0], -place[1])):
        if not found or place[1] > found[-1][1]:
            found.append(place)
    return found[::-1]
