"""neuronbench on a Ray cluster: load from many nodes, and points placed on nodes by their cores."""

from __future__ import annotations

from typing import Any

from neuronbench import hookimpl
from neuronbench_ray.load.hooks import measuring, session_finished
from neuronbench_ray.place.marks import describe_environment, finish_record

__all__ = ["describe_environment", "finish_record", "measuring", "register_commands", "session_finished"]

NEURONBENCH_API = "1"
HELP = """Benchmarks on the nodes of a Ray cluster: points placed on boxes, each to itself.

\b
    neuronbench ray status --address HEAD:6379
    neuronbench ray run --address HEAD:6379 --plan -- benchmarks -m inf2     what would go where
    neuronbench ray run --address HEAD:6379 -- benchmarks -m inf2

The cluster is yours (ray start on each box); none is started here. Load from many nodes: neuronbench load --nodes.
"""


@hookimpl
def register_commands(cli: Any) -> None:
    import typer

    from neuronbench_ray.place import commands

    app = typer.Typer(
        no_args_is_help=True, help=HELP, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command("run", short_help="Run points on all nodes, a box at a time to itself.")(commands.run)
    app.command("status", short_help="The nodes, their cores, and which are leased.")(commands.status)
    cli.add_typer(app, name="ray", short_help="Points on the nodes of a Ray cluster.")
