"""What every command gets: settings, plugins, a place to print, and a way to fail without a traceback."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuronbench.canonical import printable, printable_json

if TYPE_CHECKING:
    import typer
    from rich.table import Table

    from neuronbench.config import Settings
    from neuronbench.plugins import Plugins
    from neuronbench.receipts import ReceiptStore

USAGE, FAILURE = 2, 1
ROWS_APART = 40
"""Of a longer table more is to be seen at once with its words broken."""


class CommandError(Exception):
    """Ends a command with a message, not a traceback. `status`: 2 for wrong usage or settings, 1 for a failure."""

    def __init__(self, message: str, *, remedy: str = "", status: int = FAILURE) -> None:
        super().__init__(message + (f"\n  To do: {remedy}" if remedy else ""))
        self.status = status


@dataclass(kw_only=True)
class Host:
    """Given to every command as `ctx.obj`."""

    plugins: Plugins
    root: Path | None = None
    """Project folder the user named; None: the nearest upwards."""

    @functools.cached_property
    def settings(self) -> Settings:
        from neuronbench import config

        return config.load(self.root)

    @functools.cached_property
    def store(self) -> ReceiptStore:
        from neuronbench.receipts import ReceiptStore

        return ReceiptStore(self.settings.receipts_dir)

    def session(self, name: str) -> str:
        """The id of the session that `name` means: an id, the start of one, `latest` or `latest~1` (or `last`).

        Sessions that do not count as the latest, as they have no receipt yet, are named on standard error.
        """
        from neuronbench.receipts import naming

        known = self.store.sessions()
        if not known:
            raise CommandError(
                f"no receipts in {self.settings.receipts_dir}",
                remedy="measure something first: pytest benchmarks -m cpu; or name the project's folder with --root",
            )
        back = naming.back_of(name)
        try:
            if back is None:
                found = naming.starting(known, name)
            else:
                meant = naming.latest(self.store, back)
                found = [meant.session]
                for line in naming.passed_over(meant):
                    complain(line)
        except LookupError as error:
            if back != 0:
                raise CommandError(str(error), status=USAGE) from error
            return self.store.latest_session() or known[-1]  # imports alone, or nothing but begun sessions
        if len(found) == 1:
            return found[0]
        what = "several sessions start with" if found else "there is no session"
        raise CommandError(f"{what} {name!r}; the latest are: {', '.join((found or known)[-5:])}", status=USAGE)


def of(context: typer.Context) -> Host:
    """The host of a running command."""
    host: Host = context.obj
    return host


def say(text: str = "") -> None:
    """Print a line. What stands in receipts and files of others is shown and never obeyed by the terminal."""
    print(printable(text), flush=True)


def complain(text: str) -> None:
    print(f"neuronbench: {printable(text)}", file=sys.stderr, flush=True)


def emit_json(value: Any) -> None:
    print(printable_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)), flush=True)


def write_json(option: str, target: str | Path, value: Any) -> None:
    """Print JSON for `-`, else write it to a file in one step. Raises `CommandError` naming `option`."""
    from neuronbench.receipts.files import to_text, write_atomic

    if str(target) == "-":
        emit_json(value)
        return
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, to_text(value))
    except OSError as error:
        raise CommandError(f"{option} {target}: {error.strerror}") from error


def width() -> int:
    """Columns to print tables in: the terminal's; plenty where the output is read by something else."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A plain table; long cells wrap, nothing is cut off."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column in right else "left")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def show(*tables: Table) -> None:
    """Print tables, in colour on a terminal (unless NO_COLOR is set); short ones that it has no room for row by row."""
    from rich.console import Console

    from neuronbench.report.tables import broken, print_rows, print_table

    console = Console(width=width(), highlight=False)
    for each in tables:
        apart = each.title is None and each.row_count <= ROWS_APART and broken(console, each)
        (print_rows if apart else print_table)(console, each)


class ProgressLine:
    """Progress of a long step on standard error: one line that is rewritten on a terminal, a line now and then else."""

    def __init__(self, *, heartbeat_s: float = 10.0, patience_s: float = 0.0) -> None:
        """`patience_s`: nothing is said in the first so many seconds, for what is mostly over by then."""
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.1 if self._terminal else heartbeat_s
        self._said: float | None = None
        self._from = time.monotonic() + patience_s

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now < self._from:
            return
        if self._said is not None and now - self._said < self._every_s:
            return
        self._said = now
        if self._terminal:
            from neuronbench.report.lines import fitted

            shown = fitted(printable(text), shutil.get_terminal_size().columns - 1)
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
        else:
            print(printable(text), file=sys.stderr, flush=True)

    def done(self) -> None:
        """The step is over: the line goes, so that what comes next stands alone."""
        if self._terminal and self._said is not None:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
