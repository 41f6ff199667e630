"""`neuronbench push`: deliver receipts that MLflow does not have yet."""

from __future__ import annotations

from typing import Annotated

import typer

from neuronbench.commands import host
from neuronbench.words import counted


def push(
    context: typer.Context,
    session: Annotated[
        str, typer.Option(metavar="ID", help="Only this session: an id, the start of one, or `latest`.")
    ] = "",
    to: Annotated[
        str, typer.Option(metavar="URI", help="MLflow store or server (default: that of the settings).")
    ] = "",
) -> None:
    """Deliver the receipts that are pending to MLflow, each exactly once.

    A run does this by itself. It is left over when MLflow could not be reached then, or when receipts are to go to a
    second store (--to).
    """
    from neuronbench.sinks.mlflow import push as deliver

    here = host.of(context)
    chosen = here.session(session) if session else None
    progress = host.ProgressLine()
    try:
        result = deliver(here.settings, session=chosen, to=to or None, progress=progress)
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    finally:
        progress.done()
    if result.delivered or result.already or result.failed:
        counts = f"{len(result.delivered)} delivered, {counted(len(result.already), 'was', 'were')} there already"
        host.say(f"{counts}, {len(result.failed)} still pending")
    else:
        host.say("nothing is pending")
    reasons: dict[str, list[str]] = {}
    for receipt, reason in result.failed:
        reasons.setdefault(reason, []).append(receipt)
    for reason, receipts in reasons.items():
        more = f" and {len(receipts) - 3} more" if len(receipts) > 3 else ""
        host.complain(f"pending: {', '.join(receipts[:3])}{more}: {reason}")
    for problem in result.problems:
        host.complain(problem)
    if not result.ok:
        raise typer.Exit(host.FAILURE)
