"""Boxes on AWS for neuronbench: `neuronbench fleet up | status | run | logs | pull | stop | down`."""

from __future__ import annotations

from typing import Any

from neuronbench import hookimpl

NEURONBENCH_API = "1"


@hookimpl
def register_commands(cli: Any) -> None:
    from neuronbench_fleet.app import build

    cli.add_typer(build(), name="fleet", short_help="Boxes on AWS: start them, run on them, end them.")
