"""The group `neuronbench fleet`, and what its commands have in common."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from neuronbench.canonical import printable
from neuronbench.commands import host
from neuronbench_fleet.errors import EXIT_HELP

if TYPE_CHECKING:
    from neuronbench_fleet.aws import Aws, Call
    from neuronbench_fleet.deployment import Deployment

HELP: Final = f"""Boxes on AWS: start them, run benchmarks on them, fetch what they measured, end them.

\b
    neuronbench fleet up night --kind inf2 --max-hours 8 --max-usd 10
    neuronbench fleet run night
    neuronbench fleet status
    neuronbench fleet pull night
    neuronbench fleet down night

Every box has a limit in time from the moment it starts. A dry run (--dry-run) prints every call that would be made and
changes nothing. What AWS has to have first (network, bucket, roles) is deployed once: infra/README.md.

{EXIT_HELP}
"""

_COMMANDS: Final = {
    "up": "Start boxes: search zones and ways of buying, within limits of time and money.",
    "status": "Boxes, what they cost so far, what runs on them.",
    "run": "Run benchmarks on the boxes, supervised, also when this machine goes away.",
    "logs": "What a run prints.",
    "pull": "Fetch receipts, the same bytes.",
    "stop": "Stop the boxes (the disks stay), or cancel a run.",
    "down": "End the boxes, and check that nothing is left.",
}
"""Each is the function of that name in `neuronbench_fleet.commands.NAME`."""

Name: TypeAlias = Annotated[str, typer.Argument(help="Name of the fleet.")]
DeploymentOption: TypeAlias = Annotated[
    str | None, typer.Option("--deployment", help="Deployment (default: NEURONBENCH_DEPLOYMENT, else neuronbench).")
]
RegionOption: TypeAlias = Annotated[str | None, typer.Option("--region", help="Region (default: as boto3 finds it).")]
ProfileOption: TypeAlias = Annotated[
    str | None, typer.Option("--profile", help="Profile of credentials (default: as boto3 finds it).")
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Print every call that would be made, change nothing.")
]
VerboseOption: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Print every call as it is made.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]


def build() -> typer.Typer:
    """The group with its commands."""
    app = typer.Typer(
        name="fleet", help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    for name, short in _COMMANDS.items():
        where = f"neuronbench_fleet.commands.{name}"
        if importlib.util.find_spec(where) is None:
            continue
        module = importlib.import_module(where)
        # a command that hands options on to pytest says so: SETTINGS = {"ignore_unknown_options": True, ...}
        app.command(name, short_help=short, context_settings=getattr(module, "SETTINGS", None))(getattr(module, name))
    return app


def voice(as_json: bool) -> Callable[[str], None]:
    """Where a command talks to people: standard output, or standard error where that is for programs."""

    def aside(text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    return aside if as_json else host.say


def connect(
    *, region: str | None = None, profile: str | None = None, dry_run: bool = False, verbose: bool = False,
    as_json: bool = False,
) -> Aws:  # fmt: skip
    """AWS, as a command was told to use it. Waits and (with `verbose`) calls are told on standard error.

    In a dry run every call is printed: on standard output, or on standard error where that is JSON.
    """
    from neuronbench_fleet.aws import Aws
    from neuronbench_fleet.checks import checked_region

    def heard(call: Call) -> None:
        if dry_run:
            line = f"{'would call' if not call.made else 'call'}  {call.line()}"
            voice(as_json)(line)
        elif verbose:
            host.complain(f"call {call.line()}")

    return Aws(region=checked_region(region), profile=profile, dry_run=dry_run, on_call=heard, on_retry=host.complain)


def reach(
    deployment: str | None, region: str | None, profile: str | None, *, dry_run: bool = False, verbose: bool = False,
    as_json: bool = False,
) -> tuple[Aws, Deployment]:  # fmt: skip
    """AWS as by `connect`, and the deployment that a command was told of. Raises `FleetError`."""
    from neuronbench_fleet.deployment import deployment_name, find_deployment

    name = deployment_name(deployment)  # a name that cannot be one needs no call
    aws = connect(region=region, profile=profile, dry_run=dry_run, verbose=verbose, as_json=as_json)
    return aws, find_deployment(aws, name)
