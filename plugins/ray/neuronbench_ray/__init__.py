"""neuronbench on a Ray cluster: load from many nodes, and points placed on nodes by their cores."""

from __future__ import annotations

from typing import Any

from neuronbench import hookimpl
from neuronbench_ray.load.hooks import measuring, session_finished
from neuronbench_ray.place.marks import describe_environment, finish_record

__all__ = ["describe_environment", "finish_record", "measuring", "register_commands", "session_finished"]

NEURONBENCH_API = "1"


@hookimpl
def register_commands(cli: Any) -> None:
    import typer

    from neuronbench_ray.place import commands

    app = typer.Typer(no_args_is_help=True, help="Benchmarks on the nodes of a Ray cluster.", rich_markup_mode=None)
    app.command("run", short_help="Run points on all nodes, a box at a time to itself.")(commands.run)
    app.command("status", short_help="The nodes, their cores, and which are leased.")(commands.status)
    cli.add_typer(app, name="ray", short_help="Points on the nodes of a Ray cluster.")
