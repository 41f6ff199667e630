"""`neuronbench doctor`: whether this machine and this project are fit to measure."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.canonical import printable
from neuronbench.commands import host
from neuronbench.words import counted

if TYPE_CHECKING:
    from neuronbench.protocols import Check


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check what a run needs, and say for each thing that is wrong how to put it right.

    Shows which hardware was found and which stack would be used and why. The exit status is 1 when something fails
    that makes runs fail; warnings do not count.
    """
    import dataclasses

    from neuronbench.doctor import examine

    here = host.of(context)
    checks = []
    for check in examine(here.settings, here.plugins):
        checks.append(check)
        if not as_json:
            print(_lines(check), flush=True)  # in colour, which `say` would not pass on
    failed, warned = (sum(check.status == status for check in checks) for status in ("fail", "warn"))
    if as_json:
        host.emit_json([dataclasses.asdict(check) for check in checks])
    else:
        host.say(f"\n{failed} failed, {counted(warned, 'warning')}" if failed or warned else "\nall is well")
    if failed:
        raise typer.Exit(host.FAILURE)


_MARKS = {"ok": ("ok  ", "32"), "info": ("--  ", "2"), "warn": ("warn", "33"), "fail": ("FAIL", "31")}
_INDENT = " " * 24


def _lines(check: Check) -> str:
    """A check as it is printed: status, what it is about, what was found, and below it what to do."""
    word, code = _MARKS[check.status]
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        word = f"\x1b[{code}m{word}\x1b[0m"
    found = [
        line
        for paragraph in printable(check.found).splitlines()
        for line in textwrap.wrap(
            paragraph, max(40, host.width() - len(_INDENT)), break_long_words=False, break_on_hyphens=False
        )
    ]
    text = f"\n{_INDENT}".join(found + ([f"→ {check.remedy}"] if check.remedy else []))
    return f"{word}  {check.name:<16}  {text}"
