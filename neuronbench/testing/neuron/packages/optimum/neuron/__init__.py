"""An `optimum.neuron` that is not one: what trainers use of version 0.4.5, on torch, transformers and peft of the
stack.

`arguments.json` has the names and defaults of the settings that the real classes have; any other is refused as there.
The trainer makes the real one's calls in the real one's order: callbacks before step markers, closures at the next
marker, checkpoints as shards, no evaluation, no going on from a checkpoint. Its device is that of the fake `torch_xla`.
"""

from __future__ import annotations

from ._arguments import NeuronSFTConfig, NeuronTrainingArguments
from ._trainers import NeuronSFTTrainer, NeuronTrainer
from .version import __version__

__all__ = ["NeuronSFTConfig", "NeuronSFTTrainer", "NeuronTrainer", "NeuronTrainingArguments", "__version__"]
