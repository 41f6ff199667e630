"""`neuronbench reap`: end what a killed run left running, and close what it left open."""

from __future__ import annotations

from typing import Annotated

import typer

from neuronbench.commands import host


def reap(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """End servers that a killed run left running, and turn its open records into receipts.

    A run ends its own children, also when it is killed; this is for what is left when their guard was killed too.
    Only processes whose pid and start match what the run wrote down are touched. Runs that are going on are left
    alone.
    """
    from neuronbench.reap import reap as end
    from neuronbench.receipts import LockTimeout, ReceiptError, recover

    here = host.of(context)
    folder = here.settings.receipts_dir
    words = {"ended": "would be ended" if dry_run else "ended", "stale": "gone already", "left": "left alone"}
    done = end(folder, dry_run=dry_run)
    for entry in done:
        pids = f" (pid {', '.join(map(str, entry.pids))})" if entry.pids else ""
        host.say(f"{entry.session}/{entry.name}: {words.get(entry.action, entry.action)}{pids}: {entry.detail}")
    if dry_run:
        if not done:
            host.say(f"nothing is left running by runs in {folder}")
        return
    problems: list[ReceiptError] = []
    try:
        receipts = recover(folder, on_error=problems.append)
    except LockTimeout as error:
        raise host.CommandError(str(error), remedy="wait until the other process is done, and try again") from error
    for receipt in receipts:
        host.say(f"{receipt.record.receipt_id}: closed as {receipt.record.outcome}")
    if not done and not receipts:
        host.say(f"nothing is left running or open by runs in {folder}")
    for problem in problems:
        host.complain(str(problem))
    if problems or any(entry.action == "unreadable" for entry in done):
        raise typer.Exit(host.FAILURE)
