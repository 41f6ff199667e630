"""`neuronbench fleet stop`: stop the boxes, or end a run and keep them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronbench.commands import host
from neuronbench_fleet.app import (
    DeploymentOption,
    DryRunOption,
    JsonOption,
    Name,
    ProfileOption,
    RegionOption,
    VerboseOption,
    reach,
    voice,
)
from neuronbench_fleet.errors import EXIT_HELP

if TYPE_CHECKING:
    from neuronbench_fleet.aws import Aws
    from neuronbench_fleet.deployment import Deployment

HELP = f"""Stop the boxes of a fleet. Disks stay, and go on costing; `fleet up` with the same name starts them again.

\b
    neuronbench fleet stop night
    neuronbench fleet stop night --run RUN      cancel the run; the box stays, and costs on

A run that was going on resumes when its box starts again. Boxes of the spot market cannot be stopped, only ended
(`fleet down`): they are named, and the status is 1.

With --run no box is stopped. pytest is asked to end as by Ctrl-C, the open record is closed as interrupted, receipts
are sent, and the run is over: no start of the box goes on with it, and --after is left undone. The status is 0 once its
box has said so, also when it was over before; 1 when it has not within --within, or the box is stopped (started again,
the run would go on). Whoever follows the run gets status 12.

{EXIT_HELP}
"""


def stop(
    context: typer.Context,
    name: Name,
    run_id: Annotated[str, typer.Option("--run", metavar="ID", help="Cancel this run in order, and stop no box.")] = "",
    within: Annotated[
        str, typer.Option("--within", help="How long to wait until they are stopped, or the run has ended.")
    ] = "10m",
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    from neuronbench_fleet import runs
    from neuronbench_fleet.boxes import checked_name
    from neuronbench_fleet.costs import timeout

    checked_name(name)
    if run_id:
        runs.check_run_id(run_id)
    timeout_s = timeout("--within", within)
    aws, there = reach(deployment, region, profile, dry_run=dry_run, verbose=verbose, as_json=as_json)
    told = {"fleet": name, "deployment": there.name, "region": there.region}
    if run_id:
        _cancel(aws, there, name, run_id, timeout_s, told, as_json=as_json)
    else:
        _stop(aws, there, name, timeout_s, told, as_json=as_json)


stop.__doc__ = HELP


def _stop(
    aws: Aws, there: Deployment, name: str, timeout_s: float, told: Mapping[str, Any], *, as_json: bool
) -> None:  # fmt: skip
    from neuronbench.words import counted
    from neuronbench_fleet.ending import Ending
    from neuronbench_fleet.errors import FleetError
    from neuronbench_fleet.shown import box_json, total_text

    say, progress = voice(as_json), host.ProgressLine()
    ending = Ending(aws=aws, deployment=there, fleet=name, timeout_s=timeout_s, say=say, progress=progress)
    try:
        stopped, running = ending.stop()
    finally:
        progress.done()
    now = dt.datetime.now(dt.UTC)
    if as_json:
        host.emit_json({
            **told, "stopped": [box_json(box, now) for box in stopped],
            "running": [box_json(box, now) for box in running],
            "calls": aws.counts(), "planned": [call.to_json() for call in aws.plan()],
        })  # fmt: skip
    if running:
        raise FleetError(
            f"not stopped: {', '.join(f'{box.id} ({box.purchase}, {box.state})' for box in running)}",
            remedy=f"boxes of the spot market can only be ended: neuronbench fleet down {name}",
        )
    if aws.dry_run:
        say("nothing was changed")
    elif stopped:
        say(f"{name} is stopped: {counted(len(stopped), 'box')}, {total_text(stopped, now)}; disks go on costing")
    else:
        say(f"nothing of {name} is there in {there.region}")


def _cancel(
    aws: Aws, there: Deployment, name: str, run: str, timeout_s: float, told: Mapping[str, Any], *, as_json: bool
) -> None:  # fmt: skip
    from neuronbench_fleet.cancelling import Cancelling
    from neuronbench_fleet.stream import ended_text

    say, progress = voice(as_json), host.ProgressLine()
    cancelling = Cancelling(
        aws=aws, deployment=there, fleet=name, run=run, timeout_s=timeout_s, say=say, progress=progress
    )  # fmt: skip
    try:
        done = cancelling.cancel()
    finally:
        progress.done()
    end = done.end or {}
    if as_json:
        host.emit_json({
            **told, "run": run, "outcome": done.outcome, "boxes": list(done.boxes), "reason": end.get("reason"),
            "exit_code": end.get("exit_code"), "receipts": end.get("shipped"), "calls": aws.counts(),
            "planned": [call.to_json() for call in aws.plan()],
        })  # fmt: skip
    if done.outcome == "planned":
        say("then: wait until the box says that the run has ended\nnothing was changed")
    elif done.outcome == "nowhere":
        say(f"{run} goes on nowhere: no box of {name} has it")
    elif done.outcome == "over":
        say(f"{run} is over already: {ended_text(end)}")
    else:
        say(
            f"{run} is cancelled: {ended_text(end)}\n{', '.join(done.boxes)} stays and costs on: neuronbench fleet run"
            f" {name} starts another run, neuronbench fleet down {name} ends it\nfetch receipts: neuronbench fleet pull"
            f" {run}"
        )
