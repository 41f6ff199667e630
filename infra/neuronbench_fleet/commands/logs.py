"""`neuronbench fleet logs`: what a run prints."""

from __future__ import annotations

from typing import Annotated

import typer

from neuronbench_fleet.app import DeploymentOption, ProfileOption, RegionOption, VerboseOption


def logs(
    context: typer.Context,
    named: Annotated[str, typer.Argument(metavar="RUN|NAME", help="A run, or a fleet for its latest run.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only the last N lines of what is there.")
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="Only events, without the console.")] = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
    profile: ProfileOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Print what a run has printed so far, and its events: from its bucket, also when the box is long gone.

    \b
        neuronbench fleet logs night --tail 50
        neuronbench fleet logs night -f          Ctrl-C ends the watching, not the run
    """
    from neuronbench.commands import host
    from neuronbench.weights import StoreError
    from neuronbench_fleet import runs
    from neuronbench_fleet.app import reach
    from neuronbench_fleet.errors import of_store
    from neuronbench_fleet.following import Screen
    from neuronbench_fleet.following import follow as follow_run
    from neuronbench_fleet.stream import Follower

    runs.check_named(named)
    aws, where = reach(deployment, region, profile, verbose=verbose)
    try:
        store = runs.bucket_of(aws, where)
        asked = runs.find_run(aws, store, where, named)
        if follow:
            ended = follow_run(aws, store, asked, None, tail=tail, console=not events)
            if ended.lost:
                host.complain(f"{ended.lost}; go on with: neuronbench fleet run {asked.fleet} --run {asked.run}")
            raise typer.Exit(ended.status)
        follower = Follower(store=store, run=asked.run)
        screen = Screen(tail=tail, console=not events)
        screen.show(follower.poll())
        screen.end()
    except StoreError as error:
        raise of_store(error) from error
    for problem in follower.problems:
        host.complain(f"damaged: {problem}")
    if not follower.boots:
        host.complain(f"{asked.run} was asked for at {asked.asked_at}; no box has said anything of it yet")
