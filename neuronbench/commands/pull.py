"""`neuronbench pull`: fetch receipts that were measured or kept elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host
from neuronbench.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuronbench.config import Settings
    from neuronbench.shipping import Pulled, ReceiptShelf
    from neuronbench.sinks.mlflow.pull import PullResult


def pull(
    context: typer.Context,
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="WHERE", help="Where a run sends its receipts: s3://BUCKET/runs/RUN, or a copy of that as a folder."
        ),
    ] = None,
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
    """Fetch receipts into this data root: from MLflow, from a folder of receipts, or from what a run sends to S3.

    \b
        neuronbench pull --session 20261130-0408
        neuronbench pull s3://BUCKET/runs/RUN        while it runs, too: only whole receipts come

    They are the same to the last byte as where they were measured: digests are checked, what is here already is left
    alone, and another receipt of the same name is refused. Afterwards list, compare and history know them.
    """
    from neuronbench.sinks.mlflow.pull import Selection, pull_folder
    from neuronbench.sinks.mlflow.pull import pull as fetch

    here = host.of(context)
    if where and source:
        raise host.CommandError("give one place: WHERE, or --from", status=host.USAGE)
    _no_latest(session or ())
    shelf = _shelf(where or source)
    if shelf is not None:
        if lane or tag:
            text = "--lane and --tag ask MLflow; what a run sends is chosen by --session"
            raise host.CommandError(text, status=host.USAGE)
        _from_shelf(here.settings, shelf, list(session or ()), as_json=as_json)
        return
    source = where or source
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
    _show(here.settings, result, as_json=as_json)
    if not result.fetched and not result.kept:
        if folder is not None:
            text = f"nothing there matches: expected SESSION/RECEIPT/record.json below {folder}"
            raise host.CommandError(
                text, remedy="name the folder that the sessions are in, or less of --session, --lane"
            )
        raise host.CommandError("nothing there matches", remedy="see what there is in MLflow, and name less")


def _show(settings: Settings, result: PullResult | Pulled, *, as_json: bool) -> None:
    """Print what came; ends the command with 1 when anything was refused."""
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
            f"{len(result.fetched)} fetched, {counted(len(result.kept), 'was', 'were')} here already, "
            f"{len(result.refused)} refused"
            f"  ({settings.receipts_dir})"
        )
    for receipt, reason in result.refused:
        host.complain(f"refused: {receipt}: {reason}")
    for problem in result.problems:
        host.complain(problem)
    if not result.ok:
        raise typer.Exit(host.FAILURE)


def _no_latest(sessions: Sequence[str]) -> None:
    """The latest of sessions that are elsewhere, and may be of several hosts, is not known here."""
    from neuronbench.receipts import naming

    for name in sessions:
        if naming.back_of(name) is not None:
            raise host.CommandError(
                f"--session {name}: expected the id of a session or the start of it: {name} is a word for those that "
                "are here already",
                remedy="leave --session out to fetch all of them, or name a day, such as --session 20261130",
                status=host.USAGE,
            )


def _shelf(where: str) -> ReceiptShelf | None:
    """The shelf that `where` names: anything in S3, and a folder that has manifests of one."""
    if not where.startswith("s3:") and not _is_shelf(Path(where).expanduser() if where else None):
        return None
    from neuronbench.shipping import open_shelf
    from neuronbench.weights import StoreError

    try:
        return open_shelf(where)
    except StoreError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error


def _is_shelf(folder: Path | None) -> bool:
    return folder is not None and any(
        next(root.glob("*/*/MANIFEST.json"), None) is not None for root in (folder, folder / "receipts")
    )


def _from_shelf(settings: Settings, shelf: ReceiptShelf, sessions: list[str], *, as_json: bool) -> None:
    from neuronbench.shipping import pull as fetch
    from neuronbench.weights import StoreError

    progress = host.ProgressLine()
    try:
        result = fetch(shelf, settings.receipts_dir, sessions=sessions, progress=progress)
    except StoreError as error:
        raise host.CommandError(str(error)) from error
    finally:
        progress.done()
    _show(settings, result, as_json=as_json)
    if result.unfinished:
        host.complain(f"not whole there yet, and left out: {', '.join(result.unfinished)}")
    elif not result.fetched and not result.kept:
        raise host.CommandError(
            f"no receipts in {shelf.url}", remedy="check the run's name and --session; see `neuronbench fleet status`"
        )


def _tags(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise host.CommandError(f"--tag {text!r}: expected NAME=VALUE", status=host.USAGE)
        found[name] = value
    return found
