"""`neuronbench fleet run`: run benchmarks on a box, supervised, and follow them from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from neuronbench_fleet.app import DeploymentOption, DryRunOption, Name, ProfileOption, RegionOption, VerboseOption

if TYPE_CHECKING:
    from neuronbench.commands.host import Host
    from neuronbench.weights.s3 import S3Blobs
    from neuronbench_fleet.asking import Wanted
    from neuronbench_fleet.aws import Aws
    from neuronbench_fleet.boxes import Box
    from neuronbench_fleet.deployment import Deployment
    from neuronbench_fleet.following import Ended
    from neuronbench_fleet.runs import Asked

_ASKED: Final = {
    "after": "after", "max_hours": "max_hours", "max_usd": "max_usd", "env": "environment", "setup": "setup",
    "python": "python",
}  # fmt: skip
"""Parameter of the command → part of what is asked, which stays the same for the whole run."""
SETTINGS: Final = {"ignore_unknown_options": True}
_REPLACEMENTS: Final = 5
_TAIL: Final = 40
_LEAST_HOURS: Final = 0.25
"""Less than this is not worth another box."""
_READY_S: Final = 1200.0


def run(
    context: typer.Context,
    name: Name,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PYTEST ARGS", help="For pytest on the box (default: benchmarks -m KIND)."),
    ] = None,
    run_id: Annotated[
        str, typer.Option("--run", metavar="ID", help="Go on with this run: re-attach, or resume on the present box.")
    ] = "",
    after: Annotated[
        Literal["keep", "stop", "terminate"], typer.Option(help="What becomes of the box at the run's end.")
    ] = "keep",
    max_hours: Annotated[float | None, typer.Option(help="End the run after so many hours.")] = None,
    max_usd: Annotated[
        float | None, typer.Option(help="End the run when the box has cost so much for it, without disks.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Stream console and receipts until its end.")
    ] = True,
    replace: Annotated[
        bool, typer.Option("--replace", help="When the box is lost, start another (fleet up) and go on there.")
    ] = False,
    require_clean: Annotated[
        bool, typer.Option("--require-clean", help="Refuse code that differs from its commit.")
    ] = False,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Variable for pytest, no secret; repeatable.")
    ] = None,
    setup: Annotated[str, typer.Option(metavar="COMMAND", help="How the code is set up on the box.")] = "make harness",
    python: Annotated[
        str, typer.Option(metavar="PATH", help="Interpreter on the box with neuronbench and neuronbench-fleet.")
    ] = "@CODE@/.venv/bin/python",
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Ship this project's code to a box of the fleet and run benchmarks there.

    \b
        neuronbench fleet run night                               pytest benchmarks -m KIND of the fleet
        neuronbench fleet run night --after terminate --max-usd 20 -- -m "inf2 and serving" --nb-grid full
        neuronbench fleet run night --run RUN                     re-attach, or go on after the box was lost

    The run belongs to the box: Ctrl-C here, or losing the connection, ends the watching and nothing else. It goes on
    after a crash and a reboot, and repeats no point that has its receipt. Receipts are sent to the bucket as they are
    written, and come here while it is followed. A fleet of several boxes runs it on one: repeats of a point must be of
    one machine.

    Exit status: pytest's 0 and 1; 12 interrupted or cancelled, 13 internal error, 14 wrong usage, 15 no benchmarks
    (10 + pytest's own); 4 a limit was reached; 7 the box is lost or stopped (go on with --run); 8 code or a receipt is
    not what it should be; 130 detached with Ctrl-C.
    """
    from neuronbench.commands import host
    from neuronbench.weights import StoreError
    from neuronbench_fleet import asking, runs
    from neuronbench_fleet.app import reach
    from neuronbench_fleet.errors import of_store

    here = host.of(context)
    wanted = asking.Wanted(
        name=name, arguments=list(arguments or ()), run_id=run_id, after=after, max_hours=max_hours, max_usd=max_usd,
        require_clean=require_clean, environment=asking.environment(env or ()), setup=setup, python=python,
    )  # fmt: skip
    if not run_id:  # that may be there already, and be looked after from a place without its code
        wanted.check_code(here.settings.root, here.settings.data_root)
    aws, where = reach(deployment, region, profile, dry_run=dry_run, verbose=verbose)
    try:
        store = runs.bucket_of(aws, where)
        asked = runs.read_asked(store, run_id) if run_id else None
        box, count = runs.choose_box(aws, where, name, run=run_id)
        again = asked is not None
        if asked is None:
            asked = _ask(here, aws, where, store, box, wanted)
        else:
            given = [part for option, part in _ASKED.items() if _was_given(context, option)]
            wanted.check_same(asked, given)
        if count > 1:
            host.say(f"{count} boxes run; {asked.run} goes to {box.id}, as repeats of a point must be of one machine")
        ended = _start_and_follow(here, aws, where, store, asked, box, follow=follow, again=again)
        for _ in range(_REPLACEMENTS if replace else 0):
            if ended is None or not ended.lost:
                break
            host.complain(f"{ended.lost}; starting another box")
            box = _another(here, aws, where, asked, box)
            ended = _start_and_follow(here, aws, where, store, asked, box, follow=follow, again=False)
    except StoreError as error:
        if error.kind == "store_corrupt":
            raise host.CommandError(str(error), status=runs.HASH_MISMATCH) from error
        raise of_store(error) from error
    if ended is None:
        return
    if ended.lost:
        host.complain(
            f"{ended.lost}. What was measured is in {store.url}/runs/{asked.run}; it goes on, nothing repeated, with:\n"
            f"  neuronbench fleet up {asked.fleet} --kind {asked.kind}    (or start the box)\n"
            f"  neuronbench fleet run {asked.fleet} --run {asked.run}"
        )
    raise typer.Exit(ended.status)


def _was_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _ask(here: Host, aws: Aws, where: Deployment, store: S3Blobs, box: Box, wanted: Wanted) -> Asked:
    """Ship the code, and write down what is asked."""
    import os

    from neuronbench.commands import host
    from neuronbench.receipts import utc_now
    from neuronbench_fleet import bundle, runs
    from neuronbench_fleet.errors import UsageError

    if wanted.max_usd is not None and box.rate is None:
        raise UsageError(
            f"--max-usd: nobody knows what an hour of {box.id} costs",
            remedy="give --max-hours; or say the price when starting boxes: fleet up --usd-per-hour",
        )
    if wanted.after == "stop" and box.purchase == "spot":
        raise UsageError(
            f"--after stop: {box.id} is a spot box, which can only be terminated", remedy="--after terminate"
        )
    if wanted.run_id:
        wanted.check_code(here.settings.root, here.settings.data_root)
    target = runs.archive_folder(here.settings.cache_dir) / f"code-{os.getpid()}.tar.gz"  # others may ship, too
    try:
        made = bundle.make(
            here.settings.root, target, require_clean=wanted.require_clean, results=here.settings.data_root
        )
        for line in bundle.describe(made):
            host.say(line)
        key = made.key
        if aws.dry_run:
            aws.call("s3", "put_object", Bucket=where.bucket, Key=key, Body=target.read_bytes(), IfNoneMatch="*")
        else:
            key = runs.upload(store, made)
    finally:
        target.unlink(missing_ok=True)
    asked = runs.Asked(
        run=wanted.run_id or runs.new_run_id(wanted.name), deployment=where.name, fleet=wanted.name, kind=box.kind,
        pytest_args=wanted.pytest_args(here.settings.root, box.kind), code={**made.to_json(), "key": key},
        after=wanted.after, max_hours=wanted.max_hours, max_usd=wanted.max_usd, setup=wanted.setup,
        python=wanted.python, environment=wanted.environment, asked_at=utc_now(), asked_by=runs.asker(),
    )  # fmt: skip
    runs.write_asked(store, asked)
    host.say(f"run {asked.run}: pytest {runs.shown_args(asked.pytest_args)}")
    return asked


def _start_and_follow(
    here: Host, aws: Aws, where: Deployment, store: S3Blobs, asked: Asked, box: Box, *, follow: bool, again: bool
) -> Ended | None:
    """Start the run on a box and follow it; None where it is not followed."""
    import datetime as dt

    from neuronbench.commands import host
    from neuronbench.weights import StoreError
    from neuronbench.words import counted
    from neuronbench_fleet import estimate, runs
    from neuronbench_fleet.errors import BoxLost, FleetError
    from neuronbench_fleet.following import Ended, receipts_of
    from neuronbench_fleet.following import follow as follow_run
    from neuronbench_fleet.remote import prior

    if not again or box.run != asked.run or aws.dry_run:
        taken = prior.spent(store, asked.run) if again else (0.0, 0.0)
        for line in estimate.told(asked, box, dt.datetime.now(dt.UTC), region=where.region, taken=taken):
            host.say(line)
    progress = host.ProgressLine()
    try:
        said = runs.start_on(aws, where, asked, box, progress=progress)
    except BoxLost as error:
        return Ended(status=error.status, lost=str(error))
    except KeyboardInterrupt:
        progress.done()
        host.complain(
            f"interrupted while {asked.run} was set up on {box.id}, where it may start all the same.\n  go on with it:"
            f"  neuronbench fleet run {asked.fleet} --run {asked.run}\n  end the box:    neuronbench fleet down"
            f" {asked.fleet}"
        )
        raise typer.Exit(130) from None
    finally:
        progress.done()
    if aws.dry_run:
        host.say(f"nothing was changed; {len(aws.plan())} calls would have been made")
        return None
    for line in said.splitlines():
        host.say(line)
    if not follow:
        host.say(f"follow it: neuronbench fleet run {asked.fleet} --run {asked.run}")
        host.say(f"fetch:     neuronbench fleet pull {asked.run}")
        return None
    receipts = receipts_of(store, asked, here.settings.receipts_dir)
    try:
        ended = follow_run(aws, store, asked, receipts, box=box.id, tail=_TAIL if again else None)
    except (KeyboardInterrupt, FleetError, StoreError) as error:  # sign-ins expire in the middle of a night
        host.complain(
            f"detached; {asked.run} goes on on {box.id}.\n  follow it again: neuronbench fleet run {asked.fleet} --run"
            f" {asked.run}\n  fetch receipts:  neuronbench fleet pull {asked.run}\n  cancel it:       neuronbench fleet"
            f" stop {asked.fleet} --run {asked.run}\n  end the box:     neuronbench fleet down {asked.fleet}"
        )
        if not isinstance(error, KeyboardInterrupt):
            raise
        raise typer.Exit(130) from None
    host.say(f"{counted(receipts.fetched, 'receipt')} fetched into {here.settings.receipts_dir}")
    return ended


def _another(here: Host, aws: Aws, where: Deployment, asked: Asked, lost: Box) -> Box:
    """Another box for the fleet, bought as the lost one and within what is left of its limits."""
    import datetime as dt

    from neuronbench.commands import host
    from neuronbench_fleet import boxes, runs
    from neuronbench_fleet.capacity import Limits, Order
    from neuronbench_fleet.deployment import find_box
    from neuronbench_fleet.errors import FleetError
    from neuronbench_fleet.starting import Starting

    now = dt.datetime.now(dt.UTC)
    hours = 12.0 if lost.expires is None else (lost.expires - now).total_seconds() / 3600
    spent = lost.spent_usd(now)
    usd = None if lost.max_usd is None or spent is None else lost.max_usd - spent
    if hours < _LEAST_HOURS or (usd is not None and usd <= 0):
        raise FleetError(
            f"{asked.fleet} has no time or money left for another box ({max(hours, 0):.1f} h)", kind="limit",
            remedy=f"fleet up {asked.fleet} with new limits, then: fleet run {asked.fleet} --run {asked.run}",
        )  # fmt: skip
    live = boxes.list_boxes(aws, where.name, asked.fleet, states=boxes.LIVE)
    order = Order(
        deployment=where, box=find_box(aws, where, asked.kind), fleet=asked.fleet, instance_type=lost.instance_type,
        count=len(live) + 1, limits=Limits(max_hours=hours, max_usd=usd),
    )  # fmt: skip
    progress = host.ProgressLine()
    try:
        Starting(
            aws=aws, order=order, purchases=[lost.purchase or "on-demand"], zones=[], any_type=False,
            ready_within_s=_READY_S, folder=here.settings.data_root / "fleet" / asked.fleet, say=host.say,
            progress=progress, confirm=lambda offer: False,
        ).run()  # fmt: skip
    finally:
        progress.done()
    return runs.choose_box(aws, where, asked.fleet, run=asked.run)[0]
