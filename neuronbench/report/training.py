"""Figures of training runs, drawn from `steps.parquet`. Object interface of matplotlib only: no global state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuronbench.model import Record
from neuronbench.report.figures import BAD, GOOD, INK, _figure, _plain, marks
from neuronbench.training.overlay import Overlay, bounded

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.figure import Figure

POINTS: Final = 2_000
"""Drawn of a curve at most: more than there are pixels."""


def figures_for(record: Record, table: pyarrow.Table) -> dict[str, Figure]:
    """File stem → figure for a record with a table of steps; none where it has no step."""
    first = table.filter(_rank_zero(table)) if table.num_rows else table
    if not first.num_rows:
        return {}
    mark = marks(record)
    title = f"{record.point.id}  repeat {record.repeat}" + (f"   {mark}" if mark else "")
    columns = {name: first[name].to_numpy(zero_copy_only=False) for name in first.column_names}
    colour = BAD if mark else INK
    return {"loss": loss(columns, title, colour), "step_time": step_time(columns, title, colour)}


def _rank_zero(table: pyarrow.Table) -> Any:
    import pyarrow.compute as compute

    return compute.equal(table["rank"], 0)


def loss(columns: dict[str, Any], title: str, colour: str = INK) -> Figure:
    """Training loss by step; a loss that is not finite is a red mark at the bottom. Norm and rate below."""
    figure = _figure(title, colour, height=4.6)
    steps, values = columns["step"], columns["loss"].astype(float)
    finite = np.isfinite(values)
    axes = _plain(figure.add_axes((0.08, 0.42, 0.88, 0.46)))
    kept = _thinned(values)
    axes.plot(steps[kept], np.where(finite, values, np.nan)[kept], color=GOOD, linewidth=1.3, marker=_dots(steps))
    if not finite.all():
        bottom = np.full(int((~finite).sum()), 0.03)
        axes.plot(steps[~finite], bottom, "x", color=BAD, markersize=6, transform=axes.get_xaxis_transform())
        axes.set_title(f"not finite from step {int(steps[~finite][0])}", color=BAD, fontsize=9, loc="right")
    axes.set_ylabel("loss", fontsize=9)
    axes.tick_params(labelbottom=False)
    for index, (name, label) in enumerate((("grad_norm", "gradient norm"), ("learning_rate", "learning rate"))):
        lower = _plain(figure.add_axes((0.08 + 0.47 * index, 0.12, 0.41, 0.22)))
        series = columns[name].astype(float)
        lower.plot(steps[kept], series[kept], color=INK, linewidth=1.0, marker=_dots(steps))
        lower.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
        lower.yaxis.get_offset_text().set_fontsize(7)
        lower.set_title(label, fontsize=8, loc="right")
        lower.set_xlabel("optimiser step", fontsize=8)
    return figure


def step_time(columns: dict[str, Any], title: str, colour: str = INK) -> Figure:
    """Step time with the barrier inside, what a timer without it would say, and the wall from end to end."""
    figure = _figure(title, colour, height=3.4)
    axes = _plain(figure.add_axes((0.08, 0.16, 0.88, 0.68)))
    steps = columns["step"][1:]
    if not len(steps):
        axes.text(0.5, 0.5, "no step after the first", ha="center", transform=axes.transAxes, color=BAD, fontsize=9)
        return figure
    begin, returned, end = (columns[name].astype(np.int64)[1:] for name in ("begin_ns", "returned_ns", "end_ns"))
    series = (
        ("wall, end to end", columns["wall_ns"].astype(np.int64)[1:], INK, 2.2),
        ("with the device's barrier", end - begin, GOOD, 1.2),
        ("calls returned (no measurement)", returned - begin, BAD, 0.9),
    )
    for label, values, ink, width in series:
        kept = _thinned(values.astype(float))
        axes.plot(steps[kept], values[kept] / 1e6, color=ink, linewidth=width, label=label, marker=_dots(steps), ms=3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("optimiser step (the first is left out)", fontsize=9)
    axes.set_ylabel("ms", fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.14))
    return figure


def overlay(found: Overlay, names: tuple[str, str], title: str) -> Figure:
    """Both losses by step, and their difference below."""
    figure = _figure(title, INK, height=5.0)
    steps = np.array(found.steps)
    axes = _plain(figure.add_axes((0.08, 0.44, 0.88, 0.44)))
    if not len(steps):
        axes.text(0.5, 0.5, "no finite loss in common", ha="center", transform=axes.transAxes, color=BAD, fontsize=9)
        return figure
    a, b = np.array(found.first), np.array(found.second)
    kept = _thinned(np.abs(b - a))
    axes.plot(steps[kept], a[kept], color=INK, linewidth=1.8, label=names[0])
    axes.plot(steps[kept], b[kept], color=GOOD, linewidth=1.0, label=names[1])
    axes.set_ylabel("loss", fontsize=9)
    axes.tick_params(labelbottom=False)
    axes.legend(fontsize=8, frameon=False)
    lower = _plain(figure.add_axes((0.08, 0.11, 0.88, 0.26), sharex=axes))
    lower.axhline(0, color=INK, linewidth=0.6)
    lower.plot(steps[kept], (b - a)[kept], color=GOOD, linewidth=1.0)
    if found.divergence_step is not None:
        for panel in (axes, lower):
            panel.axvline(found.divergence_step, color=BAD, linewidth=0.8, linestyle=":")
    lower.set_ylabel("second − first", fontsize=9)
    lower.set_xlabel("optimiser step", fontsize=9)
    return figure


def _thinned(values: Any) -> list[int]:
    """Indices to draw: few enough, with the extremes among them."""
    finite = np.flatnonzero(np.isfinite(values))
    extremes = [int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])] if len(finite) else []
    return bounded(len(values), POINTS, extremes)


def _dots(steps: Any) -> str:
    return "." if len(steps) <= 60 else ""
