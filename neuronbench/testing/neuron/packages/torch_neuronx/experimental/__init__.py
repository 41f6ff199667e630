"""The older names of what places models on cores."""

from __future__ import annotations

from .._placement import multicore_context, neuron_cores_context, set_multicore, set_neuron_cores

__all__ = ["multicore_context", "neuron_cores_context", "set_multicore", "set_neuron_cores"]
