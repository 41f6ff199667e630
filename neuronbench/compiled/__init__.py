"""Compiled models on any hardware: the parameters of a point, the artifact and its key, the boot. For backends.

A backend has a provider (`CompiledProvider`) and a boot (`CompiledBoot`), which say what is its own: how a worker is
started, what goes into an artifact's key, what a call cannot be faster than. Its handler, which runs in the stack, is a
`neuronbench/worker/handlers/graphs.py:GraphHandler`.
"""

from __future__ import annotations

from neuronbench.compiled.boot import CompiledBoot
from neuronbench.compiled.facts import stack_facts, weights_in_words
from neuronbench.compiled.provider import CompiledProvider
from neuronbench.compiled.settings import DEFAULTS, FAMILIES, SHAPE, family_files, seeded_architecture, wrong_settings

__all__ = [
    "DEFAULTS", "FAMILIES", "SHAPE", "CompiledBoot", "CompiledProvider", "family_files", "seeded_architecture",
    "stack_facts", "weights_in_words", "wrong_settings",
]  # fmt: skip
