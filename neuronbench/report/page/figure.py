"""A report as data: sections of tables, figures and text. `html` and `markdown` write it.

Of a figure the page's script makes a drawing one can look into, `still` a picture for paper and for no script.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

Mode = Literal["lines", "markers", "both", "step", "bars"]
Tone = Literal["", "good", "bad", "warn", "faint"]
Symbol = Literal["dot", "open", "square", "diamond", "cross"]

SYMBOLS: Final[Mapping[str, Symbol]] = {
    "": "dot", "provisional": "open", "invalid": "cross", "imported": "square", "simulated": "diamond",
}  # fmt: skip
"""Mark of a record → how its point is drawn. What must not be quoted never looks like what may."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One series of one panel. Sequences have equal lengths; a y of None is a gap."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float | None]
    mode: Mode = "lines"
    colour: int | Literal["ink", "bad", "faint"] = 0
    symbol: Symbol = "dot"
    dashed: bool = False
    texts: Sequence[str] = ()
    """Shown at each point under the pointer."""
    links: Sequence[str] = ()
    """Opened by a click on each point: its receipt."""
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    """Bounds of y."""
    group: str = ""
    """Traces of one group are switched on and off together; the first of them is in the legend."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Axes, one above the other; all panels of a figure share x."""

    traces: Sequence[Trace]
    y: str
    """Label of the axis, with its unit."""
    log_y: bool = False
    from_zero: bool = False
    top: float | None = None
    """Where y ends at most."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A stretch of x that is shaded, or a line where both ends are equal."""

    begin: float
    end: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What is drawn, and what has to be said of it."""

    title: str
    x: str
    panels: Sequence[Panel]
    log_x: bool = False
    bands: Sequence[Band] = ()
    notes: Sequence[str] = ()
    """Below the figure: which points were chosen, what is marked, what is left out."""
    marks: Sequence[str] = ()
    """`provisional`, `invalid`, `imported`, `simulated`: whatever of it is drawn, shown beside the title."""
    stacked: bool = False
    """Bars stand on each other."""

    def to_json(self) -> dict[str, Any]:
        """What the page's script draws from; see `assets/page.js`."""
        return {
            "x": self.x,
            "logX": self.log_x,
            "stacked": self.stacked,
            "bands": [[band.begin, band.end, band.name] for band in self.bands],
            "panels": [
                {
                    "y": panel.y,
                    "logY": panel.log_y,
                    "zero": panel.from_zero,
                    "top": panel.top,
                    "traces": [_trace(trace) for trace in panel.traces],
                }
                for panel in self.panels
            ],
        }


def _trace(trace: Trace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": trace.name,
        "mode": trace.mode,
        "colour": trace.colour,
        "symbol": trace.symbol,
        "x": [_short(value) for value in trace.x],
        "y": [_short(value) for value in trace.y],
    }
    if trace.dashed:
        found["dashed"] = True
    for name in ("texts", "links"):
        if any(getattr(trace, name)):
            found[name] = list(getattr(trace, name))
    for name in ("low", "high"):
        if any(value is not None for value in getattr(trace, name)):
            found[name] = [_short(value) for value in getattr(trace, name)]
    if trace.group:
        found["group"] = trace.group
    return found


def _short(value: float | str | None) -> float | str | None:
    """Six figures are more than a screen can show; what is no number is a gap."""
    if value is None or isinstance(value, str):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")


class Link(NamedTuple):
    """One of several links in a field."""

    text: str
    href: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What stands in a field of a table. `text` is text: whoever renders it escapes it."""

    text: str
    sub: str = ""
    """Smaller, below it: least and most of the repeats, or bounds."""
    href: str = ""
    title: str = ""
    """Said when pointed at: bounds, what is missing."""
    tone: Tone = ""
    sort: float | None = None
    """Sorts by this instead of by the text."""
    marks: Sequence[str] = ()
    links: Sequence[Link] = ()
    """Before the text, each with an address of its own."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows and columns. `rows` of what is in the page; `omitted` says how many are not, `notes` what to know."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    right: frozenset[int] = frozenset()
    """Columns of numbers."""
    omitted: int = 0
    notes: Sequence[str] = ()
    marks: Sequence[str] = ()
    folded: bool = False
    """Shown when asked for."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """Paragraphs, or lines of a list."""

    lines: Sequence[str]
    bullet: bool = False
    code: bool = False
    """Lines of logs, as they were."""


Block = Table | Figure | Text


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report with a heading. `level` 3 stands within the one before it of level 2."""

    title: str
    anchor: str
    blocks: Sequence[Block] = field(default_factory=list)
    level: Literal[2, 3] = 2


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report, ready to be written as HTML or Markdown."""

    title: str
    facts: Sequence[tuple[str, str]]
    """Name → value, shown at the top: which receipts, from when, of what."""
    warnings: Sequence[str]
    sections: Sequence[Section]
