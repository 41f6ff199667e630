"""`neuronbench plugins`: what is installed, what each plugin hooks into, and what is left out and why."""

from __future__ import annotations

from typing import Annotated

import typer

from neuronbench.commands import host


def plugins(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the plugins that are loaded, their hooks, and those that are left out.

    A plugin that cannot be loaded is named here with the reason, and everything else goes on without it. To look
    closer: NEURONBENCH_STRICT_PLUGINS=1 makes it an error, NEURONBENCH_TRACE_PLUGINS=1 prints every hook call,
    NEURONBENCH_PLUGINS=a,b loads only these, NEURONBENCH_DISABLE_PLUGINS=a,b all but these.
    """
    import dataclasses

    found = host.of(context).plugins
    reports = list(found.reports.values())
    if as_json:
        host.emit_json(
            [
                {
                    **dataclasses.asdict(report),
                    "load_ms": round(report.load_ms, 3),
                    "ok": report.ok,
                    "registers": found.registered(report.name) if report.ok else {},
                }
                for report in reports
            ]
        )
        return
    rows = [
        (
            report.name,
            f"{report.distribution} {report.version}".strip() or "–",
            report.source,
            report.api or "–",
            f"{report.load_ms:.1f}",
            f"LEFT OUT: {report.error}" if report.error else ", ".join(report.hooks) or "no hooks",
        )
        for report in reports
    ]
    columns = ("plugin", "distribution", "source", "API", "load ms", "hooks")
    host.show(host.table(columns, rows, right=("load ms",)))
    for kind, names in found.registered().items():
        host.say(f"{kind}: {', '.join(names) or 'none'}")
