"""A `neuronx_distributed` that is not one: what trainers use of version 0.18, over gloo, for a made-up host.

Parallel layers are split and summed for real; parameters have the real ones' marks. Arguments that the real functions
do not have are refused.
"""

from __future__ import annotations

from . import parallel_layers, trainer
from .trainer import (
    has_checkpoint,
    initialize_parallel_model,
    initialize_parallel_optimizer,
    load_checkpoint,
    neuronx_distributed_config,
    save_checkpoint,
)

__version__ = "0.18.0"

__all__ = [
    "has_checkpoint", "initialize_parallel_model", "initialize_parallel_optimizer", "load_checkpoint",
    "neuronx_distributed_config", "parallel_layers", "save_checkpoint", "trainer",
]  # fmt: skip
