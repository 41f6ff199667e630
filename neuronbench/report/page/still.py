"""A figure as a picture: SVG that stands in the page for paper and where no script runs. Colours are the page's own."""

from __future__ import annotations

import io
import math
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

from neuronbench.report.page.figure import Figure, Panel, Trace
from neuronbench.training.curves import bounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS: Final = 240
"""Drawn of a trace at most: a picture of a hand's width has no room for more."""
WIDTH_IN, PANEL_IN, REST_IN = 7.0, 1.75, 0.75
PALETTE: Final = 8
_SLOTS: Final = {"ink": "#010101", "bad": "#010102", "faint": "#010103", "grid": "#010104"}
_SLOTS_OF_PALETTE: Final = tuple(f"#0102{index:02x}" for index in range(PALETTE))
"""Colours that nobody would choose: in the picture they become the variables of the page's style sheet."""
_MARKERS: Final = {"dot": "o", "open": "o", "square": "s", "diamond": "D", "cross": "x"}
_VARIABLES: Final = {
    **{value: f"var(--{name})" for name, value in _SLOTS.items()},
    **{value: f"var(--c{index})" for index, value in enumerate(_SLOTS_OF_PALETTE)},
}

DRAWN: Final = 1e100
"""Matplotlib finds no ticks for axes much longer than this: what is larger stands in the tables only."""


def svg(figure: Figure, key: str) -> str:
    """An `<svg>` element. `key` keeps the ids in it apart from those of other pictures in one page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Drawing

    height = REST_IN + PANEL_IN * len(figure.panels) * (1.35 if len(figure.panels) == 1 else 1)
    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the measuring font lacks is drawn by the reader's own
        drawing = Drawing(figsize=(WIDTH_IN, height))
        FigureCanvasSVG(drawing)
        many: Any = drawing.subplots(len(figure.panels), 1, sharex=True, squeeze=False)[:, 0]
        told: set[str] = set()
        for axes, panel in zip(many, figure.panels, strict=True):
            _panel(axes, figure, panel)
            _legend(axes, panel, told)
        _style(many[-1].set_xlabel(_plain(figure.x), fontsize=9))
        drawing.subplots_adjust(left=0.1, right=0.98, top=1 - 0.3 / height, bottom=0.5 / height, hspace=0.3)
        drawing.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(written.getvalue(), figure.title, key)


def _panel(axes: Axes, figure: Figure, panel: Panel) -> None:
    axes.set_xscale("log" if figure.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    bottoms: dict[Any, float] = {}
    for trace in panel.traces:
        _draw(axes, trace, bottoms if figure.stacked else {})
    for band in figure.bands:
        if band.begin == band.end:
            axes.axvline(band.begin, color=_SLOTS["faint"], linewidth=0.8, linestyle=":")
        else:
            axes.axvspan(band.begin, band.end, color=_SLOTS["grid"], alpha=0.5, linewidth=0, zorder=0)
    if panel.from_zero and not panel.log_y:
        axes.set_ylim(0, panel.top or _top(panel, bottoms))
    axes.grid(visible=True, color=_SLOTS["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(_SLOTS["faint"])
    axes.tick_params(labelsize=8, color=_SLOTS["faint"], labelcolor=_SLOTS["ink"])
    _style(axes.set_ylabel(_plain(panel.y), fontsize=8))


def _top(panel: Panel, bottoms: dict[Any, float]) -> float:
    """A little above the highest value or bound."""
    ends = (end for trace in panel.traces for end in (*trace.y, *trace.high))
    return 1.08 * max([0.0, *bottoms.values(), *(end for end in ends if end is not None and abs(end) <= DRAWN)]) or 1.0


def _legend(axes: Axes, panel: Panel, told: set[str]) -> None:
    """Names, once in a figure; a panel with one series says by its axis what it is."""
    named = [trace.name for trace in panel.traces if trace.name[:1] not in ("", "_")]
    first = [trace.name for trace in panel.traces if trace.name in named and trace.group in ("", trace.name)]
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    shown = {name: handles[name] for name in first if name in handles and name not in told}
    told.update(shown)
    if len(set(named)) < 2 or not shown:
        return
    legend = axes.legend(
        [*shown.values()], [*shown], fontsize=7, frameon=False, loc="best", ncols=min(2, len(shown)),
        labelcolor=_SLOTS["ink"],
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw(axes: Axes, trace: Trace, bottoms: dict[Any, float]) -> None:
    colour = _SLOTS_OF_PALETTE[trace.colour % PALETTE] if isinstance(trace.colour, int) else _SLOTS[trace.colour]
    name = trace.name if trace.name and not trace.name.startswith("_") else None
    kept = bounded(len(trace.x), POINTS) if len(trace.x) > POINTS else range(len(trace.x))
    x = [_or_nan(v) if isinstance(v, (int, float)) else v for v in (trace.x[index] for index in kept)]
    y = [_or_nan(trace.y[index]) for index in kept]
    if trace.mode == "bars":
        places = [_plain(str(value)) for value in x]
        below = [bottoms.get(value, 0.0) for value in x]
        heights = [0.0 if math.isnan(value) else value for value in y]
        axes.bar(places, heights, bottom=below, color=colour, width=0.6, label=name)
        bottoms.update({value: a + b for value, a, b in zip(x, below, heights, strict=True)})
        return
    style: dict[str, Any] = {"color": colour, "label": name}
    if trace.mode in ("markers", "both"):
        style |= {"marker": _MARKERS[trace.symbol], "markersize": 4.5 if len(x) < 200 else 2}
        if trace.symbol == "open":
            style["markerfacecolor"] = "none"
    style["linestyle"] = "none" if trace.mode == "markers" else "--" if trace.dashed else "-"
    style["linewidth"] = 1.2
    if trace.mode == "step":
        style["drawstyle"] = "steps-post"
    axes.plot(x, y, **style)
    if trace.low and trace.high:
        for index, place in zip(kept, x, strict=True):
            low, high = trace.low[index], trace.high[index]
            if low is not None and high is not None and max(abs(low), abs(high)) <= DRAWN:
                axes.plot([place, place], [low, high], color=colour, linewidth=0.8)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None or abs(value) > DRAWN else value


def _plain(text: str) -> str:
    """Text, not formulas."""
    return text.replace("$", r"\$")


def _style(text: Any) -> None:
    text.set_color(_SLOTS["ink"])


_COLOUR: Final = re.compile("|".join(map(re.escape, _VARIABLES)))
_ID: Final = re.compile(r"""(?<=\bid=")[^"]+|(?<=href="#)[^"]+""")


def _for_page(text: str, title: str, key: str) -> str:
    """The element alone, its colours as variables, its ids its own, its size left to the page."""
    import html

    text = text[text.index("<svg") :]
    text = _COLOUR.sub(lambda match: _VARIABLES[match[0]], text)
    text = _ID.sub(lambda match: f"{key}-{match[0]}", text)
    text = re.sub(r"url\(#([^)]+)\)", lambda match: f"url(#{key}-{match[1]})", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style\b.*?</style>", "", text, count=1, flags=re.DOTALL)  # it would hold for the whole page
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    head, _, rest = text.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{html.escape(title, quote=True)}">{rest}'
