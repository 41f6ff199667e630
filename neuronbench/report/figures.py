"""Figures of one point, drawn from its `requests.parquet`. Object interface of matplotlib only: no global state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronbench.model import Json, Provenance, Record, Validity
from neuronbench.report.requests import Floats, Requests, requests_of, token_instants

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCATTER_LIMIT = 4_000
CURVE_LIMIT = 2_000
INK, GOOD, BAD, SHADE = "#24292f", "#2166ac", "#b2182b", "#e8eef5"


def marks(record: Record) -> str:
    """`INVALID, SIMULATED` or an empty string: what must be said wherever the numbers are shown."""
    words = [] if record.validity is Validity.VALID else [record.validity.value.upper()]
    words += [] if record.provenance is Provenance.MEASURED else [record.provenance.value.upper()]
    return ", ".join(words)


def figures_for(record: Record, table: pyarrow.Table) -> dict[str, Figure]:
    """File stem → figure for a record with a table of requests; no figure where the table has no row to draw."""
    requests = requests_of(table)
    if requests.rows == 0:
        return {}
    mark = marks(record)
    title = f"{record.point.id}  repeat {record.repeat}" + (f"   {mark}" if mark else "")
    colour = BAD if mark else INK
    window = record.workload.get("window")
    return {
        "latency_cdf": latency_cdf(requests, title=title, colour=colour),
        "timeline": timeline(requests, title=title, colour=colour, window=window),
    }


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    figure.savefig(path, format="png")


def _figure(title: str, colour: str, *, width: float = 10.0, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=90)
    FigureCanvasAgg(figure)
    figure.text(0.06, 0.965, title, color=colour, fontsize=11, fontweight="bold", va="top")
    return figure


def _plain(axes: Axes) -> Axes:
    axes.locator_params(nbins=5)  # ticks are what drawing costs
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


# --------------------------------------------------------------------------------------------------------------------
# latency


def latency_cdf(requests: Requests, *, title: str, colour: str = INK) -> Figure:
    """Share of requests that were at most so slow: TTFT, TPOT, E2E.

    The population is every counted request: one that failed never finishes, so a curve ends below 1 by the share of
    failures. TPOT counts those that have one.
    """
    figure = _figure(title, colour, height=3.6)
    counted = requests.counted if requests.counted.any() else np.ones(requests.rows, dtype=np.bool_)
    failed = int((counted & ~requests.ok).sum())
    about = f"{int(counted.sum())} requests in the window, {failed} failed"
    if not requests.counted.any():
        about = f"no request counts as inside the window; all {requests.rows} are drawn, {failed} failed"
    figure.text(0.06, 0.905, about, color=BAD if failed else INK, fontsize=9, va="top")
    panels = (("TTFT", requests.ttft_ms, True), ("TPOT", requests.tpot_ms, False), ("E2E", requests.e2e_ms, True))
    for index, (name, values, with_failures) in enumerate(panels):
        axes = _plain(figure.add_axes((0.06 + 0.325 * index, 0.14, 0.265, 0.66)))
        axes.set_xlabel(f"{name} (ms)", fontsize=9)
        axes.set_ylim(0, 1.02)
        axes.set_yticks((0.0, 0.5, 0.9, 1.0))
        if index == 0:
            axes.set_ylabel("share of requests", fontsize=9)
        successes = np.sort(values[counted & requests.ok & np.isfinite(values)])
        population = successes.size + (failed if with_failures else 0)
        if successes.size == 0:
            axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes, color=BAD, fontsize=9)
            continue
        _curve(axes, successes, population)
    _say_missing(figure, requests)
    return figure


def _curve(axes: Axes, values: Floats, population: int) -> None:
    share = np.arange(1, values.size + 1) / population
    step = max(1, values.size // CURVE_LIMIT)
    keep = np.unique(np.concatenate((np.arange(0, values.size, step), [values.size - 1])))
    axes.step(values[keep], share[keep], where="post", color=GOOD, linewidth=1.4)
    for quantile in (0.5, 0.99):
        rank = int(np.ceil(quantile * population))  # nearest rank
        if rank > values.size:
            text = f"p{quantile * 100:.0f} falls on a failed request"
            axes.text(0.97, 0.04, text, ha="right", fontsize=8, color=BAD, transform=axes.transAxes)
            continue
        value = float(values[rank - 1])
        axes.plot([value], [quantile], marker="o", markersize=4, color=INK)
        right = value > float(values[0]) + 0.6 * float(values[-1] - values[0])
        axes.annotate(
            f"p{quantile * 100:.0f} {value:.4g}",
            (value, quantile),
            textcoords="offset points",
            xytext=(-8 if right else 8, -14),
            ha="right" if right else "left",
            fontsize=8,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
        )


# --------------------------------------------------------------------------------------------------------------------
# over time


def timeline(requests: Requests, *, title: str, colour: str = INK, window: Mapping[str, Json] | None = None) -> Figure:
    """Throughput, requests in flight and TTFT over the run; the measuring window is shaded."""
    figure = _figure(title, colour, height=5.2)
    top = _plain(figure.add_axes((0.08, 0.53, 0.84, 0.37)))
    bottom = _plain(figure.add_axes((0.08, 0.11, 0.84, 0.33), sharex=top))
    ends = np.concatenate((requests.sent_s, requests.first_s, requests.last_s, requests.end_s, requests.scheduled_s))
    ends = ends[np.isfinite(ends)]
    span_s = float(ends.max()) if ends.size else 0.0
    if span_s <= 0:
        top.text(0.5, 0.5, "no instants", ha="center", va="center", transform=top.transAxes, color=BAD)
        _say_missing(figure, requests)
        return figure
    edges = np.linspace(0.0, span_s, int(np.clip(span_s / 0.25, 10, 240)) + 1)
    width_s = edges[1] - edges[0]
    times, weights = token_instants(requests)
    if times.size:
        rate = np.histogram(times, bins=edges, weights=weights)[0] / width_s
        top.stairs(rate, edges, color=GOOD, fill=True, alpha=0.35)
    top.set_ylabel(f"output tok/s ({width_s:.2g} s bins)", fontsize=9, color=GOOD)
    top.set_ylim(bottom=0)
    _in_flight(top, requests, edges)
    _scatter(bottom, requests)
    bottom.set_xlabel("seconds since the first request", fontsize=9)
    bottom.set_xlim(0, span_s)
    shade = _window_s(requests, window)
    for axes in (top, bottom):
        if shade:
            axes.axvspan(*shade, color=SHADE, zorder=0)
    where = "measuring window shaded" if shade else "measuring window unknown"
    figure.text(0.92, 0.965, where, fontsize=8, color=INK, ha="right", va="top")
    _say_missing(figure, requests)
    return figure


def _in_flight(axes: Axes, requests: Requests, edges: Floats) -> None:
    begun = np.isfinite(requests.sent_s)
    over = np.fmax(requests.end_s, requests.last_s)
    over = np.where(np.isfinite(over), over, edges[-1])
    starts, stops = np.sort(requests.sent_s[begun]), np.sort(over[begun])
    middles = (edges[:-1] + edges[1:]) / 2
    count = np.searchsorted(starts, middles, side="right") - np.searchsorted(stops, middles, side="right")
    other: Any = axes.twinx()
    other.plot(middles, count, color=INK, linewidth=1.0)
    other.set_ylabel("requests in flight", fontsize=9, color=INK)
    other.set_ylim(0, max(1.0, float(count.max(initial=0)) * 1.15))
    other.locator_params(nbins=5)
    other.tick_params(labelsize=8)
    other.spines["top"].set_visible(False)


def _scatter(axes: Axes, requests: Requests) -> None:
    begin = np.where(np.isfinite(requests.scheduled_s), requests.scheduled_s, requests.sent_s)
    good = np.flatnonzero(requests.ok & np.isfinite(requests.ttft_ms) & np.isfinite(begin))
    shown = good
    if good.size > SCATTER_LIMIT:  # the slowest are kept, the others thinned
        order = good[np.argsort(requests.ttft_ms[good])]
        slow, rest = order[-SCATTER_LIMIT // 8 :], order[: -SCATTER_LIMIT // 8]
        shown = np.concatenate((slow, rest[:: rest.size // (SCATTER_LIMIT - slow.size) + 1]))
    axes.plot(begin[shown], requests.ttft_ms[shown], ".", color=GOOD, markersize=3, alpha=0.6, label="ok")
    bad = np.flatnonzero(~requests.ok & np.isfinite(begin))[:SCATTER_LIMIT]
    if bad.size:
        ceiling = float(requests.ttft_ms[shown].max()) if shown.size else 1.0
        axes.plot(begin[bad], np.full(bad.size, ceiling * 1.05), "x", color=BAD, markersize=5, label="failed")
        axes.legend(fontsize=8, loc="upper right", frameon=False)
    text = "TTFT (ms)" if shown.size == good.size else f"TTFT (ms), {shown.size} of {good.size}"
    axes.set_ylabel(text, fontsize=9)
    axes.set_ylim(bottom=0)


def _window_s(requests: Requests, window: Mapping[str, Json] | None) -> tuple[float, float] | None:
    if isinstance(window, Mapping):
        start, end = window.get("start_ns"), window.get("end_ns")
        if isinstance(start, (int, float)) and isinstance(end, (int, float)):
            return (start - requests.origin_ns) / 1e9, (end - requests.origin_ns) / 1e9
    return None


def _say_missing(figure: Figure, requests: Requests) -> None:
    if requests.missing:
        text = "not in the table: " + ", ".join(requests.missing)
        figure.text(0.06, 0.012, text, fontsize=7, color=BAD, va="bottom")
