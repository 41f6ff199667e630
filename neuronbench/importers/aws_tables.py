"""Tables out of what AWS publishes: a page saved as HTML, a page saved as text, a CSV file of its documentation.

HTML is read by the standard library's parser, which builds no document, runs nothing, loads nothing, and replaces
character references one by one (there are no entities to expand). What it would keep back while it waits for an end
that does not come is bounded here, and so is everything else.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from neuronbench.importers.aws_columns import is_column, is_header, is_instance, is_instance_column
from neuronbench.importers.safe import ImportFailure, read_text

LIMIT_BYTES: Final = 16 * 1024 * 1024
"""Of a page or a table; AWS's largest page has half a megabyte."""
_CHUNK: Final = 64 * 1024
_PENDING: Final = 256 * 1024
"""Characters that may wait for the end of a tag or a comment: more is none, and would be searched again and again."""
_COLUMNS, _ROWS, _NESTED, _CELL, _SPAN = 200, 20_000, 16, 4_000, 100
_HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6", "label", "caption")
_SILENT: Final = ("script", "style", "template", "noscript")


@dataclass(kw_only=True)
class Table:
    """A table as it stands there: text only."""

    headings: tuple[str, ...] = ()
    """Headings, labels of tabs and captions above it, outermost first."""
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    where: str = ""
    """For messages: `table 3`."""


@dataclass(kw_only=True)
class Page:
    tables: list[Table]
    text: str
    """What else stands there: footnotes say by which price costs were made."""


def read(path: Path) -> Page:
    """Every table in the file. Raises `ImportFailure` for what is too large, cut off, or no text."""
    text = read_text(path, LIMIT_BYTES)
    if path.suffix.lower() == ".csv":
        return Page(tables=[_csv(path, text)], text="")
    if re.search(r"<(table|html|body)\b", text, re.IGNORECASE):
        return _html(path, text)
    return Page(tables=list(_text_tables(path, text)), text=text)


# --------------------------------------------------------------------------------------------------------------------
# CSV


def _csv(path: Path, text: str) -> Table:
    try:
        lines = [line for line in csv.reader(text.splitlines(keepends=True), strict=True) if any(map(str.strip, line))]
    except csv.Error as error:
        raise ImportFailure(f"{path}: expected a CSV table, found {error}; is the file complete?") from None
    if len(lines) < 2:
        raise ImportFailure(f"{path}: expected a header and rows, found {len(lines)} lines")
    return _checked(path, Table(columns=[one.strip() for one in lines[0]], rows=lines[1:], where=path.name))


def _checked(path: Path, table: Table) -> Table:
    width = len(table.columns)
    if width > _COLUMNS or len(table.rows) > _ROWS:
        raise ImportFailure(
            f"{path}: {table.where}: expected at most {_COLUMNS} columns and {_ROWS:,} rows, "
            f"found {width} and {len(table.rows):,}"
        )
    for number, row in enumerate(table.rows, start=1):
        if len(row) != width:
            raise ImportFailure(
                f"{path}: {table.where}: expected {width} cells in each row, found {len(row)} in row {number}; "
                "is the file complete?"
            )
    table.rows = [[" ".join(cell.split())[:_CELL] for cell in row] for row in table.rows]
    return table


# --------------------------------------------------------------------------------------------------------------------
# HTML


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Table] = []
        self.words: list[str] = []
        self.open: list[_Open] = []
        self.whole: bool | None = None
        """None: a fragment; False: a document that has not ended yet."""
        self._headings: dict[int, str] = {}
        self._heading: tuple[int, list[str]] | None = None
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent += 1
        elif tag == "html":
            self.whole = False
        elif tag == "table":
            if len(self.open) >= _NESTED:
                raise ValueError(f"tables in tables, more than {_NESTED} deep")
            self.open.append(_Open(headings=tuple(self._headings[level] for level in sorted(self._headings))))
        elif self.open and tag == "tr":
            self.open[-1].row()
        elif self.open and tag in ("td", "th"):
            spans = {name: _span(value) for name, value in attrs if name in ("colspan", "rowspan")}
            self.open[-1].cell(spans.get("colspan", 1), spans.get("rowspan", 1))
        elif tag in _HEADINGS:
            self._heading = (_HEADINGS.index(tag), [])

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "html":
            self.whole = True
        elif tag == "table" and self.open:
            done = self.open.pop().done(f"table {len(self.tables) + 1}")
            if done is not None:
                self.tables.append(done)
        elif tag in _HEADINGS and self._heading is not None:
            level, words = self._heading
            self._headings = {known: text for known, text in self._headings.items() if known < level}
            self._headings[level] = " ".join(" ".join(words).split())[:_CELL]
            self._heading = None

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        if self._heading is not None:
            self._heading[1].append(data)
        if self.open:
            self.open[-1].text(data)
        else:
            self.words.append(data)


def _span(value: str | None) -> int:
    return min(int(value), _SPAN) if value is not None and value.isascii() and value.isdigit() and int(value) else 1


@dataclass
class _Open:
    """A table while it is read."""

    headings: tuple[str, ...]
    lines: list[list[list[str]]] = field(default_factory=list)
    down: dict[int, tuple[int, list[str]]] = field(default_factory=dict)
    """Column → rows that a cell above still covers, and the cell."""
    current: list[str] | None = None

    def row(self) -> None:
        self.lines.append([])
        self.current = None
        if len(self.lines) > _ROWS:
            raise ValueError(f"more than {_ROWS:,} rows in one table")
        self._covered()

    def _covered(self) -> None:
        line = self.lines[-1]
        while len(line) in self.down:
            left, cell = self.down.pop(len(line))
            if left > 1:
                self.down[len(line)] = (left - 1, cell)
            line.append(cell)

    def cell(self, across: int, down: int) -> None:
        if not self.lines:
            self.row()
        self.current = []
        for _ in range(across):
            line = self.lines[-1]
            if len(line) >= _COLUMNS:
                raise ValueError(f"more than {_COLUMNS} columns in one table")
            if down > 1:
                self.down[len(line)] = (down - 1, self.current)
            line.append(self.current)

    def text(self, data: str) -> None:
        if self.current is not None and sum(map(len, self.current)) < _CELL:
            self.current.append(data)

    def done(self, where: str) -> Table | None:
        lines = [[" ".join("".join(cell).split()) for cell in line] for line in self.lines if line]
        if len(lines) < 2:
            return None
        return Table(headings=self.headings, columns=lines[0], rows=lines[1:], where=where)


def _html(path: Path, text: str) -> Page:
    parser = _Parser()
    try:
        for start in range(0, len(text), _CHUNK):
            parser.feed(text[start : start + _CHUNK])
            if len(parser.rawdata) > _PENDING:
                raise ValueError(f"a tag or a comment that does not end within {_PENDING // 1024} KiB")
        parser.close()
    except (ValueError, AssertionError) as error:
        raise ImportFailure(f"{path}: expected a page saved as HTML, found {error}") from None
    if parser.open or parser.whole is False:
        what = "within a table" if parser.open else "before </html>"
        raise ImportFailure(f"{path}: the page ends {what}: it is cut off; save it again")
    return Page(tables=parser.tables, text=" ".join(" ".join(parser.words).split()))


# --------------------------------------------------------------------------------------------------------------------
# text


def _text_tables(path: Path, text: str) -> Iterator[Table]:
    """Tables of a page that was saved or copied as text: cells by tabs, by `|`, by two blanks, or one to a line."""
    lines = text.splitlines()
    if len(lines) > 50 * _ROWS:
        raise ImportFailure(f"{path}: expected a page saved as text, found {len(lines):,} lines")
    headings: list[str] = []
    number = index = 0
    while index < len(lines):
        found = _lines_table(lines, index) or _stacked_table(path, lines, index)
        if found is None:
            said = lines[index].strip()
            if said and len(said) < 80 and not re.fullmatch(r"[\W_]+", said):
                headings = [*headings[-3:], said]
            index += 1
            continue
        table, index = found
        number += 1
        table.headings, table.where = tuple(headings), f"table {number}"
        yield _checked(path, table)


def _cells(line: str) -> list[str]:
    if "\t" in line:
        return [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
    if line.strip().startswith("|"):
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    return [cell.strip() for cell in re.split(r" {2,}", line.strip())]


def _lines_table(lines: Sequence[str], start: int) -> tuple[Table, int] | None:
    columns = _cells(lines[start])
    if not is_header(columns):
        return None
    rows: list[list[str]] = []
    index = start + 1
    while index < len(lines):
        line = lines[index]
        cells = _cells(line)
        if re.fullmatch(r"[\s|+:=-]*", line):
            if not line.strip() and rows:
                break
        elif len(cells) < 2:
            break
        else:
            rows.append(cells)
        index += 1
    return (Table(columns=columns, rows=rows), index) if rows else None


def _stacked_table(path: Path, lines: Sequence[str], start: int) -> tuple[Table, int] | None:
    """One cell to a line, or a paragraph each: as many names of columns as there are, then the cells, row by row.

    The next row is one while its cell of the instance type is one. Where the cells stop, the table must have ended.
    """
    if lines[start].strip().lower() != "model":
        return None
    apart = start + 1 < len(lines) and not lines[start + 1].strip()
    filled = [(at, line.strip()) for at, line in enumerate(lines[start:], start=start) if line.strip()]
    columns = [text for _, text in itertools.takewhile(lambda each: is_column(each[1]), filled)]
    if not is_header(columns):
        return None
    width, place = len(columns), next(at for at, name in enumerate(columns) if is_instance_column(name))
    if not apart:  # a blank line ends it
        ends = next((at for (at, _), (after, _) in itertools.pairwise(filled) if after != at + 1), filled[-1][0])
        filled = [each for each in filled if each[0] <= ends]
    rows: list[list[str]] = []
    index = width
    while is_instance(filled[index + place][1]) if index + place < len(filled) else False:
        rows.append([text for _, text in filled[index : index + width]])
        index += width
    left = filled[index:] if not apart else filled[index : index + width]
    if not rows or len(rows[-1]) < width or (left and (not apart or any(is_instance(text) for _, text in left))):
        raise ImportFailure(
            f"{path}: expected {width} lines for each row below the {width} names of columns, found another number "
            f"after row {len(rows)}; is the page complete?"
        )
    return Table(columns=columns, rows=rows), (filled[index - 1][0] + 1)
