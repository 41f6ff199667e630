"""See `neuronx_distributed`."""

from . import layers, parallel_state

__all__ = ["layers", "parallel_state"]
