"""The `neuronbench` command. Benchmarks run with pytest; this is for everything around them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from typer.main import get_command_name, solve_typer_info_defaults

from neuronbench.commands import (
    cache,
    calibrate,
    compare,
    doctor,
    history,
    host,
    import_,
    list_,
    load,
    models,
    new_plugin,
    overlay,
    plugins,
    published,
    pull,
    push,
    reap,
    report,
    ui,
    weights,
)
from neuronbench.config import ConfigError
from neuronbench.plugins import PluginError, Plugins, PluginWarning

CORE: Final = "neuronbench"
HELP = """Benchmarks for AWS Trainium and Inferentia whose numbers can be quoted.

A benchmark is a pytest file, and pytest runs it:

\b
    pytest benchmarks -m cpu              on this machine's CPU
    pytest benchmarks -m inf2             on an Inferentia2 instance
    pytest benchmarks -m "cpu and serving" --nb-grid full --nb-repeats 3

Every result is a receipt below mlruns/receipts, and a run in MLflow. The commands here look after what is around that:
is this machine fit to measure (doctor), what was measured (list), look at it (ui), send it on (push),
fetch it (pull).
"""


def build(found: Plugins) -> typer.Typer:
    """The application with the core's commands and those of plugins."""
    app = typer.Typer(
        name="neuronbench", help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None,
        pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip

    @app.callback(help=HELP)
    def top(
        context: typer.Context,
        root: Annotated[
            Path | None,
            typer.Option(
                file_okay=False,
                exists=True,
                help="Project folder (default: the nearest upwards with neuronbench.toml).",
            ),
        ] = None,
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
        ] = False,
    ) -> None:
        context.obj = host.Host(plugins=found, root=root)

    app.command("doctor", short_help="Is this machine fit to measure? What to do if not.")(doctor.doctor)
    app.command("list", short_help="What was measured: sessions, or the points of one.")(list_.list_receipts)
    app.command("compare", short_help="Two sets of results: what changed, what did not, what cannot be said.")(
        compare.compare
    )
    app.command("report", short_help="A page of HTML, or Markdown, of what was measured.")(report.report)
    app.command("history", short_help="Metrics over sessions, and where they jumped.")(history.history)
    app.command("plugins", short_help="What is installed, and what is left out and why.")(plugins.plugins)
    app.add_typer(models.app, name="models", short_help="The models that are known; fetch one.")
    app.add_typer(weights.app, name="weights", short_help="Trained models by digest, from box to box: put, get, list.")
    app.add_typer(cache.app, name="cache", short_help="What is kept between sessions: status, prune, push, pull.")
    app.command("load", short_help="Measure a server that runs already, without pytest.")(load.load)
    app.command("calibrate", short_help="How far this host's own measurements are off.")(calibrate.calibrate)
    app.command("import", short_help="Make receipts of what another tool measured.")(import_.import_results)
    app.command("published", short_help="What others published of this hardware, and what is odd about it.")(
        published.published
    )
    app.command("overlay", help=overlay.HELP, short_help="Lay the losses of two training runs over each other.")(
        overlay.overlay
    )
    app.command("push", short_help="Deliver receipts that MLflow does not have yet.")(push.push)
    app.command("pull", short_help="Fetch receipts from MLflow, S3 or a folder, the same bytes.")(pull.pull)
    app.command("ui", short_help="Look at the results in MLflow.")(ui.ui)
    app.command("new-plugin", short_help="Write a new lane, backend or sink that works as it stands.")(
        new_plugin.new_plugin
    )
    app.command("reap", short_help="End what a killed run left running.")(reap.reap)
    taken = dict.fromkeys((_name(info) for info in (*app.registered_commands, *app.registered_groups)), CORE)
    for plugin in (name for name, each in found.reports.items() if each.ok):
        added = typer.Typer()
        found.register_commands(added, only=plugin)
        module = getattr(found.pm.get_plugin(plugin), "__name__", plugin)
        _adopt(app, added, (plugin, module), taken)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        import neuronbench

        host.say(f"neuronbench {neuronbench.__version__}")
        raise typer.Exit


def _name(info: Any) -> str:
    """The name that typer will give it; empty for a group without one, whose commands become the application's."""
    if hasattr(info, "typer_instance"):
        return solve_typer_info_defaults(info).name or ""
    return str(info.name or get_command_name(info.callback.__name__))


def _adopt(app: typer.Typer, added: typer.Typer, by: tuple[str, str], taken: dict[str, str]) -> None:
    """Take over what a plugin added. A command under a name that is taken would hide the other one: it is left out.

    `by`: name and module of the plugin; `taken`: name of a command → the plugin that has it.
    """
    plugin, module = by
    for source, target in (
        (added.registered_commands, app.registered_commands),
        (added.registered_groups, app.registered_groups),
    ):
        for info in list[Any](source):
            name = _name(info)
            if not name:
                _adopt(app, info.typer_instance, by, taken)
            elif name in taken:
                owner, way = taken[name], "rename it"
                if owner not in (CORE, plugin):
                    way += f" in one of them, or disable one with NEURONBENCH_DISABLE_PLUGINS ({owner} or {plugin})"
                text = f"the command {name!r} of {module} is left out: {owner} has one of that name; {way}"
                warnings.warn(text, PluginWarning, stacklevel=2)
            else:
                taken[name] = plugin
                cast("list[Any]", target).append(info)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for a failure, 2 for wrong usage or settings."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PluginWarning)
            app = build(Plugins())
        for warning in caught:
            host.complain(str(warning.message))
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="neuronbench")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except host.CommandError as error:
        host.complain(str(error))
        return error.status
    except ConfigError as error:
        host.complain(str(error))
        return host.USAGE
    except PluginError as error:
        host.complain(str(error))
        return host.FAILURE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `neuronbench list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return host.FAILURE
    return 0


if __name__ == "__main__":
    sys.exit(main())
