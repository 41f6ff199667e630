"""`neuronbench compare`: two sets of results beside each other."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host
from neuronbench.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from neuronbench.compare import Comparison, Options, Selector, Side

CONDITIONS = ("regressed", "inconclusive", "incomparable", "outcome", "gone")
FORMATS = ("terminal", "markdown", "json", "junit")
NOTHING = ("gone", "new", "failing")
"""Changes of a point that has no result on one side, or on neither."""

HELP = """Compare two sets of results: A is what B is judged against. Without A and B: the last two sessions.

\b
    neuronbench compare                                  the last session against the one before it
    neuronbench compare 20261124 latest --lane serving
    neuronbench compare main/receipts latest --fail-on regressed,outcome,gone --format junit --out compare.xml
    neuronbench compare latest --by backend              within one session: one backend against the other
    neuronbench compare latest@dtype=float32 latest@dtype=bfloat16 --by dtype
    neuronbench compare imported-vllm-3f2a91c0de latest  another tool's results against ours

A and B can be:

\b
    latest, latest~1          the youngest session that has receipts, the one before it; `last` is the same word
    20261130-0408             a session: its id or the start of it; imported sets have one too
    20261130-040810-cf1a/NAME one receipt; latest/NAME one of the youngest session
    tag:release=1.2           every receipt with that tag; commit:3f2a, every one measured at that commit
    some/folder               a receipt, a session's folder, or a folder of sessions, from anywhere
    mlflow:RUN                a run of MLflow by its id, mlflow:SESSION all of a session, mlflow:EXPERIMENT of a lane
    A,B                       both together: their repeats count as one set
    A@backend=trn2            of A only that backend, lane or parameter; more of them: A@k=v@k=v

What is compared: the same benchmark with the same parameters on the same backend, by the mean of its repeats. A repeat
is what counts, not a request: ten thousand requests of one run are one observation of how the machine was that day.

\b
    regressed, improved       beyond chance (Welch's t, Benjamini-Hochberg over all rows, 5 %) and the noise floor
    unchanged                 the 95 % interval lies within the noise floor
    inconclusive (n more)     neither; n more repeats a side would probably settle it (pytest --nb-repeats)
    incomparable              the protocols differ, and in what: compiler flags, versions, load, definitions

--allow FIELD compares what is incomparable, and marks it. One repeat a side has no interval of its own: it takes the
spread of five or more earlier sessions of the same point, or is inconclusive. How points ended (ok, failed, invalid)
comes first. Records that a gate has failed are not compared (--allow invalid compares them, marked).

--fail-on takes verdicts (regressed, inconclusive, incomparable), `outcome` (a point that ends worse: broken,
slo_missed, invalidated) and `gone` (a point of A that B does not have, or has not run). The last line counts gone and
new points whatever was asked.

Exit status: 0, or 1 when something that --fail-on names was found, or 2 when there is nothing to compare or the call is
wrong. Receipts that cannot be read are named on standard error and left out.
"""


def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="What B is judged against (default: latest~1).")] = "",
    b: Annotated[str, typer.Argument(metavar="B", help="What is judged (default: latest).")] = "",
    lane: Annotated[str, typer.Option(help="Only points of this lane.")] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="These instead of the lane's headline: ttft_p50_ms, ttft, 'tpot_*', '*'."),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="AXIS", help="What is compared may differ in this: backend, or a parameter.")
    ] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Compare although this differs: stack.vllm, stack, 'env.*', invalid."),
    ] = None,
    noise_floor: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=PCT", help="Changes up to so many per cent are none: ttft=5, or 5 for all."),
    ] = None,
    history: Annotated[
        int, typer.Option(metavar="N", min=0, help="Earlier sessions that spread is taken from; 0: none.")
    ] = 20,
    boots: Annotated[bool, typer.Option("--boots", help="Compare boots and compilations too.")] = False,
    fail_on: Annotated[
        str, typer.Option(metavar="WHAT", help=f"End with 1 on any of: {', '.join(CONDITIONS)} (several by comma).")
    ] = "",
    format_: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "terminal",
    out: Annotated[Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write it there.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show every row.")] = False,
) -> None:
    from neuronbench.compare import BOOTS, KINDS, SelectionError, Selector, keeper
    from neuronbench.compare import compare as judge
    from neuronbench.compare.history import past

    here = host.of(context)
    conditions = _conditions(fail_on)
    if format_ not in FORMATS:
        raise host.CommandError(f"--format {format_!r}: expected {', '.join(FORMATS)}", status=host.USAGE)
    _known_lane(here, lane)
    progress = host.ProgressLine(patience_s=2.0)
    options = options_of(here, metric, noise_floor, by=by, allow=allow or ())
    kinds = BOOTS if boots else KINDS
    mlflow = runs_of_mlflow(here, progress)
    selector = Selector(store=here.store, mlflow=mlflow, kinds=kinds, keep=keeper(options), progress=progress)
    try:
        sides = _sides(selector, a, b, by, lane)
        _check_metrics(options.metrics, sides, options.headline)
        progress("looking at earlier sessions")
        options = _with(options, past(selector, sides, history))
        progress("comparing")
        found = judge(*sides, options)
    except SelectionError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    finally:
        progress.done()
    for line in selector.remarks:
        host.complain(line)
    for problem in selector.problems:
        host.complain(f"left out: {problem}")
    if shared := _shared(*sides):
        host.complain(shared)
    if not found.rows and not any(change.kind not in ("gone", "new") for change in found.outcomes):
        raise host.CommandError(_nothing(found), status=host.USAGE)
    _give(found, format_, out, conditions, everything=all_)
    if not found.rows and all(change.kind in NOTHING for change in found.outcomes):
        raise host.CommandError(
            f"nothing to compare: no point of {found.base.label} and {found.head.label} was measured in both",
            remedy="name sessions with results: neuronbench list shows them",
            status=host.USAGE,
        )
    failing = found.failing(conditions)
    if failing:
        more = f" and {len(failing) - 5} more" if len(failing) > 5 else ""
        host.complain(f"--fail-on {fail_on}: {'; '.join(failing[:5])}{more}")
        raise typer.Exit(host.FAILURE)


# The docstring is the help: typer reads it from here.
compare.__doc__ = HELP


def options_of(
    here: host.Host,
    metrics: Sequence[str] | None,
    floors: Sequence[str] | None,
    *,
    by: str = "",
    allow: Sequence[str] = (),
) -> Options:
    """The options of a comparison, with what the plugins say of lanes and noise."""
    from neuronbench.compare import Bands, Options

    lanes = here.plugins.lanes
    return Options(
        headline=lambda name: lanes[name].headline if name in lanes else (),
        metrics=tuple(metrics or ()),
        by=by,
        allow=tuple(allow),
        bands=Bands(given=_floors(floors or ()), policy=_policy(here)),
    )


def _policy(here: host.Host) -> Callable[[str, str], Mapping[str, float] | None]:
    """What plugins say of a metric's noise, each asked once. One that fails is named and passed over."""

    @functools.cache
    def policy(metric: str, lane: str) -> Mapping[str, float] | None:
        try:
            said = here.plugins.comparison_policy(metric, lane)
            found = None if said is None else {name: float(said.get(name, 0.0)) for name in ("band", "floor")}
            if found is not None and not all(0 <= number < math.inf for number in found.values()):
                raise ValueError(f"expected numbers from 0 on, found {said}")
        except Exception as error:  # a plugin's defect is no reason not to compare
            host.complain(f"a plugin's comparison_policy for {metric}: {type(error).__name__}: {error}")
            return None
        return found

    return policy


def _with(options: Options, history: object) -> Options:
    from dataclasses import replace

    return replace(options, history=history)  # type: ignore[arg-type]


def _floors(given: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, equals, percent = text.rpartition("=")
        try:
            share = float(percent.strip().removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < 10 or (equals and not name):
            raise host.CommandError(
                f"--noise-floor {text!r}: expected METRIC=PERCENT such as ttft_p50_ms=5, or PERCENT", status=host.USAGE
            )
        found[name or "*"] = share
    return found


def _conditions(text: str) -> list[str]:
    found = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in found if word not in CONDITIONS]
    if unknown:
        raise host.CommandError(f"--fail-on {unknown[0]!r}: expected {', '.join(CONDITIONS)}", status=host.USAGE)
    return found


def _known_lane(here: host.Host, lane: str) -> None:
    if lane and lane not in here.plugins.lanes:
        known = ", ".join(here.plugins.lanes.names())
        raise host.CommandError(f"no lane {lane!r}; known: {known}", status=host.USAGE)


def runs_of_mlflow(here: host.Host, progress: Callable[[str], None]) -> Callable[[str], Sequence[Path]]:
    """For a `Selector`: the receipts that runs in MLflow are of. Raises `SelectionError` for what is not there."""

    def resolve(asked: str) -> Sequence[Path]:
        from neuronbench.compare import SelectionError
        from neuronbench.sinks.mlflow.lookup import receipts

        try:
            return receipts(here.settings, asked, progress=progress)
        except LookupError as error:
            raise SelectionError(f"'mlflow:{asked}': {error.args[0]}") from error

    return resolve


def _sides(selector: Selector, a: str, b: str, by: str, lane: str) -> tuple[Side, Side]:
    from neuronbench.compare import SelectionError, split_by

    def chosen(asked: str) -> Side:
        found = selector.side(asked)
        if lane:  # before it is split: points of other lanes may have other values of the axis, or none
            found = found.only(found.label, lambda r: r.point.lane == lane)
            if not found.readings:
                raise SelectionError(f"{asked!r} has no point of lane {lane!r}")
        return found

    if by and not b:
        return split_by(chosen(a or "latest"), by)
    return chosen(a or "latest~1"), chosen(b or "latest")


def _check_metrics(asked: Sequence[str], sides: Sequence[Side], headline: Callable[[str], Sequence[str]]) -> None:
    """A name that no record has compares nothing and would pass every --fail-on for ever.

    Raises `SelectionError`. Where no record has any number, nothing can be said of names.
    """
    from neuronbench.canonical import closest
    from neuronbench.compare import SelectionError
    from neuronbench.compare.rows import means

    measured = [reading for side in sides for reading in side.readings if reading.measured]
    kinds = {id(value.kind): value.kind for reading in measured for value in reading.values.values()}
    for name in asked if measured else ():
        if not any(means(name, kind) for kind in kinds.values()):
            usual = list(dict.fromkeys(key for one in measured for key in headline(one.point.lane)))
            there = f"; usual ones are: {', '.join(usual)}" if usual else ""
            raise SelectionError(f"--metric {name!r}: no record has a metric of that name{closest(name, usual)}{there}")


def _shared(base: Side, head: Side) -> str:
    """A line when receipts are on both sides: a set against itself shows nothing."""
    real = functools.cache(Path.resolve)  # of a session's folder, which its receipts share: there may be thousands
    one, other = ({(real(r.path.parent), r.path.name) for r in side.readings} for side in (base, head))
    both = one & other
    if not both:
        return ""
    many = counted(len(both), "receipt is", "receipts are")
    return f"{many} on both sides ({base.label} and {head.label}): what they agree in is no evidence of anything"


def _nothing(found: Comparison) -> str:
    only = [f"{change.kind}: {change.point}" for change in found.outcomes[:6]]
    return (
        f"{found.base.label} and {found.head.label} have no point in common that was measured in both"
        + (f" ({'; '.join(only)})" if only else "")
        + "\n  To do: measure the same points, or name what may differ with --by (backend, or a parameter)"
    )


def _give(found: Comparison, format_: str, out: Path | None, conditions: Sequence[str], *, everything: bool) -> None:
    from neuronbench.report import comparison, comparison_files, tables

    if format_ != "terminal":
        text = comparison_files.FORMATS[format_](found, conditions)
        if out is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        write(out, text)
        host.say(f"{comparison.counts(found)}: {out}")
        return
    parts = comparison.parts(found, limit=0 if everything else comparison.ROWS)
    if out is not None:
        write(
            out, "\n".join(part if isinstance(part, str) else tables.render(part, width=160) for part in parts) + "\n"
        )
        host.say(f"{comparison.counts(found)}: {out}")
        return
    show(parts)


def show(parts: Sequence[object]) -> None:
    """Lines and tables, in order."""
    for part in parts:
        if isinstance(part, str):
            host.say(part)
        else:
            host.show(part)  # type: ignore[arg-type]


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise host.CommandError(f"--out {path}: cannot be written: {error.strerror}") from error
