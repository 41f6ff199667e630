"""Figures of training runs, drawn from their tables of steps. Object interface of matplotlib only: no global state."""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuronbench.model import Record
from neuronbench.report.figures import BAD, GOOD, INK, _figure, _plain, marks
from neuronbench.training import curves
from neuronbench.training.overlay import Overlay

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS: Final = 2_000
"""Drawn of a curve at most: more than there are pixels."""
RUNS: Final = 8
"""Curves in one figure at most."""


def figures_for(record: Record, tables: Mapping[int, pyarrow.Table]) -> dict[str, Figure]:
    """File stem → figure for a record's tables of steps, by the number of the run; none for a run without a step.

    Loss, step time and rate are of the first run; `losses` of all of them, where there are several.
    """
    runs = {
        number: curves.of_rank_zero(table, curves.counted_ranks(record, number)) for number, table in tables.items()
    }
    runs = {number: columns for number, columns in runs.items() if len(columns["step"])}
    if not runs:
        return {}
    mark = marks(record)
    title = f"{record.point.id}  repeat {record.repeat}" + (f"   {mark}" if mark else "")
    colour = BAD if mark else INK
    number, columns = next(iter(runs.items()))
    title_of_one = title if len(tables) == 1 else f"{title}   run {number} of {len(tables)}"
    found = record.metrics.get("train_throughput_tok_s") if number == 1 else None
    drawn = {
        "loss": loss(columns, title_of_one, colour),
        "step_time": step_time(columns, title_of_one, colour),
        "tok_s": rate(columns, title_of_one, colour, found.value if found is not None else None),
    }
    if len(runs) > 1:
        drawn["losses"] = losses({number: (each["step"], each["loss"]) for number, each in runs.items()}, title, colour)
    return drawn


def loss(columns: dict[str, Any], title: str, colour: str = INK) -> Figure:
    """Training loss by step; a loss that is not finite is a red mark at the bottom. Norm and rate below."""
    figure = _figure(title, colour, height=4.6)
    steps, values = columns["step"], columns["loss"].astype(float)
    finite = np.isfinite(values)
    axes = _plain(figure.add_axes((0.08, 0.42, 0.88, 0.46)))
    kept = curves.thinned(values, POINTS)
    axes.plot(steps[kept], np.where(finite, values, np.nan)[kept], color=GOOD, linewidth=1.3, marker=_dots(steps))
    if not finite.all():
        bottom = np.full(int((~finite).sum()), 0.03)
        axes.plot(steps[~finite], bottom, "x", color=BAD, markersize=6, transform=axes.get_xaxis_transform())
        axes.set_title(f"not finite from step {int(steps[~finite][0])}", color=BAD, fontsize=9, loc="right")
    axes.set_ylabel("loss", fontsize=9)
    axes.locator_params(axis="x", nbins=10, integer=True)
    for index, (name, label) in enumerate((("grad_norm", "gradient norm"), ("learning_rate", "learning rate"))):
        lower = _plain(figure.add_axes((0.08 + 0.47 * index, 0.12, 0.41, 0.2)))
        series = columns[name].astype(float)
        lower.plot(steps[kept], series[kept], color=INK, linewidth=1.0, marker=_dots(steps))
        lower.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
        lower.yaxis.get_offset_text().set_fontsize(7)
        lower.set_title(label, fontsize=8, loc="right")
        _by_step(lower, "optimiser step", 8)
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
        kept = curves.thinned(values.astype(float), POINTS)
        axes.plot(steps[kept], values[kept] / 1e6, color=ink, linewidth=width, label=label, marker=_dots(steps), ms=3)
    axes.set_ylim(bottom=0)
    _by_step(axes, "optimiser step (the first is left out)")
    axes.set_ylabel("ms", fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.14))
    return figure


def rate(columns: dict[str, Any], title: str, colour: str = INK, recorded: float | None = None) -> Figure:
    """Tokens per second of all data shards: of each step by the wall, of its own time, and what was recorded."""
    figure = _figure(title, colour, height=3.4)
    axes = _plain(figure.add_axes((0.08, 0.16, 0.88, 0.68)))
    steps = columns["step"][1:]
    if not len(steps):
        axes.text(0.5, 0.5, "no step after the first", ha="center", transform=axes.transAxes, color=BAD, fontsize=9)
        return figure
    timed_s = (columns["end_ns"].astype(np.int64) - columns["begin_ns"].astype(np.int64)) / 1e9
    by_timer = np.divide(columns["tokens"], timed_s, out=np.full(len(timed_s), np.nan), where=timed_s > 0)
    series = (
        ("step, by the wall", curves.rates(columns)[1:], INK, 2.0),
        ("step, with the device's barrier", by_timer[1:], GOOD, 1.1),
    )
    for label, values, ink, width in series:
        kept = curves.thinned(values, POINTS)
        axes.plot(steps[kept], values[kept], color=ink, linewidth=width, label=label, marker=_dots(steps), ms=3)
    if recorded is not None:
        axes.axhline(recorded, color=INK, linewidth=0.8, linestyle=":", label=f"recorded: {recorded:,.4g} tok/s")
    axes.set_ylim(bottom=0)
    _by_step(axes, "optimiser step (the first is left out)")
    axes.set_ylabel("tok/s", fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.14))
    return figure


def losses(runs: Mapping[int, tuple[Any, Any]], title: str, colour: str = INK) -> Figure:
    """Training losses of a record's runs, by step; of more than `RUNS` the first ones."""
    from matplotlib import colormaps

    figure = _figure(title, colour, height=3.8)
    axes = _plain(figure.add_axes((0.08, 0.14, 0.88, 0.68)))
    shown = list(runs.items())[:RUNS]
    for index, (number, (steps, values)) in enumerate(shown):
        kept = curves.thinned(values.astype(float), POINTS)
        ink = colormaps["viridis"](0.9 * index / max(len(shown) - 1, 1))
        axes.plot(
            steps[kept], np.where(np.isfinite(values), values, np.nan)[kept], color=ink, label=f"run {number}",
            linewidth=2.6 - 1.8 * index / max(len(shown) - 1, 1), marker=_dots(steps), ms=3,
        )  # fmt: skip
    if len(runs) > RUNS:
        axes.set_title(f"{len(runs) - RUNS} more runs are not drawn", color=BAD, fontsize=9, loc="right")
    _by_step(axes)
    axes.set_ylabel("loss", fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=RUNS, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    return figure


def overlay(found: Overlay, names: tuple[str, str], title: str, notes: Sequence[str] = ()) -> Figure:
    """Both losses by step, and their difference below. `notes`, what must be known of the runs, stand on top in red."""
    lines = [line for note in notes for line in textwrap.wrap(note, 130)][:6]
    height = 5.0 + 0.18 * len(lines)
    figure = _figure(title, INK, height=height)
    top = 1 - (0.55 + 0.18 * len(lines)) / height
    figure.text(0.06, 1 - 0.42 / height, "\n".join(lines), color=BAD, fontsize=8, va="top")
    steps = np.array(found.steps)
    upper = 0.44 * 5 / height
    axes = _plain(figure.add_axes((0.08, upper, 0.88, top - upper)))
    if not len(steps):
        axes.text(0.5, 0.5, "no finite loss in common", ha="center", transform=axes.transAxes, color=BAD, fontsize=9)
        return figure
    a, b = np.array(found.first), np.array(found.second)
    kept = curves.thinned(np.abs(b - a), POINTS)
    axes.plot(steps[kept], a[kept], color=INK, linewidth=2.2, label=names[0])
    axes.plot(steps[kept], b[kept], color=GOOD, linewidth=1.0, label=names[1])
    axes.set_ylabel("loss", fontsize=9)
    axes.tick_params(labelbottom=False)
    axes.legend(fontsize=8, frameon=False)
    lower = _plain(figure.add_axes((0.08, 0.55 / height, 0.88, upper - 0.9 / height), sharex=axes))
    lower.axhline(0, color=INK, linewidth=0.6)
    lower.plot(steps[kept], (b - a)[kept], color=GOOD, linewidth=1.0)
    if found.divergence_step is not None:
        for panel in (axes, lower):
            panel.axvline(found.divergence_step, color=BAD, linewidth=0.8, linestyle=":")
        lower.set_title(
            f"apart by more than {found.tolerance:g} first at step {found.divergence_step}",
            color=BAD,
            fontsize=8,
            loc="right",
        )
    if found.identical:
        lower.set_title("the same to the bit", fontsize=8, loc="right")
    lower.set_ylabel("B − A", fontsize=9)
    _by_step(lower)
    return figure


def overlay_page(figure: Figure, rows: Sequence[tuple[str, str]], notes: Sequence[str]) -> str:
    """A page of HTML that needs nothing else: the figure, the numbers, and what must be known of the runs."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    picture = drawn.getvalue()
    numbers = "\n".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in rows)
    said = "\n".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Training losses of two runs</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: {INK}; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; }}
td {{ padding: .15rem 1.5rem .15rem 0; border-bottom: 1px solid #d8dee4; }}
td + td {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
{picture[picture.index("<svg") :]}
<table>
{numbers}
</table>
<ul>
{said}
</ul>
</html>
"""


def _by_step(axes: Axes, label: str = "optimiser step", size: int = 9) -> None:
    axes.set_xlabel(label, fontsize=size)
    axes.locator_params(axis="x", nbins=5, integer=True)


def _dots(steps: Any) -> str:
    return "." if len(steps) <= 60 else ""
