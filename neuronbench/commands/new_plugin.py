"""`neuronbench new-plugin`: a plugin that works as it stands, to be changed into yours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronbench.commands import host


def new_plugin(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the lane, backend or sink: a-z, digits, underscores.")],
    kind: Annotated[str, typer.Option(metavar="KIND", help="lane, backend or sink.")] = "lane",
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Folder to make (default: neuronbench-NAME here).")
    ] = None,
) -> None:
    """Write a new plugin: a distribution with an entry point, hooks, a benchmark, its contract as tests, CI and README.

    It works as it stands: install it, run its tests, then change it into what you need. See "Write a plugin in ten
    minutes" in plugins/README.md.
    """
    import shlex

    from neuronbench import new_plugin as template

    target = folder or Path(template.values(name, kind)["distribution"])
    try:
        template.check_free(name, kind, host.of(context).plugins)
        made = template.bake(name, kind, target)
    except template.NewPluginError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    except OSError as error:
        raise host.CommandError(f"{target}: {error.strerror}") from error
    for path in made:
        host.say(f"  {path}")
    there = shlex.quote(str(target))
    host.say(f"\nNext:\n  pip install -e {there}\n  neuronbench plugins\n  cd {there} && pytest")
