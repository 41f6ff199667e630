"""`neuronbench pull`: fetch receipts that were measured or kept elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronbench.commands import host


def pull(
    context: typer.Context,
    session: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this session: its id or the start of it; repeatable.")
    ] = None,
    lane: Annotated[
        list[str] | None,
        typer.Option(
            "--lane", "--experiment", metavar="LANE", help="Only this lane (MLflow's experiment); repeatable."
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only records with this tag, or runs (nb.backend=inf2); repeatable."),
    ] = None,
    source: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="MLflow server or store, or a folder (default: the settings')."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fetch receipts into this data root, from MLflow or from a folder of receipts.

    They are the same to the last byte as where they were measured: digests are checked, what is here already is left
    alone, and another receipt of the same name is refused. Afterwards list, compare and history know them.
    """
    from neuronbench.sinks.mlflow.pull import Selection, pull_folder
    from neuronbench.sinks.mlflow.pull import pull as fetch

    here = host.of(context)
    wanted = Selection(sessions=session or (), lanes=lane or (), tags=_tags(tag or ()))
    folder = Path(source).expanduser() if source and "://" not in source else None
    if folder is not None and not folder.is_dir():
        raise host.CommandError(
            f"--from {source!r}: expected a folder, or a URI such as http://host:5000", status=host.USAGE
        )
    progress = host.ProgressLine()
    try:
        if folder is not None:
            result = pull_folder(here.settings, wanted, folder, progress=progress)
        else:
            result = fetch(here.settings, wanted, source=source, progress=progress)
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    finally:
        progress.done()
    if as_json:
        host.emit_json(
            {
                "fetched": result.fetched,
                "kept": result.kept,
                "refused": [{"receipt": receipt, "reason": reason} for receipt, reason in result.refused],
                "problems": result.problems,
            }
        )
    else:
        host.say(
            f"{len(result.fetched)} fetched, {len(result.kept)} were here already, {len(result.refused)} refused"
            f"  ({here.settings.receipts_dir})"
        )
    for receipt, reason in result.refused:
        host.complain(f"refused: {receipt}: {reason}")
    for problem in result.problems:
        host.complain(problem)
    if not result.ok:
        raise typer.Exit(host.FAILURE)
    if not result.fetched and not result.kept:
        raise host.CommandError("nothing there matches", remedy="see what there is in MLflow, and name less")


def _tags(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise host.CommandError(f"--tag {text!r}: expected NAME=VALUE", status=host.USAGE)
        found[name] = value
    return found
