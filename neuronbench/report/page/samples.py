"""Figures from the tables of a few records, chosen by a rule that the page tells: latencies, timelines, losses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuronbench.compare.reading import Reading
from neuronbench.model import Record
from neuronbench.report.figures import _window_s as window_of
from neuronbench.report.page.figure import Band, Figure, Panel, Trace
from neuronbench.report.page.gather import Content
from neuronbench.report.page.lanes import label_of
from neuronbench.report.page.rows import Row, Standing, median_reading, order
from neuronbench.report.requests import COLUMNS, Requests, requests_of, token_instants
from neuronbench.training import curves

if TYPE_CHECKING:
    import pyarrow

CURVES: Final = 6
"""Points of a lane whose requests are read for distributions."""
TIMELINES: Final = 2
STEPS: Final = 300
"""Points of a curve."""
DOTS: Final = 600
MOST_BYTES: Final = 64 << 20
"""Of a table: larger ones are not read for a page."""
_TELEMETRY: Final = (
    (re.compile(r"(?i)neuroncore.*util|core_util"), "NeuronCore %", 1.0),
    (re.compile(r"(?i)neuron.*mem.*(bytes|used)|device_mem.*bytes"), "device memory GiB", 2.0**-30),
    (re.compile(r"server/cpu_percent|worker[^/]*/cpu_percent|trainer[^/]*/cpu_percent"), "process CPU %", 1.0),
    (re.compile(r"(?:server|worker[^/]*|trainer[^/]*)/rss_bytes"), "resident GiB", 2.0**-30),
    (re.compile(r"num_requests_(running|waiting)"), "server's requests", 1.0),
    (re.compile(r"kv_cache_usage"), "KV cache %", 100.0),
    (re.compile(r"host/cpu_percent"), "host CPU %", 1.0),
    (re.compile(r"host/steal_percent"), "steal %", 1.0),
)
"""Series by name → panel and factor. Panels without a series are not drawn."""
_PANELS: Final = 5


def chosen(rows: Sequence[Row], table: str, limit: int, content: Content) -> list[tuple[Row, Reading, Record]]:
    """At most `limit` points that have a table: valid ones, else those that are marked; evenly over their order, the
    first and the last among them; of each point the repeat that stands for it."""
    for standings in ((Standing.VALID,), (Standing.PROVISIONAL, Standing.SIMULATED), (Standing.INVALID,)):
        fit = [(row, reading) for row in order([r for r in rows if r.standing in standings]) for reading in [_one(row)]]
        fit = [(row, reading) for row, reading in fit if _readable(reading, table)]
        if fit:
            spread = [fit[index] for index in sorted({round(i) for i in np.linspace(0, len(fit) - 1, limit)})]
            found = [(row, reading, content.source.record(reading)) for row, reading in spread]
            return [(row, reading, record) for row, reading, record in found if record is not None]
    return []


def _one(row: Row) -> Reading:
    return median_reading(row, ["ttft_p50_ms", "latency_p50_ms", "train_throughput_tok_s", *row.readings[0].values])


def _readable(reading: Reading, table: str) -> bool:
    try:
        return 0 < (reading.path / f"{table}.parquet").stat().st_size <= MOST_BYTES
    except OSError:
        return False


def _rule(shown: Sequence[tuple[Row, Reading, Record]], rows: Sequence[Row], what: str) -> str:
    standing = shown[0][0].standing.value
    measured = sum(row.standing is shown[0][0].standing for row in rows)
    return (
        f"{what} of {len(shown)} of {measured} {standing} points: evenly over their order, the first and the last "
        "among them; of repeats the one with the median. The others' are in their receipts."
    )


def _marks(shown: Sequence[tuple[Row, Reading, Record]]) -> list[str]:
    return list(dict.fromkeys(mark for row, _, _ in shown for mark in row.marks))


# --------------------------------------------------------------------------------------------------------------------
# distributions


def distributions(lane: str, rows: Sequence[Row], content: Content) -> list[Figure]:
    """Share of requests that were at most so slow. A failed request never ends: its curve stays below 1."""
    shown = chosen(rows, "requests", CURVES, content)
    loaded = []
    for row, reading, record in shown:
        content.source.progress(f"reading requests of {record.point.id}")
        table = content.source.table(reading, "requests", COLUMNS)
        if table is not None and table.num_rows:
            loaded.append((row, reading, record, requests_of(table)))
    if not loaded:
        return []
    note = _rule(shown, rows, "Requests")
    found = []
    for title, name, with_failures in (("TTFT", "ttft_ms", True), ("TPOT", "tpot_ms", False), ("E2E", "e2e_ms", True)):
        traces = []
        for index, (row, reading, _, requests) in enumerate(loaded):
            x, y = cumulative(requests, getattr(requests, name), with_failures=with_failures)
            if len(x):
                label = label_of(row, content)
                traces.append(
                    Trace(
                        name=label,
                        x=x,
                        y=y,
                        mode="step",
                        colour=index,
                        dashed=bool(row.marks),
                        texts=[label] * len(x),
                        links=[content.source.link(reading)] * len(x),
                    )
                )
        if traces:
            panel = Panel(traces=traces, y="share of requests", from_zero=True, top=1.0)
            x_label = f"{title} ms" + (" (failed requests never end)" if with_failures else "")
            title = f"{lane}: distribution of {title}"
            found.append(Figure(title=title, x=x_label, panels=[panel], notes=[note], marks=_marks(shown)))
    return found


def cumulative(requests: Requests, values: Any, *, with_failures: bool) -> tuple[list[float], list[float]]:
    """Values and the share of counted requests up to each, at most `STEPS` of them: first, last and evenly by rank."""
    counted = requests.counted if requests.counted.any() else np.ones(requests.rows, dtype=np.bool_)
    good = np.sort(values[counted & requests.ok & np.isfinite(values)])
    if not good.size:
        return [], []
    population = good.size + (int((counted & ~requests.ok).sum()) if with_failures else 0)
    kept = np.unique(np.linspace(0, good.size - 1, min(STEPS, good.size)).round().astype(int))
    return [float(good[i]) for i in kept], [(int(i) + 1) / population for i in kept]


# --------------------------------------------------------------------------------------------------------------------
# over time


def timelines(lane: str, rows: Sequence[Row], content: Content) -> list[Figure]:
    """Throughput, requests in flight, TTFT and telemetry over the run of the first and the last chosen point."""
    shown = chosen(rows, "requests", TIMELINES, content)
    found = []
    for row, reading, record in shown:
        table = content.source.table(reading, "requests", COLUMNS)
        if table is None or not table.num_rows:
            continue
        requests = requests_of(table)
        panels = _request_panels(requests)
        band = window_of(requests, record.workload.get("window"))
        bands = [Band(begin=band[0], end=band[1], name="measuring window")] if band else []
        telemetry = content.source.table(reading, "telemetry", ("mono_ns", "sampler", "series", "value"))
        if telemetry is not None:
            panels += telemetry_panels(telemetry, requests.origin_ns)
        if not panels:
            continue
        notes = [
            f"Receipt {reading.receipt_id}. Shaded: the measuring window." if band else f"Receipt {reading.receipt_id}."
        ]
        if telemetry is None:
            notes.append("It has no telemetry.")
        notes.append(_rule(shown, rows, "Timelines"))
        found.append(
            Figure(
                title=f"{lane}: {label_of(row, content)} over time",
                x="seconds since the first request",
                panels=panels,
                bands=bands,
                notes=notes,
                marks=row.marks,
            )
        )
    return found


def _request_panels(requests: Requests) -> list[Panel]:
    ends = np.concatenate((requests.sent_s, requests.last_s, requests.end_s))
    ends = ends[np.isfinite(ends)]
    span_s = float(ends.max()) if ends.size else 0.0
    if span_s <= 0:
        return []
    edges = np.linspace(0.0, span_s, int(np.clip(span_s / 0.25, 10, 240)) + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    times, weights = token_instants(requests)
    panels = []
    if times.size:
        rate = np.histogram(times, bins=edges, weights=weights)[0] / (edges[1] - edges[0])
        traces = [Trace(name="output tok/s", x=_floats(middles), y=_floats(rate), colour=0)]
        panels.append(Panel(traces=traces, y="output tok/s", from_zero=True))
    begun = np.isfinite(requests.sent_s)
    over = np.fmax(requests.end_s, requests.last_s)
    over = np.where(np.isfinite(over), over, span_s)
    starts, stops = np.sort(requests.sent_s[begun]), np.sort(over[begun])
    count = np.searchsorted(starts, middles, side="right") - np.searchsorted(stops, middles, side="right")
    panels.append(
        Panel(
            traces=[Trace(name="in flight", x=_floats(middles), y=_floats(count), colour=1)],
            y="in flight",
            from_zero=True,
        )
    )
    begin = np.where(np.isfinite(requests.scheduled_s), requests.scheduled_s, requests.sent_s)
    good = np.flatnonzero(requests.ok & np.isfinite(requests.ttft_ms) & np.isfinite(begin))
    traces = []
    if good.size:
        kept = good[curves.thinned(requests.ttft_ms[good], DOTS)] if good.size > DOTS else good
        traces.append(
            Trace(name="TTFT", x=_floats(begin[kept]), y=_floats(requests.ttft_ms[kept]), mode="markers", colour=2)
        )
    bad = np.flatnonzero(~requests.ok & np.isfinite(begin))[:DOTS]
    if bad.size:
        top = float(requests.ttft_ms[good].max()) if good.size else 1.0
        traces.append(
            Trace(
                name="failed",
                x=_floats(begin[bad]),
                y=[top * 1.05] * bad.size,
                mode="markers",
                colour="bad",
                symbol="cross",
                texts=[requests.failure[int(i)] or "failed" for i in bad],
            )
        )
    if traces:
        panels.append(Panel(traces=traces, y="TTFT ms", from_zero=True))
    return panels


def telemetry_panels(table: pyarrow.Table, origin_ns: int) -> list[Panel]:
    """Panels of what was sampled meanwhile, aligned by the monotonic clock; series of one unit share a panel."""
    names = [f"{a}/{b}" for a, b in zip(table["sampler"].to_pylist(), table["series"].to_pylist(), strict=True)]
    at = (np.asarray(table["mono_ns"].to_numpy(zero_copy_only=False), dtype=np.int64) - origin_ns) / 1e9
    values = np.asarray(table["value"].to_numpy(zero_copy_only=False), dtype=np.float64)
    index: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        if np.isfinite(values[position]):
            index.setdefault(name, []).append(position)
    panels: list[Panel] = []
    for pattern, label, factor in _TELEMETRY:
        traces: list[Trace] = []
        for name, positions in index.items():
            if pattern.search(name) and len(positions) > 1 and len(traces) < 8:
                places = np.array(positions)[curves.thinned(values[positions], STEPS)]
                traces.append(
                    Trace(
                        name=name.partition("{")[0].removeprefix("metrics/"),
                        x=_floats(at[places]),
                        y=_floats(values[places] * factor),
                        colour=len(traces) + 3,
                        mode="lines",
                    )
                )
        if traces and len(panels) < _PANELS:
            panels.append(Panel(traces=traces, y=label, from_zero=True))
    return panels


def _floats(values: Any) -> list[float]:
    return [float(value) for value in values]


# --------------------------------------------------------------------------------------------------------------------
# training


def losses(lane: str, rows: Sequence[Row], content: Content) -> list[Figure]:
    """Training loss by step of a few records of a lane, and the norm of the gradient; what is not finite is marked."""
    shown = chosen(rows, "steps", CURVES, content)
    upper: list[Trace] = []
    lower: list[Trace] = []
    notes = []
    for index, (row, reading, record) in enumerate(shown):
        table = content.source.table(reading, "steps")
        if table is None or not table.num_rows:
            continue
        columns = curves.of_rank_zero(table, curves.counted_ranks(record, 1))
        steps, values = columns["step"], columns["loss"].astype(float)
        if not len(steps):
            continue
        label, where = label_of(row, content), content.source.link(reading)
        kept = curves.thinned(values, STEPS)
        finite = np.isfinite(values)
        shared: dict[str, Any] = {"colour": index, "dashed": bool(row.marks), "group": label}
        x = _floats(steps[kept])
        drawn = [float(v) if np.isfinite(v) else None for v in values[kept]]
        upper.append(Trace(name=label, x=x, y=drawn, links=[where] * len(x), texts=[label] * len(x), **shared))
        if "grad_norm" in columns:
            norm = columns["grad_norm"].astype(float)[kept]
            y = [float(v) if np.isfinite(v) else None for v in norm]
            if any(v is not None for v in y):
                lower.append(Trace(name=f"_{label}", x=x, y=y, **shared))
        if not finite.all():
            notes.append(f"{label}: the loss is not finite from step {int(steps[~finite][0])} on.")
        runs = curves.runs(record)
        if len(runs) > 1:
            notes.append(f"{label}: the first of {len(runs)} runs is drawn.")
    if not upper:
        return []
    panels = [Panel(traces=upper, y="loss")]
    if lower:
        panels.append(Panel(traces=lower, y="gradient norm"))
    notes.append(_rule(shown, rows, "Losses"))
    return [Figure(title=f"{lane}: training loss", x="optimiser step", panels=panels, notes=notes, marks=_marks(shown))]
