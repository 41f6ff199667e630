"""`neuronbench fleet stop`: stop the boxes; the disks stay."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

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
    connect,
    voice,
)
from neuronbench_fleet.errors import EXIT_HELP

HELP = f"""Stop the boxes of a fleet. Disks stay, and go on costing; `fleet up` with the same name starts them again.

\b
    neuronbench fleet stop night

A run that was going on resumes when its box starts again. Boxes of the spot market cannot be stopped, only ended
(`fleet down`): they are named, and the status is 1.

{EXIT_HELP}
"""


def stop(
    context: typer.Context,
    name: Name,
    within: Annotated[str, typer.Option("--within", help="How long to wait until they are stopped.")] = "10m",
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    from neuronbench_fleet.boxes import checked_name
    from neuronbench_fleet.costs import timeout
    from neuronbench_fleet.deployment import deployment_name, find_deployment
    from neuronbench_fleet.ending import Ending
    from neuronbench_fleet.errors import FleetError
    from neuronbench_fleet.shown import box_json, some, total_text

    checked_name(name)
    timeout_s = timeout("--within", within)
    aws = connect(region=region, profile=profile, dry_run=dry_run, verbose=verbose, as_json=as_json)
    say = voice(as_json)
    there = find_deployment(aws, deployment_name(deployment))
    progress = host.ProgressLine()
    ending = Ending(
        aws=aws, deployment=there, fleet=name, timeout_s=timeout_s, say=say, progress=progress
    )  # fmt: skip
    try:
        stopped, running = ending.stop()
    finally:
        progress.done()
    now = dt.datetime.now(dt.UTC)
    if as_json:
        host.emit_json({
            "fleet": name, "deployment": there.name, "region": there.region,
            "stopped": [box_json(box, now) for box in stopped], "running": [box_json(box, now) for box in running],
            "calls": aws.counts(), "planned": [call.to_json() for call in aws.plan()],
        })  # fmt: skip
    if running:
        raise FleetError(
            f"not stopped: {', '.join(f'{box.id} ({box.purchase}, {box.state})' for box in running)}",
            remedy=f"boxes of the spot market can only be ended: neuronbench fleet down {name}",
        )
    if dry_run:
        say("nothing was changed")
    elif stopped:
        say(
            f"{name} is stopped: {some(len(stopped), 'box')}; cost so far {total_text(stopped, now)}; disks go on"
            " costing"
        )
    else:
        say(f"nothing of {name} is there in {there.region}")


stop.__doc__ = HELP
