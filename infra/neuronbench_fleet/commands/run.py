"""`neuronbench fleet run`: run benchmarks on a box, supervised, and follow them from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from neuronbench_fleet.app import DeploymentOption, DryRunOption, Name, ProfileOption, RegionOption, VerboseOption

if TYPE_CHECKING:
    from neuronbench.commands.host import Host
    from neuronbench.weights.s3 import S3Blobs
    from neuronbench_fleet.aws import Aws
    from neuronbench_fleet.boxes import Box
    from neuronbench_fleet.deployment import Deployment
    from neuronbench_fleet.following import Ended
    from neuronbench_fleet.runs import Asked

SETTINGS: Final = {"ignore_unknown_options": True}
_REPLACEMENTS: Final = 5
_TAIL: Final = 40
_OWN: Final = (
    "--after", "--max-hours", "--max-usd", "--follow", "--no-follow", "--replace", "--require-clean", "--setup",
    "--python", "--deployment", "--region", "--profile", "--dry-run",
)  # fmt: skip
"""What is not known here goes to pytest; a misspelt limit must not."""
_WITH_VALUE: Final = frozenset({"-k", "-m", "-p", "-o", "-c", "-W", "-n", "-r"})
"""Options of pytest whose value comes behind a space: it is no path, whatever folder has its name."""
_LEAST_HOURS: Final = 0.25
"""Less than this is not worth another box."""
_READY_S: Final = 1200.0


def run(
    context: typer.Context,
    name: Name,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- PYTEST ARGS]", help="For pytest on the box (default: benchmarks -m KIND)."),
    ] = None,
    run_id: Annotated[
        str, typer.Option("--run", metavar="ID", help="Go on with this run: re-attach, or resume on the present box.")
    ] = "",
    after: Annotated[
        Literal["keep", "stop", "terminate"], typer.Option(help="What becomes of the box at the run's end.")
    ] = "keep",
    max_hours: Annotated[float | None, typer.Option(min=0, help="End the run after so many hours.")] = None,
    max_usd: Annotated[
        float | None, typer.Option(min=0, help="End the run when the box has cost so much for it.")
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

    Exit status: pytest's 0 and 1; 12 interrupted, 13 internal error, 14 wrong usage, 15 no benchmarks (10 + pytest's
    own); 4 a limit was reached; 7 the box is lost or stopped (go on with --run); 8 code or a receipt is not what it
    should be; 130 detached with Ctrl-C.
    """
    from neuronbench.commands import host
    from neuronbench.weights import StoreError
    from neuronbench_fleet import runs
    from neuronbench_fleet.app import connect
    from neuronbench_fleet.deployment import deployment_name, find_deployment

    here = host.of(context)
    aws = connect(region=region, profile=profile, dry_run=dry_run, verbose=verbose)
    where = find_deployment(aws, deployment_name(deployment))
    try:
        store = runs.bucket_of(aws, where)
        asked = runs.read_asked(store, run_id) if run_id else None
        box, count = runs.choose_box(aws, where, name, run=run_id)
        again = asked is not None
        if asked is None:
            asked = _ask(
                here, aws, where, store, box, name=name, arguments=list(arguments or ()), run_id=run_id, after=after,
                max_hours=max_hours, max_usd=max_usd, require_clean=require_clean, env=list(env or ()), setup=setup,
                python=python,
            )  # fmt: skip
        elif arguments:
            raise host.CommandError(
                f"{run_id} is a run already; it goes on with its own arguments: {runs.shown_args(asked.pytest_args)}",
                remedy="give none behind --, or leave --run out for a new run", status=host.USAGE,
            )  # fmt: skip
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
        raise host.CommandError(str(error), status=8 if error.kind == "store_corrupt" else host.FAILURE) from error
    if ended is None:
        return
    if ended.lost:
        host.complain(
            f"{ended.lost}. What was measured is in {store.url}/runs/{asked.run}; it goes on, nothing repeated, with:\n"
            f"  neuronbench fleet up {asked.fleet} --kind {asked.kind}    (or start the box)\n"
            f"  neuronbench fleet run {asked.fleet} --run {asked.run}"
        )
    raise typer.Exit(ended.status)


def _ask(
    here: Host, aws: Aws, where: Deployment, store: S3Blobs, box: Box, *, name: str, arguments: list[str], run_id: str,
    after: Literal["keep", "stop", "terminate"], max_hours: float | None, max_usd: float | None, require_clean: bool,
    env: list[str], setup: str, python: str,
) -> Asked:  # fmt: skip
    """Ship the code, and write down what is asked."""
    import os

    from neuronbench.commands import host
    from neuronbench.receipts import utc_now
    from neuronbench_fleet import bundle, runs
    from neuronbench_fleet.errors import UsageError

    if max_usd is not None and box.rate is None:
        raise UsageError(
            f"--max-usd: nobody knows what an hour of {box.id} costs",
            remedy="give --max-hours; or say the price when starting boxes: fleet up --usd-per-hour",
        )
    if after == "stop" and box.purchase == "spot":
        raise UsageError(
            f"--after stop: {box.id} is a spot box, which can only be terminated", remedy="--after terminate"
        )
    environment, pytest_args = _environment(env), _pytest_args(here, box.kind, arguments)
    run = run_id or runs.new_run_id(name)
    runs.check_run_id(run)
    runs.check_size(pytest_args, environment, setup)
    target = runs.archive_folder(here.settings.cache_dir) / f"code-{os.getpid()}.tar.gz"  # others may ship, too
    try:
        made = bundle.make(here.settings.root, target, require_clean=require_clean, results=here.settings.data_root)
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
        run=run, deployment=where.name, fleet=name, kind=box.kind, pytest_args=pytest_args,
        code={**made.to_json(), "key": key}, after=after, max_hours=max_hours, max_usd=max_usd, setup=setup,
        python=python, environment=environment, asked_at=utc_now(), asked_by=runs.asker(),
    )  # fmt: skip
    runs.write_asked(store, asked)
    host.say(f"run {asked.run}: pytest {runs.shown_args(asked.pytest_args)}")
    return asked


def _start_and_follow(
    here: Host, aws: Aws, where: Deployment, store: S3Blobs, asked: Asked, box: Box, *, follow: bool, again: bool
) -> Ended | None:
    """Start the run on a box and follow it; None where it is not followed."""
    from neuronbench.commands import host
    from neuronbench_fleet import runs
    from neuronbench_fleet.following import follow as follow_run
    from neuronbench_fleet.following import receipts_of

    progress = host.ProgressLine()
    try:
        said = runs.start_on(aws, where, asked, box, progress=progress)
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
    if asked.max_usd is None and box.rate is not None:
        host.say(f"{box.id} costs {box.rate}, until {box.expires:%Y-%m-%d %H:%M} UTC" if box.expires else f"{box.rate}")
    if not follow:
        host.say(f"follow it: neuronbench fleet run {asked.fleet} --run {asked.run}")
        host.say(f"fetch:     neuronbench fleet pull {asked.run}")
        return None
    receipts = receipts_of(store, asked, here.settings.receipts_dir)
    try:
        ended = follow_run(aws, store, asked, receipts, box=box.id, tail=_TAIL if again else None)
    except KeyboardInterrupt:
        host.complain(
            f"detached; {asked.run} goes on on {box.id}.\n  follow it again: neuronbench fleet run {asked.fleet} --run"
            f" {asked.run}\n  fetch receipts:  neuronbench fleet pull {asked.run}\n  end the box:     neuronbench fleet"
            f" down {asked.fleet}"
        )
        raise typer.Exit(130) from None
    host.say(f"{receipts.fetched} receipts were fetched into {here.settings.receipts_dir}")
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


def _pytest_args(here: Host, kind: str, given: list[str]) -> list[str]:
    """pytest's arguments: the folder of benchmarks where no path was named, the kind's marker where nothing was."""
    import difflib

    from neuronbench.redaction import redact_argv
    from neuronbench_fleet.errors import UsageError

    shown = redact_argv(given)
    if shown != given:
        raise UsageError(
            f"{' '.join(shown)}: it may hold a secret, and what is asked of a run is kept for all to read",
            remedy="put it into /etc/neuronbench/environment on the box (aws ssm start-session)",
        )
    for argument in given:
        option = argument.split("=")[0]
        meant = difflib.get_close_matches(option, _OWN, n=1, cutoff=0.85) if option[:2] == "--" else []
        if meant:
            raise UsageError(
                f"{option} is neither an option of this command nor one of pytest's: did you mean {meant[0]}?"
            )
        if option == "--nb-data-root":
            raise UsageError("--nb-data-root: a run on a box has a folder of its own, from which receipts are sent")
    if not given:
        return ["benchmarks", "-m", kind] if kind else ["benchmarks"]
    values = {place + 1 for place, argument in enumerate(given) if argument in _WITH_VALUE}
    words = [argument for place, argument in enumerate(given) if place not in values and argument[:1] not in ("-", "")]
    if any((here.settings.root / word.split("::")[0]).exists() for word in words):
        return given
    return ["benchmarks", *given]


def _environment(given: list[str]) -> dict[str, str]:
    from neuronbench.redaction import is_secret_name, redact
    from neuronbench_fleet.errors import UsageError

    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.isidentifier() and equals):
            raise UsageError(f"--env {text!r}: expected NAME=VALUE")
        if is_secret_name(name) or redact(value) != value:
            raise UsageError(
                f"--env {name}: it may be a secret, and what is asked of a run is kept for all to read",
                remedy="put it into /etc/neuronbench/environment on the box (aws ssm start-session)",
            )
        found[name] = value
    return found
