"""`neuronbench import`: results that others measured, as receipts."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host
from neuronbench.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuronbench import importers
    from neuronbench.model import Json, Record


def import_results(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help="Where it comes from: vllm, guidellm, aiperf, llmperf, inference-perf, pytest-benchmark, nxdi, aws, "
            "optimum-training, study.",
            metavar="KIND",
        ),
    ],
    path: Annotated[Path, typer.Argument(help="The result file, or a folder of them.", metavar="PATH")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the receipts (default: mlruns/receipts).")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(metavar="NAME", help="What it was measured on (inf2, trn2, gpu, ...), where the file is silent."),
    ] = "",
    parameters: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter the file does not name (repeatable)."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Write nothing: compute again what the source published, and list what our gates find in it.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was imported, or found, as JSON.")] = False,
) -> None:
    """Make receipts of results that another tool measured.

    Figures get our metric ids only where the definitions agree; the others stay under their own names. Everything is
    marked `imported`. A file that is not what KIND says, or is damaged, fails the whole import, and nothing is written.
    """
    from neuronbench import importers

    here = host.of(context)
    chosen = importers.KINDS.get(kind)
    if chosen is None:
        raise host.CommandError(f"no source {kind!r}; known: {', '.join(importers.KINDS)}", status=host.USAGE)
    told = _told(parameters or ())
    if check and chosen.check is None:
        able = ", ".join(name for name, one in importers.KINDS.items() if one.check is not None)
        raise host.CommandError(f"--check: nothing published is known of {kind}; of {able} there is", status=host.USAGE)
    progress = host.ProgressLine(patience_s=2.0)
    try:
        found = importers.gather(chosen, path, progress=progress)
        if check and chosen.check is not None:
            checked = chosen.check(path, found)
            progress.done()
            _show(checked, as_json)
            return
        done = importers.store(
            chosen, path, found, out or here.settings.receipts_dir, backend=backend or None, params=told
        )
    except importers.ImportFailure as error:
        raise host.CommandError(str(error)) from error
    finally:
        progress.done()
    if as_json:
        host.emit_json([record.to_json() for record in done.records])
        return
    cells = [
        (
            record.point.id,
            record.point.lane,
            record.point.backend,
            str(sum(metric.value is not None for metric in record.metrics.values())),
            str(len(record.workload["source"]["own_figures"])),
            record.outcome.value if record.outcome else _outcome(record),
        )
        for record in done.records
    ]
    columns = ("point", "lane", "backend", "our metrics", "its own figures", "outcome")
    host.show(host.table(columns, cells, right=("our metrics", "its own figures")))
    failed = Counter(gate.id for record in done.records for gate in record.gates if gate.passed is False)
    if failed:
        said = ", ".join(f"{name} {count}" for name, count in failed.most_common())
        host.say(f"gates that failed, of {counted(len(done.records), 'result')}: {said}")
    host.say(("already imported: " if done.existed else "imported: ") + str(done.folder))


def _outcome(record: Record) -> str:
    """Of a record that was imported before, and is not written again."""
    return "failed" if record.error is not None else "skipped" if record.reason else "ok"


def _show(checked: importers.Checked, as_json: bool) -> None:
    if as_json:
        host.emit_json(checked.data)
        return
    for title, columns, rows in checked.tables:
        host.say(title)
        host.show(host.table(columns, rows, right=("printed", "recomputed")))
    for line in checked.summary:
        host.say(line)


def _told(given: Sequence[str]) -> dict[str, Json]:
    """Parameters from `KEY=VALUE`, values read as `--nb-set` reads them, so that both mean the same point."""
    from neuronbench.grid import parse_value

    found: dict[str, Json] = {}
    for text in given:
        key, equals, raw = text.partition("=")
        if not (key and equals):
            raise host.CommandError(f"--set: expected KEY=VALUE, found {text!r}", status=host.USAGE)
        value = parse_value(raw)
        if isinstance(value, float) and not math.isfinite(value):
            raise host.CommandError(f"--set {text}: expected a finite number or a word", status=host.USAGE)
        if not isinstance(value, (bool, int, float, str)):
            value = raw  # a date or a list of TOML is no value of a parameter
        if key in found and found[key] != value:
            raise host.CommandError(f"--set {key} is given twice, as {found[key]} and {value}", status=host.USAGE)
        found[key] = value
    return found
