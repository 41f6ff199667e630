"""The board: what harness benchmarks report, printed as one table at the end and kept as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neuronbench import config as configuration
from neuronbench import environment

FACTOR = float(os.environ.get("NEURONBENCH_HARNESS_FACTOR", "5"))


@dataclass(kw_only=True)
class Row:
    """One quantity: ours, what it may be, and what others have."""

    what: str
    unit: str
    value: float | None
    """Median of the turns."""
    turns: list[float] = field(default_factory=list)
    budget: float | None = None
    bare: float | None = None
    """The reference, measured in turns with ours."""
    peers: dict[str, float | None] = field(default_factory=dict)
    note: str = ""

    @property
    def over(self) -> bool:
        return self.budget is not None and (self.value is None or self.value > self.budget)


@dataclass
class Board:
    """Rows of this session."""

    rows: list[Row] = field(default_factory=list)

    def report(self, **fields: object) -> None:
        """Add a row; fails when the value is beyond `FACTOR` times its budget."""
        row = Row(**fields)  # type: ignore[arg-type]
        self.rows.append(row)
        if row.budget is not None:
            assert row.value is not None, f"{row.what}: not measured; {row.note}"
            assert row.value <= FACTOR * row.budget, (
                f"{row.what}: {row.value:.3g} {row.unit} is more than {FACTOR:g} × the budget of {row.budget:g}"
            )


BOARD = pytest.StashKey[Board]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "harness: measures neuronbench itself")
    config.stash[BOARD] = Board()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.harness)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def board(pytestconfig: pytest.Config) -> Board:
    return pytestconfig.stash[BOARD]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[BOARD].rows
    if not rows:
        return
    terminalreporter.section("neuronbench itself")
    terminalreporter.write_line(table(rows))
    settings = configuration.load(config.rootpath)
    folder = Path(config.option.nb_data_root or settings.data_root) / "harness"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    path = folder / f"{stamp}-{os.getpid()}.json"
    facts = {**environment.host_facts(), **environment.harness_facts(), **environment.git_facts(settings.root)}
    document = {"made_at": stamp, "rows": [asdict(row) for row in rows], "environment": facts}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    terminalreporter.write_line(f"kept in {path}")
    for warning in environment.host_warnings():
        terminalreporter.write_line(f"note: {warning}")


def table(rows: list[Row]) -> str:
    """Rows as text: a column for each peer that measured anything."""
    from io import StringIO

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "unit", "neuronbench", "of turns", "budget", "", "bare", "× bare", *peers, ""):
        made.add_column(column, justify="left" if column in ("", "unit") else "right", overflow="fold")
    for row in rows:
        spread = f"{_text(min(row.turns))}–{_text(max(row.turns))}" if len(row.turns) > 1 else ""
        ratio = row.value / row.bare if row.value is not None and row.bare and row.bare > 0 else None
        verdict = "" if row.budget is None else "OVER" if row.over else "ok"
        cells = [row.what, row.unit, _text(row.value), spread, _text(row.budget), verdict, _text(row.bare)]
        cells += [_text(ratio), *(_text(row.peers.get(name)) for name in peers), row.note]
        made.add_row(*(Text(cell) for cell in cells))
    out = StringIO()
    Console(file=out, width=220, highlight=False).print(made)
    return out.getvalue().rstrip()


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
