"""`neuronbench fleet status`: boxes, what they cost so far, what runs on them."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from neuronbench.commands import host
from neuronbench_fleet.app import (
    DeploymentOption,
    JsonOption,
    ProfileOption,
    RegionOption,
    VerboseOption,
    reach,
)
from neuronbench_fleet.errors import EXIT_HELP

HELP = f"""Boxes of the deployment, or of one fleet: where they are, what they cost so far, what runs on them.

\b
    neuronbench fleet status
    neuronbench fleet status night --json

The cost is the price that was known when a box was started, times the hours it has run; what is not known is said and
never counted as nothing. Disks are not in it, and cost also while boxes are stopped. Warned of are boxes past their
limit in time, near their limit in money, without a limit, with nothing to do, and disks that no box has.

{EXIT_HELP}
"""


def status(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name of a fleet; without it all of the deployment.")] = None,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    from neuronbench.words import counted
    from neuronbench_fleet.boxes import LIVE, checked_name, left_over, list_boxes, pings
    from neuronbench_fleet.errors import FleetError
    from neuronbench_fleet.running import RunState, at_work, idle_s, runs_on
    from neuronbench_fleet.shown import box_json, table, total, total_text, warnings

    if name is not None:
        checked_name(name)
    aws, there = reach(deployment, region, profile, verbose=verbose, as_json=as_json)
    boxes = list_boxes(aws, there.name, name)
    now = dt.datetime.now(dt.UTC)
    live = [box for box in boxes if box.state in LIVE]
    reachable = pings(aws, [box.id for box in live])
    left = left_over(aws, there.name, name)
    receipts = host.of(context).settings.receipts_dir
    states: list[RunState] = []
    troubles: list[str] = []
    for fleet in sorted({box.fleet for box in boxes if box.fleet}):
        ids = [box.id for box in boxes if box.fleet == fleet]
        try:
            states += runs_on(aws, there, fleet, ids, receipts)
        except FleetError as error:  # what boxes cost is to be seen all the same
            troubles.append(str(error))
    idle = idle_s(states, {box.id: box.launched for box in live}, now)
    troubles += warnings(boxes, now, idle=idle)
    for state in states:
        if state.unfetched:
            fleet = next(box.fleet for box in boxes if box.id == state.box)
            count = counted(state.unfetched, "receipt")
            troubles.append(f"{count} of {state.run} not here: neuronbench fleet pull {fleet}")
    if left.volumes:
        troubles.append(f"{left.volumes_gib} GiB of disks without a box: {', '.join(left.volumes)}")
    if as_json:
        usd, unknown = total(boxes, now)
        host.emit_json({
            "deployment": there.name, "region": there.region,
            "boxes": [{**box_json(box, now), "reachable": reachable.get(box.id)} for box in boxes],
            "runs": [state.to_json() for state in states], "volumes": list(left.volumes),
            "usd": round(usd, 4), "boxes_of_unknown_price": unknown, "warnings": troubles,
        })  # fmt: skip
        return
    if not boxes:
        what = f"no box of {name}" if name else "no boxes"
        host.say(f"{what} in the deployment {there.name} in {there.region}")
    else:
        host.show(table(boxes, now, pings=reachable, runs=at_work(states), columns=host.width()))
        host.say(total_text(boxes, now))
    for trouble in troubles:
        host.complain(trouble)


status.__doc__ = HELP
