"""`neuronbench history`: a metric over sessions, and where it jumped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronbench.commands import host
from neuronbench.commands.compare import options_of, show, write
from neuronbench.words import counted

FORMATS = ("terminal", "markdown", "json")

HELP = """Show metrics over sessions, and the steps in them: lasting changes, and the session each begins with.

\b
    neuronbench history                                  every point, its lane's headline metrics
    neuronbench history serving --metric ttft_p50_ms
    neuronbench history serving.closed_loop-cpu-c8-in64-out32 --metric output_throughput_tok_s
    neuronbench history 'encoder.*' --sessions 100 --format json

The value of a session is the mean of its repeats that are not invalid. A step is found by PELT, holds for at least two
sessions on both sides, is larger than the metric's noise floor, and is beyond what the best of all places would reach
by chance (5 %). It takes six sessions to look for one. What changed with the session that a step begins with (versions,
flags, commit, host) stands beside it.

Exit status: 0, or 1 when --fail-on-step finds that the last step of a series is for the worse, or 2 when there is no
such point or the call is wrong.
"""


def history(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="LANE|POINT", help="A lane, a point's id, or a pattern of ids (default: all).")
    ] = "",
    metric: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="These instead of the lane's headline; patterns too.")
    ] = None,
    sessions: Annotated[int, typer.Option("--sessions", "-n", min=2, help="How many of the latest sessions.")] = 50,
    noise_floor: Annotated[
        list[str] | None, typer.Option(metavar="METRIC=PCT", help="Steps up to so many per cent are none.")
    ] = None,
    boots: Annotated[bool, typer.Option("--boots", help="Boots and compilations too.")] = False,
    fail_on_step: Annotated[
        bool, typer.Option("--fail-on-step", help="End with 1 when a series ended on a worse level than before.")
    ] = False,
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "terminal",
    out: Annotated[Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write it there.")] = None,
) -> None:
    from neuronbench.compare import BOOTS, KINDS, SelectionError, Selector, keeper
    from neuronbench.compare.history import series
    from neuronbench.compare.steps import NEEDED
    from neuronbench.report import history as report
    from neuronbench.report import tables

    here = host.of(context)
    if format_ not in FORMATS:
        raise host.CommandError(f"--format {format_!r}: expected {', '.join(FORMATS)}", status=host.USAGE)
    progress = host.ProgressLine(patience_s=2.0)
    options = options_of(here, metric, noise_floor)
    kinds = BOOTS if boots else KINDS
    selector = Selector(store=here.store, kinds=kinds, keep=keeper(options), progress=progress)
    try:
        found = series(selector, what, sessions=sessions, options=options, lanes=here.plugins.lanes.names)
    except SelectionError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    finally:
        progress.done()
    for problem in selector.problems:
        host.complain(f"left out: {problem}")
    if not found:
        raise host.CommandError("none of these points has a value of such a metric", status=host.USAGE)
    if format_ == "terminal" and out is None:
        show(report.parts(found, needed=NEEDED))
    elif format_ == "json" and out is None:
        host.emit_json([one.to_json() for one in found])
    else:
        if format_ == "json":
            import json

            text = json.dumps([one.to_json() for one in found], indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        elif format_ == "markdown":
            text = report.markdown(found)
        else:
            parts = report.parts(found, needed=NEEDED)
            text = "\n".join(p if isinstance(p, str) else tables.render(p, width=160) for p in parts) + "\n"
        if out is None:
            host.say(text.rstrip("\n"))
        else:
            write(out, text)
            host.say(f"{counted(sum(len(one.jumps) for one in found), 'step')} in {len(found)} series: {out}")
    worse = [one for one in found if one.jumps and one.jumps[-1].worse]
    if fail_on_step and worse:
        told = "; ".join(f"{one.point} {one.metric.key} since {one.jumps[-1].session}" for one in worse[:5])
        host.complain(f"--fail-on-step: worse than before: {told}")
        raise typer.Exit(host.FAILURE)


history.__doc__ = HELP
