"""Signatures of failures of the Neuron SDK: data, in `failures.toml`."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

from neuronbench.failures import Rule


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The rules, in the order in which they are tried."""
    text = (resources.files("neuronbench_neuron") / "failures.toml").read_text(encoding="utf-8")
    return tuple(Rule.from_table(table) for table in tomllib.loads(text).get("rule", ()))
