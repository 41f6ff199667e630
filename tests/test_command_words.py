"""What commands say of themselves and of what they are given: usage lines, numbers and nouns, names of sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from neuronbench import cli
from neuronbench.plugins import Plugins


def _commands(command: Any, name: str = "neuronbench") -> Iterator[tuple[str, Any]]:
    for word, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {word}")
    if not getattr(command, "commands", {}):
        yield name, command


def test_usage_lines_have_one_pair_of_brackets_and_a_default_is_said_once() -> None:
    found = dict(_commands(typer.main.get_command(cli.build(Plugins()))))
    assert "neuronbench compare" in found
    for name, command in found.items():
        context = command.make_context(name, [], resilient_parsing=True)
        words = command.get_help(context)
        usage = next(line for line in words.splitlines() if line.startswith("Usage:"))
        assert "[[" not in usage, usage
        assert "...]..." not in usage, usage
        for parameter in command.params:
            said = parameter.get_help_record(context) or ("", "")
            twice = "default:" in said[1].partition("[default:")[0] and "[default:" in said[1]
            assert not twice, f"{name}: {said}"
