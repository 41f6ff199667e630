"""Signatures of failures of the Neuron SDK: data, in `failures.toml`."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from neuronbench.failures import Rule


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A line that is no failure, but changes what a number means."""

    id: str
    kind: str
    line: str
    cause: str
    remedy: str


@functools.cache
def table() -> Mapping[str, Any]:
    """`failures.toml`: `rule`, and `symptom` for what no line of a log tells."""
    return tomllib.loads((resources.files("neuronbench_neuron") / "failures.toml").read_text(encoding="utf-8"))


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The rules, in the order in which they are tried. A notice is never taken for the cause of a failure."""
    return tuple(
        Rule.from_table({**entry, "benign": entry.get("benign", False) or entry.get("notice", False)})
        for entry in table()["rule"]
    )


def notices(log_text: str) -> Sequence[Notice]:
    """What in a log changes the meaning of numbers, each kind once, by its first line."""
    found: list[Notice] = []
    for entry in table()["rule"]:
        match = re.search(entry["pattern"], log_text) if entry.get("notice") else None
        if match is not None:
            start = log_text.rfind("\n", 0, match.start()) + 1
            line = log_text[start:].partition("\n")[0].strip()
            found.append(
                Notice(
                    id=entry["id"], kind=entry["kind"], line=line[:400], cause=entry["cause"], remedy=entry["remedy"]
                )
            )
    return found


def retry(rule_id: str) -> str:
    """Whether trying again can help: `no`, `once` or `yes`; `no` for rules that do not say."""
    return next((str(entry.get("retry", "no")) for entry in table()["rule"] if entry["id"] == rule_id), "no")
