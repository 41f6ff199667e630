"""Tables for a terminal: what was measured, what it rests on, and what failed."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neuronbench.canonical import printable
from neuronbench.model import Gate, Metric, Outcome, Provenance, Record, Validity
from neuronbench.receipts.evidence import GATE as EVIDENCE
from neuronbench.report.gates import gate_line, unjudged_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


SHORT = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "icl": "ICL",
    "itl": "ITL",
    "e2e": "E2E",
    "mfu": "MFU",
    "output_throughput": "output",
    "request_throughput": "requests",
    "total_token_throughput": "all\ntokens",
    "output_token_throughput": "output\ntokens",
    "input_token_throughput": "input\ntokens",
    "latency_per_token": "per\ntoken",
    "latency_per_output_token": "per output\ntoken",
    "error_rate": "errors",
    "train_throughput": "trained",
    "step_time": "step",
    "step_time_wall": "step\nby wall",
    "holdout_loss": "hold-out",
    "holdout_loss_ratio": "hold-out\nratio",
    "preference_accuracy": "pairs\nright",
    "scaling_efficiency": "scaling",
    "checkpoint_time": "save",
    "checkpoint_size": "saved",
    "restore_time": "restore",
    "loss_difference": "loss\ndiffers",
    "input_cost": "input\ncost",
    "largest_batch": "largest\nbatch",
    "largest_context": "largest\ncontext",
    "train_to_serve_time": "train\nto serve",
}
"""Names of metrics where there is little room; others stand in full."""
HEADING_WIDTH = 12
"""Columns a name may take before it goes on in the next line."""
ACCURACY = ("agreement_share", "accuracy_ratio")
"""Shown of every record that has them, whatever its lane."""
TOO_FEW = "few"
"""Stands for a percentile that has not enough samples."""


def number(metric: Metric | None) -> str:
    """A value in three or four significant figures; `–` when missing, `∞` when unbounded, `few` without the samples."""
    if metric is None:
        return "–"
    if metric.value is None:
        return "∞" if metric.note.startswith("unbounded") else TOO_FEW if " needs " in metric.note else "–"
    value = metric.value
    if metric.unit == "share":
        return f"{100 * value:.3g}%"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
        return f"{value:.{digits}f}"
    return f"{value:.3g}"


def heading(metric: Metric) -> str:
    """Name, statistic and unit, a line each: `TTFT`, `p50`, `ms`."""
    unit = "" if metric.unit == "share" else metric.unit
    name = SHORT.get(metric.id) or "\n".join(textwrap.wrap(words_of(metric), HEADING_WIDTH))
    return "\n".join(part for part in (name, metric.stat, unit) if part)


def benchmark_name(record: Record) -> str:
    """`closed_loop` of `benchmarks/serving/bench_closed_loop.py::bench_closed_loop`."""
    return record.point.benchmark.rpartition("::")[2].removeprefix("bench_") or record.point.id


def short_ids(records: Sequence[Record]) -> list[str]:
    """Ids of points without what all of them share: lane, benchmark, backend."""
    ids = []
    for record in records:
        point = record.point
        stem = f"{point.lane}.{benchmark_name(record)}-{point.backend}"
        ids.append(point.id.removeprefix(stem).lstrip("-") or point.backend)
    return ids


def verdict(record: Record, now: Mapping[str, Validity] | None = None) -> str:
    """Outcome and validity in one word or two: `ok`, `ok INVALID`, `timeout`.

    `now`: validities that later records have changed, by receipt id (`receipts.validities_now`).
    """
    words = [record.outcome.value if record.outcome else "?"]
    validity = (now or {}).get(record.receipt_id, record.validity)
    if record.outcome in (Outcome.OK, Outcome.SLO_MISS) and validity != Validity.VALID:
        words.append(validity.value.upper() if validity == Validity.INVALID else validity.value)
    if record.provenance != Provenance.MEASURED:
        words.append(record.provenance.value)
    return " ".join(words)


def words_of(metric: Metric) -> str:
    """Its name in words: `accuracy ratio`."""
    return metric.id.replace("_", " ")


def headline(record: Record, keys: Sequence[str], *, limit: int = 2) -> str:
    """`TTFT p50 88.1 ms, 812 tok/s`: the first `limit` metrics of a lane that have a value, in words."""
    parts = []
    for key in headline_keys([record], keys):
        metric = record.metrics.get(key)
        if metric is None or metric.value is None or metric.unit == "share":
            continue
        name = metric.id.upper() if metric.id in ("ttft", "tpot", "e2e") else "" if metric.unit else words_of(metric)
        parts.append(" ".join(word for word in (name, metric.stat, number(metric), metric.unit) if word))
    chosen = parts[:1] + [part for part in parts[1:] if "tok/s" in part or "items/s" in part][: limit - 1]
    return ", ".join(chosen)


def plain_table(title: str) -> Table:
    """An empty table without a frame: what fits a terminal of 80 columns."""
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def add(table: Table, *cells: str | Text) -> None:
    """A row of cells. Text of a receipt may hold what rich would take for markup: it is shown as it is."""
    from rich.text import Text

    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def lane_table(
    title: str, records: Sequence[Record], keys: Sequence[str], now: Mapping[str, Validity] | None = None
) -> Table:
    """One row a repeat, one column a headline metric; invalid and simulated rows say so.

    All `records` are of one benchmark on one backend, which `title` names. `now` as of `verdict`.
    """
    from rich.text import Text

    table = plain_table(title)
    table.add_column("point", overflow="fold", min_width=min(14, max(map(len, short_ids(records)), default=5)))
    several = any(record.repeat > 1 for record in records)
    if several:
        table.add_column("r", justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    used = headline_keys(records, keys)
    for key in used:
        table.add_column(
            Text(heading(next(record.metrics[key] for record in records if key in record.metrics))),
            justify="right",
            no_wrap=True,
        )
    for record, name in zip(records, short_ids(records), strict=True):
        style = {"ok": "green", "skipped": "dim", "cached": "dim"}.get(verdict(record, now), "yellow")
        if record.outcome in (Outcome.ERROR, Outcome.TIMEOUT, Outcome.FAILED, Outcome.INTERRUPTED):
            style = "red"
        count = next((record.metrics[key].n for key in used if key in record.metrics), None)
        row: list[str | Text] = [name, *([str(record.repeat)] if several else [])]
        row += [Text(verdict(record, now), style=style), "–" if count is None else str(count)]
        add(table, *row, *(number(record.metrics.get(key)) for key in used))
    return table


def headline_keys(records: Sequence[Record], keys: Sequence[str]) -> list[str]:
    """Of `keys` those that any of the records has; where accuracy was measured, what came of that too."""
    there = [key for key in keys if any(key in record.metrics for record in records)]
    more = [key for key in ACCURACY if key not in there and any(key in record.metrics for record in records)]
    return there + more


def later_lines(records: Sequence[Record], now: Mapping[str, Validity]) -> list[str]:
    """What accuracy records that came later made of records."""
    lines = []
    for validity, word in ((Validity.VALID, "valid"), (Validity.INVALID, "INVALID")):
        names = [record.receipt_name for record in records if now.get(record.receipt_id) is validity]
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            lines.append(f"{word} by accuracy that was measured later: {shown}")
    return lines


def sample_notes(records: Sequence[Record], keys: Sequence[str]) -> list[str]:
    """What the `few` of one table would take."""
    needed: dict[str, tuple[int, Record]] = {}
    for record in records:
        for key in keys:
            metric = record.metrics.get(key)
            if metric is not None and number(metric) == TOO_FEW:
                text = metric.note.partition(", found")[0]
                if text not in needed or metric.n < needed[text][0]:
                    needed[text] = (metric.n, record)
    lines = []
    for text, (found, record) in needed.items():
        remedy = "measure longer"
        if "window_s" in record.point.params:
            remedy += ": --nb-grid full, or --nb-set window_s=SECONDS"
        lines.append(f"{TOO_FEW}: {text}, found {found} at least; {remedy}")
    return lines


def utilisation_notes(records: Sequence[Record], limit: int = 2) -> list[str]:
    """Of what a utilisation is one: formula and peak of the first points that have others, or why there is none."""
    points: dict[str, list[str]] = {}
    for record, name in zip(records, short_ids(records), strict=True):
        metric = record.metrics.get("mfu_pct")
        if metric is not None and metric.note:
            points.setdefault(metric.note, []).append(name)
    lines = [
        f"MFU{'' if len(points) == 1 else f' of {names[0]}'}: {' '.join(note.split())}"
        for note, names in points.items()
    ]
    more = len(lines) - limit
    return lines if more <= 0 else [*lines[:limit], f"MFU of {more} more: in their records"]


PHASES = (
    "boot_time_s", "boot_spawn_s", "boot_weights_s", "boot_compile_s", "boot_listen_s", "boot_first_token_s",
    "load_time_s",
)  # fmt: skip


def boot_table(records: Sequence[Record]) -> Table:
    """What it took to make the resources live, split by the phases that any of them has."""
    from rich.text import Text

    table = plain_table("boots")
    table.add_column("model", overflow="fold")
    table.add_column("result", no_wrap=True)
    phases = [key for key in PHASES if any(key in record.metrics for record in records)] or PHASES[:1]
    for key in phases:
        name = key.removeprefix("boot_").removesuffix("_s").replace("load_time", "load").replace("_", "\n")
        name = name.replace("time", "total")
        table.add_column(f"{name}\ns", justify="right", no_wrap=True)
    for record in records:
        spec = record.resource.spec if record.resource else record.point.params
        style = "green" if record.outcome == Outcome.OK else "red"
        add(
            table,
            str(spec.get("served_model") or spec.get("model") or spec.get("url") or record.point.id),
            Text(verdict(record), style=style),
            *(number(record.metrics.get(key)) for key in phases),
        )
    return table


def failure_lines(records: Sequence[Record]) -> list[str]:
    """Failures grouped by cause: points that share a causal line are told together."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.error is not None:
            key = (record.error.kind, record.error.causal_line or record.error.message)
            groups.setdefault(key, []).append(record)
    lines = []
    for (kind, line), members in groups.items():
        error = members[0].error
        assert error is not None
        names = ", ".join(record.receipt_name for record in members[:3])
        names += f" and {len(members) - 3} more" if len(members) > 3 else ""
        lines.append(f"{kind} in {error.phase}: {names}")
        lines.append(f"    {' '.join(line.split())[:300]}")
        if error.remedy:
            lines.append(f"    remedy: {error.remedy}")
    return lines


def gate_lines(records: Sequence[Record], now: Mapping[str, Validity] | None = None) -> list[str]:
    """Gates that failed, each with how many records and what was observed; then those that could not be evaluated in
    records whose numbers may be taken for good.

    What later records have settled (`now`, as of `verdict`) is in `later_lines`.
    """
    groups: dict[tuple[str, str], list[Gate]] = {}
    for record in records:
        settled = record.receipt_id in (now or {})
        for gate in record.gates:
            if gate.passed is False and gate.severity != "info" and not (settled and gate.id == EVIDENCE):
                groups.setdefault((gate.severity, gate.id), []).append(gate)
    measured = [record for record in records if record.validity is not Validity.INVALID]
    return [
        *(gate_line(gates) for gates in groups.values()),
        *unjudged_lines(gate for record in measured for gate in record.gates),
    ]


def print_table(console: Console, table: Table) -> None:
    """The table below its title, which may be wider than it is. Nothing in it is obeyed by the terminal."""
    from rich.segment import Segment, Segments
    from rich.text import Text

    if table.title is not None:
        console.print(Text(printable(str(table.title)), style="bold"))
        table.title = None
    drawn = console.render(table)
    console.print(Segments(Segment(printable(each.text), each.style, each.control) for each in drawn), end="")


def print_rows(console: Console, table: Table) -> None:
    """The table as a block for each row, a line for each cell that says something: for a terminal in which the words of
    its columns would be broken. Long values go on below their own beginning."""
    from rich.text import Text

    names = [str(column.header) for column in table.columns]
    room = max(map(len, names[1:]), default=0)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        title, *values = (printable(str(cell)) for cell in cells)
        console.print(Text(title, style="bold"), soft_wrap=True)
        for name, value in zip(names[1:], values, strict=True):
            if value in ("", "–"):
                continue
            lead = f"  {name:{room}}  "
            lines = textwrap.wrap(
                value, max(20, console.width - len(lead)), break_long_words=False, break_on_hyphens=False
            )
            for number, line in enumerate(lines):
                console.print(Text((lead if number == 0 else " " * len(lead)) + line), soft_wrap=True)


def broken(console: Console, table: Table) -> bool:
    """Whether some word of the table is wider than the column that this terminal leaves for it."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=10_000), table).minimum > console.width


def render(*tables: Table, width: int, color: bool = False) -> str:
    """Tables as text for a terminal of `width` columns."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
    )
    for table in tables:
        print_table(console, table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def by_benchmark(records: Sequence[Record]) -> Mapping[tuple[str, str, str], list[Record]]:
    """Records of points by lane, benchmark and backend, in order of appearance."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.kind == "point":
            key = (record.point.lane, benchmark_name(record), record.point.backend)
            groups.setdefault(key, []).append(record)
    return groups
