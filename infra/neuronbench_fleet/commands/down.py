"""`neuronbench fleet down`: end the boxes, and check that nothing is left."""

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
    reach,
    voice,
)
from neuronbench_fleet.errors import EXIT_HELP

HELP = f"""End the boxes of a fleet with their disks, and check that nothing is left that costs.

\b
    neuronbench fleet down night
    neuronbench fleet down night --dry-run

Refused while a run goes on or is unfinished on a stopped box, and while receipts in the bucket are not here, unless
--force: what is in the bucket stays there in any case. Boxes, disks and spot requests with the fleet's tags are
ended, waited for and looked for again; what is left all the same is named, with status 1. A Capacity Block is paid
and stays. Where nothing is, nothing happens.

{EXIT_HELP}
"""


def down(
    context: typer.Context,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also while a run goes on, or receipts are not here.")] = False,
    within: Annotated[str, typer.Option("--within", help="How long to wait until they are gone.")] = "10m",
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    from neuronbench.words import counted
    from neuronbench_fleet import blocks
    from neuronbench_fleet.boxes import checked_name, list_boxes
    from neuronbench_fleet.costs import timeout
    from neuronbench_fleet.ending import Ending, left_text
    from neuronbench_fleet.errors import FleetError
    from neuronbench_fleet.shown import box_json, total_text

    checked_name(name)
    timeout_s = timeout("--within", within)
    aws, there = reach(deployment, region, profile, dry_run=dry_run, verbose=verbose, as_json=as_json)
    say = voice(as_json)
    progress = host.ProgressLine()
    ending = Ending(
        aws=aws, deployment=there, fleet=name, timeout_s=timeout_s, say=say, progress=progress
    )  # fmt: skip
    known = list_boxes(aws, there.name, name)
    if known and not force:
        ending.refuse_if_unfinished(known, host.of(context).settings.receipts_dir)
    try:
        ended, left = ending.down()
    finally:
        progress.done()
    now = dt.datetime.now(dt.UTC)
    block = blocks.find(aws, there.name, name)
    if as_json:
        host.emit_json({
            "fleet": name, "deployment": there.name, "region": there.region,
            "ended": [box_json(box, now) for box in ended], "left": vars(left) if left else {},
            "capacity_block": block.id if block is not None else None, "calls": aws.counts(),
            "planned": [call.to_json() for call in aws.plan()],
        })  # fmt: skip
    if left:
        raise FleetError(f"of {name} there is still:{left_text(left)}", remedy="the same command again, or these")
    if block is not None:
        until = "" if block.end is None else f" until {block.end:%Y-%m-%d %H:%M} UTC"
        say(f"Capacity Block {block.id} is paid and stays{until}; `fleet up {name}` uses it again")
    if dry_run:
        say("nothing was changed")
    elif ended:
        cost = total_text(ended, now, what="cost")
        say(f"{name} is down: {counted(len(ended), 'box')} ended, nothing is left; {cost}")
    else:
        say(f"nothing of {name} is there in {there.region}")


down.__doc__ = HELP
