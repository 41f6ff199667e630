"""The compilers' own caches: what is in them, what happened in them, locks nobody holds, sharing them between boxes."""

from __future__ import annotations

from neuronbench_neuron.caches.layout import Module
from neuronbench_neuron.caches.snapshot import Delta, Snapshot, snapshot

__all__ = ["Delta", "Module", "Snapshot", "snapshot"]
