"""A document as Markdown: the same tables; of figures what is in them and what is said of them, and no picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuronbench.report.comparison_files import cell as escaped
from neuronbench.report.page.figure import Block, Cell, Document, Figure, Section, Table, Text
from neuronbench.words import counted

ROWS: Final = 100
"""Of a table: what is read in a review, not searched."""


def render(document: Document) -> str:
    """GitHub's flavour. Nothing of a receipt is taken for markup, HTML or a mention."""
    lines = [f"# {escaped(document.title)}", ""]
    lines += [f"- **{escaped(name)}**: {escaped(value)}" for name, value in document.facts]
    if document.warnings:
        lines += ["", *(f"> {escaped(line)}  " for line in document.warnings)]
    for section in document.sections:
        lines += _section(section)
    return "\n".join(lines) + "\n"


def _section(section: Section) -> list[str]:
    lines = ["", f"{'#' * section.level} {escaped(section.title)}"]
    for block in section.blocks:
        lines += ["", *_block(block)]
    return lines


def _block(block: Block) -> list[str]:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        return _figure(block)
    return _text(block)


def _text(text: Text) -> list[str]:
    if text.code:
        return [f"    {line}" for line in text.lines]
    if text.bullet:
        return [f"- {escaped(line)}" for line in text.lines]
    return [escaped(line) + "  " for line in text.lines]


def _table(table: Table) -> list[str]:
    title = f"{escaped(table.title)}{_marks(table.marks)}"
    heads = "| " + " | ".join(escaped(name) or " " for name in table.columns) + " |"
    rule = "|" + "|".join("---:" if index in table.right else "---" for index in range(len(table.columns))) + "|"
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows[:ROWS]]
    notes = [f"- {escaped(note)}" for note in table.notes]
    if len(table.rows) > ROWS:
        notes.insert(0, f"- {counted(len(table.rows) - ROWS, 'more row')}: the HTML report has them")
    inside = [heads, rule, *rows, *(["", *notes] if notes else [])]
    if table.folded:
        marks = "".join(f", {mark}" for mark in table.marks if mark.isalpha())  # in HTML backticks would stay
        head = f"{escaped(table.title)}{marks} ({len(table.rows)})"
        return [f"<details><summary>{head}</summary>", "", *inside, "", "</details>"]
    return [f"**{title}**", "", *inside]


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return escaped(cell) or " "
    text = escaped(cell.text)
    if cell.href:
        text = _link(text, cell.href)
    text = " ".join([*(_link(escaped(one.text), one.href) for one in cell.links), *([text] if text else [])])
    sub = f" ({escaped(cell.sub)})" if cell.sub else ""
    return f"{text}{_marks(cell.marks)}{sub}" or " "


def _link(text: str, href: str) -> str:
    return f"[{text}]({href.replace('(', '%28').replace(')', '%29').replace('|', '%7C')})"


def _figure(figure: Figure) -> list[str]:
    names: dict[str, None] = {}
    for panel in figure.panels:
        names.update(dict.fromkeys(trace.name.removeprefix("_") for trace in panel.traces))
    axes = ", ".join(panel.y for panel in figure.panels)
    lines = [f"*Figure of the HTML report: {escaped(figure.title)}{_marks(figure.marks)}: {escaped(axes)}*"]
    return lines + [f"- {escaped(note)}" for note in figure.notes]


def _marks(marks: Sequence[str]) -> str:
    return "".join(f" `{mark}`" for mark in marks if mark.isalpha())
