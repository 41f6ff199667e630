"""`neuronbench report`: a page of HTML, or Markdown, of what was measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host
from neuronbench.commands.compare import options_of, runs_of_mlflow, write
from neuronbench.words import counted

if TYPE_CHECKING:
    from neuronbench.compare import Comparison, Side
    from neuronbench.report.page.gather import Content

FORMATS = ("html", "markdown")
SUFFIX = {"html": ".html", "markdown": ".md"}

HELP = """Write a report of results: one page of HTML that needs nothing else, or Markdown.

\b
    neuronbench report                                   the youngest session: mlruns/reports/SESSION.html
    neuronbench report latest --compare latest~1         with what changed against the session before it
    neuronbench report 20261124,20261125 --lane serving --out week.html
    neuronbench report tag:release=1.2 --format markdown --out report.md
    neuronbench report latest@backend=trn2
    neuronbench report some/folder/of/receipts --format markdown --out -    on standard output

SELECTOR is what `neuronbench compare` takes: latest, latest~1, a session or the start of its id, SESSION/RECEIPT,
tag:NAME=VALUE, commit:HASH, a folder, mlflow:RUN, A,B for both together, A@backend=trn2 for a part of A.

What is in it: per lane a table of what may be quoted (valid records alone; what is provisional, invalid, imported or
simulated stands apart and is marked, with its gates), latency over throughput with its knee, tok/s per user against
tok/s per core, distributions, runs over time with telemetry, losses; measured beside published figures; boots and
compilations, a roofline, cost, failures with the line that caused each, environments, definitions.

Several repeats of a point are one row: their median, and the least and the most. Requests are never pooled. Every
number is a link to its receipt; links are relative: they work where the page was written. Of a page that was sent they
work when receipts/ was sent with it and lies beside it as it does here (tar -C mlruns -czf report.tar.gz
reports/SESSION.html receipts/SESSION); without them all that is in the page can still be read.

A page has limits, and says so where it reaches them: 500 points in a table, 8 series in a figure, the requests of 6
points of a lane. Name a part of the receipts to see all of it.

Exit status: 0, or 1 when it cannot be written, or 2 when there is nothing to report or the call is wrong. Receipts that
cannot be read are named on standard error and at the end of the report.
"""


def report(
    context: typer.Context,
    selector: Annotated[
        str, typer.Argument(metavar="SELECTOR", show_default=False, help="Which receipts (default: latest).")
    ] = "latest",
    compare: Annotated[
        str, typer.Option(metavar="OTHER", help="Judge them against these, another selector, in a section of its own.")
    ] = "",
    lane: Annotated[str, typer.Option(help="Only points of this lane.")] = "",
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Write it there; - for standard output (default: mlruns/reports/).")
    ] = "",
) -> None:
    from neuronbench.compare import BOOTS, SelectionError, Selector
    from neuronbench.report.page import html, markdown
    from neuronbench.report.page.build import document
    from neuronbench.report.page.gather import keeper

    here = host.of(context)
    chosen = _format(format_, out)
    progress = host.ProgressLine(patience_s=2.0)
    lanes = here.plugins.lanes
    keep = keeper(lambda name: lanes[name].headline if name in lanes else ())
    found = Selector(store=here.store, mlflow=runs_of_mlflow(here, progress), kinds=BOOTS, keep=keep, progress=progress)
    try:
        side = _only(found.side(selector), lane)
        other = _only(found.side(compare), lane) if compare else None
        path = _path(here, side, chosen, out)
        content = _content(here, side, path)
        content.source.progress = progress
        content.left_out = found.problems
        judged = None if other is None else _judged(here, other, side)
        progress("making the report")
        made = document(content, judged)
        progress("drawing figures")
        text = html.render(made) if chosen == "html" else markdown.render(made)
    except SelectionError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    finally:
        progress.done()
    for line in found.remarks:
        host.complain(line)
    for problem in [*found.problems, *content.source.problems]:
        host.complain(f"left out: {problem}")
    if out == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write(path, text)
    size = f"{len(text.encode()) / 1e6:.1f} MB" if len(text) > 1e5 else f"{len(text.encode()) / 1e3:.0f} KB"
    host.say(f"{counted(len(content.rows), 'point')} of {counted(len(side.readings), 'receipt')}, {size}: {path}")


report.__doc__ = HELP


def _format(asked: str, out: str) -> str:
    if asked and asked not in FORMATS:
        raise host.CommandError(f"--format {asked!r}: expected {', '.join(FORMATS)}", status=host.USAGE)
    suffix = Path(out).suffix.lower()
    told = "markdown" if suffix in (".md", ".markdown") else "html" if suffix in ("", ".html", ".htm") else ""
    if not asked and not told:  # another program would open it by its name
        known = ", ".join(FORMATS)
        raise host.CommandError(
            f"--out {out}: expected a name ending in .html or .md, found {suffix!r}; for another name say --format "
            f"({known})",
            status=host.USAGE,
        )
    return asked or told


def _path(here: host.Host, side: Side, chosen: str, out: str) -> Path:
    """Where the page goes: by default named after the sessions that were read, whatever has begun since."""
    from neuronbench.model import slug

    if out == "-":
        return Path("report")
    if out:
        path = Path(out)
        if path.is_dir():
            raise host.CommandError(f"--out {out}: expected a file, found a folder", status=host.USAGE)
        return path
    return here.settings.data_root / "reports" / f"{slug(side.named) or 'report'}{SUFFIX[chosen]}"


def _only(side: Side, lane: str) -> Side:
    """Points of a lane, and the boots of all: a boot is of no lane."""
    from neuronbench.compare import SelectionError

    if not lane:
        return side
    kept = side.only(side.label, lambda reading: reading.kind != "point" or reading.point.lane == lane)
    if not any(reading.kind == "point" for reading in kept.readings):
        known = dict.fromkeys(reading.point.lane for reading in side.readings if reading.kind == "point")
        raise SelectionError(
            f"{side.label!r} has no point of lane {lane!r}; it has: {', '.join(known) or 'none at all'}"
        )
    return kept


def _content(here: host.Host, side: Side, path: Path) -> Content:
    import shlex

    import neuronbench
    from neuronbench.receipts.sessions import utc_now
    from neuronbench.redaction import redact_argv
    from neuronbench.report.page.gather import Content, Source
    from neuronbench.report.page.rows import rows_of

    lanes = here.plugins.lanes
    return Content(
        label=side.named,
        rows=rows_of(reading for reading in side.readings if reading.kind == "point"),
        boots=[reading for reading in side.readings if reading.kind in ("boot", "compile")],
        source=Source(store=here.store, base=path.absolute().parent),
        headline=lambda name: lanes[name].headline if name in lanes else (),
        titles=lambda name: lanes[name].title if name in lanes else "",
        command=shlex.join(["neuronbench", *redact_argv(sys.argv[1:])]),
        created=utc_now(),
        version=neuronbench.__version__,
    )


def _judged(here: host.Host, other: Side, side: Side) -> Comparison:
    from neuronbench.compare import compare

    points = [each.only(each.label, lambda reading: reading.kind == "point") for each in (other, side)]
    return compare(points[0], points[1], options_of(here, None, None))
