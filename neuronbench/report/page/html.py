"""A document as one page of HTML that needs nothing else: no network, no file beside it, and no script but its own.

Whatever comes from a receipt is escaped where it is written, here and nowhere else. A content-security policy with the
digests of the page's own two scripts stands behind that: what would slip through could not run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Final

from neuronbench.canonical import printable
from neuronbench.report.page.figure import Block, Cell, Document, Figure, Section, Table, Text
from neuronbench.report.page.still import svg

ASSETS: Final = "neuronbench.report.page"
PLOTLY: Final = "plotly-basic-4.1.1.min.js"
"""The smallest bundle that has lines, dots and bars. MIT; its licence stands beside it, and in its first lines."""

WORD: Final = 24
"""Characters that stay in one line of a table."""


def render(document: Document, *, stills: bool = True) -> str:
    """The page. `stills`: with pictures of the figures for paper and for readers without scripts."""
    drawn = any(isinstance(block, Figure) for section in document.sections for block in section.blocks)
    scripts = [*([_asset(PLOTLY)] if drawn else []), _asset("page.js")]
    pen = _Pen(stills=stills)
    body = "\n".join(pen.section(section) for section in document.sections)
    nav = "".join(f'<a href="#{_e(each.anchor)}">{_e(each.title.partition(":")[0])}</a>' for each in document.sections)
    facts = "".join(f"<dt>{_e(name)}</dt><dd>{_e(value)}</dd>" for name, value in document.facts)
    warnings = "".join(f"<p>{_e(line)}</p>" for line in document.warnings)
    warnings = f'<div class="warnings" role="note">{warnings}</div>' if warnings else ""
    code = "\n".join(f"<script>{script}</script>" for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="neuronbench">
<link rel="icon" href="data:,">
<title>{_e(document.title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<h1>{_e(document.title)}</h1>
<dl>{facts}</dl>
{warnings}
<nav aria-label="Sections">{nav}</nav>
<main>
{body}
</main>
<footer>Every number links to the receipt it stands in; the median of several repeats to that of the median repeat.
Links are relative: they work where this page was written, and in a copy when the folder of receipts was copied too, to
the same place beside it. Without it everything on this page can still be read.</footer>
{code}
</body>
</html>
"""


def _policy(scripts: Sequence[str]) -> str:
    digests = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    parts = (
        "default-src 'none'", f"script-src {digests}", "style-src 'unsafe-inline'", "img-src data: blob:",
        "base-uri 'none'", "form-action 'none'",
    )  # fmt: skip
    return "; ".join(parts)


def _asset(name: str) -> str:
    return (resources.files(ASSETS) / "assets" / name).read_text(encoding="utf-8")


def _e(text: str) -> str:
    """Text as it may stand anywhere in the page."""
    return html.escape(printable(text), quote=True)


class _Pen:
    """Writes blocks, and numbers the figures."""

    def __init__(self, *, stills: bool) -> None:
        self.stills = stills
        self.figures = 0

    def section(self, section: Section) -> str:
        level = section.level
        blocks = "\n".join(self.block(block) for block in section.blocks)
        return f'<section id="{_e(section.anchor)}"><h{level}>{_e(section.title)}</h{level}>\n{blocks}\n</section>'

    def block(self, block: Block) -> str:
        if isinstance(block, Table):
            return self.table(block)
        return self.figure(block) if isinstance(block, Figure) else self.text(block)

    def text(self, text: Text) -> str:
        if text.code:
            return "<pre>" + "\n".join(map(_e, text.lines)) + "</pre>"
        if text.bullet:
            return '<ul class="notes">' + "".join(f"<li>{_e(line)}</li>" for line in text.lines) + "</ul>"
        return "".join(f"<p>{_e(line)}</p>" for line in text.lines)

    def table(self, table: Table) -> str:
        right = [' class="right"' if index in table.right else ' class="word"' for index in range(len(table.columns))]
        head = "".join(f'<th scope="col"{cls}>{_e(name)}</th>' for name, cls in zip(table.columns, right, strict=True))
        rows = "\n".join(
            "<tr>" + "".join(map(self.cell, row, (index in table.right for index in range(len(row))))) + "</tr>"
            for row in table.rows
        )
        title = f"{_e(table.title)}{_marks(table.marks)}"
        inside = (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
            f"{_notes(table.notes)}"
        )
        if table.folded:
            return f"<details><summary>{title} ({len(table.rows)})</summary>{inside}</details>"
        return f"<h3>{title}</h3>{inside}"

    def cell(self, cell: Cell | str, right: bool) -> str:
        cell = Cell(text=cell) if isinstance(cell, str) else cell
        length = len(" ".join([*(one.text for one in cell.links), cell.text]))
        word = "word" if length <= WORD and not right else ""
        classes = " ".join(name for name in ("right" if right else "", word, cell.tone) if name)
        attributes = f' class="{classes}"' if classes else ""
        if cell.title:
            attributes += f' title="{_e(cell.title)}"'
        if cell.sort is not None:
            attributes += f' data-sort="{cell.sort!r}"'
        text = _e(cell.text)
        if cell.href:
            text = f'<a href="{_e(cell.href)}">{text}</a>'
        each = [f'<a href="{_e(one.href)}" title="{_e(one.title)}">{_e(one.text)}</a>' for one in cell.links]
        text = " ".join([*each, *([text] if text else [])])
        sub = f"<small>{_e(cell.sub)}</small>" if cell.sub else ""
        return f"<td{attributes}>{text}{_marks(cell.marks)}{sub}</td>"

    def figure(self, figure: Figure) -> str:
        self.figures += 1
        key = f"f{self.figures}"
        # "<" would end the element or begin a comment: in JSON it can be written otherwise
        data = json.dumps(figure.to_json(), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        still = f'<div class="still">{printable(svg(figure, key))}</div>' if self.stills else ""
        return (
            f'<figure id="{key}" data-figure><figcaption>{_e(figure.title)}{_marks(figure.marks)}</figcaption>'
            f'{still}<div class="plot" hidden></div><script type="application/json">{data}</script>'
            f"{_notes(figure.notes)}</figure>"
        )


def _marks(marks: Iterable[str]) -> str:
    return "".join(f' <span class="mark {_e(mark)}">{_e(mark)}</span>' for mark in marks)


def _notes(notes: Sequence[str]) -> str:
    return '<ul class="notes">' + "".join(f"<li>{_e(note)}</li>" for note in notes) + "</ul>" if notes else ""
