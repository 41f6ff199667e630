"""`neuronbench fleet up`: start boxes, within limits."""

from __future__ import annotations

import datetime as dt
import sys
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
from neuronbench_fleet.errors import EXIT_HELP, UsageError

HELP = f"""Start boxes: search zones and ways of buying, within limits of time and money.

\b
    neuronbench fleet up night --kind inf2 --max-hours 8 --max-usd 10
    neuronbench fleet up big --kind trn1 --instance-type trn1.32xlarge --purchase spot,on-demand --wait 12h
    neuronbench fleet up block --kind trn2 --purchase block --max-hours 24 --max-usd 60 --wait 3d
    neuronbench fleet up night --kind inf2 --dry-run

Candidates (a zone, bought in a way) are tried in turn: ways of buying as --purchase lists them, the cheapest known
price first; round after round with growing waits, until --wait is over. Each attempt is printed and kept in
mlruns/fleet/NAME/attempts.jsonl. Missing capacity goes on to the next candidate, a quota gives that way of buying up, a
missing right stops. The boxes of one call are in one zone, all or none.

The limit in time is the sooner of --max-hours and what --max-usd buys at the price that is known: published on demand,
by EC2's history on the spot market, by the offer for a Capacity Block, or by your word (--usd-per-hour). It is a tag of
the box, and the box and the deployment's guard act on it. A Capacity Block is paid at once and never refunded: nothing
is bought without --yes or your yes.

The same command again is safe: what is there is used, what was stopped is started again. Ctrl-C ends what is not ready.

{EXIT_HELP}
"""


def up(
    context: typer.Context,
    name: Name,
    kind: Annotated[str, typer.Option("--kind", help="Kind of box: trn1, trn2, inf2.")],
    instance_type: Annotated[
        str | None, typer.Option("--instance-type", help="Instance type (default: the deployment's for the kind).")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=64, help="Boxes, all in one zone.")] = 1,
    zone: Annotated[
        list[str] | None, typer.Option("--zone", help="Only this zone, such as us-west-2a; may be given several times.")
    ] = None,
    purchase: Annotated[
        str | None,
        typer.Option("--purchase", help="Ways of buying, in order: on-demand, spot, block (default: on-demand)."),
    ] = None,
    max_hours: Annotated[float, typer.Option("--max-hours", help="Limit in time of every box.")] = 12.0,
    max_usd: Annotated[
        float | None, typer.Option("--max-usd", help="Limit in money of all boxes together, without disks.")
    ] = None,
    usd_per_hour: Annotated[
        float | None,
        typer.Option("--usd-per-hour", help="What an hour of one box costs you, where nobody has published it."),
    ] = None,
    spot_max: Annotated[
        float | None, typer.Option("--spot-max", help="Most USD for an hour of one box on the spot market.")
    ] = None,
    wait: Annotated[str, typer.Option("--wait", help="How long to search: 90s, 15m, 2h, 3d.")] = "2h",
    ready_within: Annotated[
        str, typer.Option("--ready-within", help="How long a started box may take until it can be used.")
    ] = "20m",
    yes: Annotated[bool, typer.Option("--yes", help="Buy a Capacity Block without asking.")] = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    from neuronbench_fleet import blocks, checks
    from neuronbench_fleet.boxes import checked_name
    from neuronbench_fleet.capacity import Limits, Order
    from neuronbench_fleet.costs import money, rate_text, timeout
    from neuronbench_fleet.deployment import deployment_name, find_box, find_deployment
    from neuronbench_fleet.shown import box_json, until
    from neuronbench_fleet.starting import Starting

    checked_name(name)
    checks.check_kind(kind, instance_type)
    checks.positive(max_hours=max_hours, max_usd=max_usd, usd_per_hour=usd_per_hour, spot_max=spot_max)
    checks.check_zones(zone or ())
    asked_for = None if purchase is None else checks.purchases(purchase)
    if spot_max is not None and "spot" not in (asked_for or ()):
        raise UsageError("--spot-max: spot is not among the ways of buying", remedy="--purchase spot,on-demand")
    named = deployment_name(deployment)
    wait_s, ready_within_s = timeout("--wait", wait), timeout("--ready-within", ready_within)
    aws = connect(region=region, profile=profile, dry_run=dry_run, verbose=verbose, as_json=as_json)
    checks.check_zones(zone or (), aws.region)
    say = voice(as_json)
    there = find_deployment(aws, named)
    box = find_box(aws, there, kind)
    usual = "block" if box.purchase == "capacity-block" else "on-demand"
    wanted = asked_for or [usual]
    if usual == "block" and wanted != ["block"]:
        raise UsageError(
            f"--purchase {purchase}: the deployment's boxes of kind {kind} are for a Capacity Block only",
            remedy="--purchase block, or deploy the kind for another way of buying (infra/README.md)",
        )
    order = Order(
        deployment=there, box=box, fleet=name, instance_type=instance_type or box.instance_type, count=count,
        limits=Limits(
            max_hours=max_hours, max_usd=max_usd, wait_s=wait_s, usd_per_hour=usd_per_hour, spot_max_usd=spot_max,
        ),
    )  # fmt: skip

    def confirm(offer: blocks.Offer) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            return False
        return typer.confirm(f"Buy it for {money(offer.usd)}, never refunded?", err=True)

    progress = host.ProgressLine()
    starting = Starting(
        aws=aws, order=order, purchases=wanted, zones=list(zone or ()),
        any_type=instance_type is None, ready_within_s=ready_within_s,
        folder=host.of(context).settings.data_root / "fleet" / name, say=say, progress=progress, confirm=confirm,
    )  # fmt: skip
    try:
        boxes = starting.run()
    finally:
        progress.done()
    now = dt.datetime.now(dt.UTC)
    if as_json:
        host.emit_json({
            "fleet": name, "deployment": there.name, "region": there.region, "outcome": starting.outcome,
            "boxes": [box_json(one, now) for one in boxes], "attempts": [vars(one) for one in starting.search.attempts],
            "calls": aws.counts(), "planned": [call.to_json() for call in aws.plan()],
        })  # fmt: skip
        return
    if dry_run:
        say("nothing was changed")
        return
    for one in boxes:
        say(
            f"ready: {one.id} {one.instance_type} in {one.zone}, {one.purchase}, {rate_text(one.rate)}, ends"
            f" {until(one, now)}"
        )
    words = {"there": "was there already", "woken": "runs again", "started": "is up"}
    say(f"{name} {words[starting.outcome]}. Next: neuronbench fleet run {name}")


up.__doc__ = HELP
