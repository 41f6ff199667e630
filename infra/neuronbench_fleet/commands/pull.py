"""`neuronbench fleet pull`: fetch the receipts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronbench_fleet.app import DeploymentOption, JsonOption, ProfileOption, RegionOption, VerboseOption


def pull(
    context: typer.Context,
    named: Annotated[str, typer.Argument(metavar="RUN|NAME", help="A run, or a fleet for its latest run.")],
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="Data root (default: the project's mlruns).")
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Fetch the receipts that a run has sent so far, the same bytes; again and again, also while it runs.

    Nothing here is overwritten or deleted. What is not what its manifest says is refused by name (exit status 8), and
    the rest comes. Afterwards `neuronbench list`, `compare`, `report` and `push` know them.
    """
    from neuronbench.commands import host
    from neuronbench.shipping import ReceiptShelf
    from neuronbench.shipping import pull as fetch
    from neuronbench.weights import StoreError
    from neuronbench_fleet import runs
    from neuronbench_fleet.app import reach
    from neuronbench_fleet.errors import of_store
    from neuronbench_fleet.remote.keys import receipts_prefix

    runs.check_named(named)
    aws, where = reach(deployment, region, profile, verbose=verbose, as_json=as_json)
    target = into.resolve() / "receipts" if into is not None else host.of(context).settings.receipts_dir
    progress = host.ProgressLine(patience_s=2.0)
    try:
        store = runs.bucket_of(aws, where)
        asked = runs.find_run(aws, store, where, named)
        came = fetch(ReceiptShelf(store, receipts_prefix(asked.run)), target, progress=progress)
    except OSError as error:
        raise host.CommandError(
            f"receipts cannot be kept in {target}: {error}",
            remedy="make room, or name another folder (--into); what has come stays, and the same command goes on",
        ) from error
    except StoreError as error:
        raise of_store(error) from error
    finally:
        progress.done()
    if as_json:
        refused = [{"receipt": receipt, "reason": reason} for receipt, reason in came.refused]
        host.emit_json(
            {"run": asked.run, "fetched": came.fetched, "kept": came.kept, "refused": refused,
             "unfinished": came.unfinished}
        )  # fmt: skip
    else:
        host.say(
            f"{asked.run}: {len(came.fetched)} fetched, {len(came.kept)} were here already, {len(came.refused)} refused"
            f"  ({target})"
        )
    for receipt, reason in came.refused:
        host.complain(f"refused: {receipt}: {reason}")
    if came.unfinished:
        host.complain(f"still being sent, or cut off: {', '.join(came.unfinished)}")
    if came.refused:
        raise typer.Exit(runs.HASH_MISMATCH)
