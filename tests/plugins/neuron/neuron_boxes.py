"""Made-up Neuron hosts with a stack whose torch is real, for tests; skipped where there is none (`make stack`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lean_stack import lean

import neuronbench.testing.neuron as fakes
from neuronbench.testing.neuron import FakeBox

PROJECT = Path(__file__).parent.parent.parent.parent
PACKAGES = Path(fakes.__file__).parent / "packages"
VERSIONS = {"torch-neuronx": "2.9.0.2.15.1", "neuronx-cc": "2.26.6360.0+ab12", "libneuronxla": "2.2.1"}
TINY = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 32,
}  # fmt: skip


def torch_python() -> Path:
    """The interpreter of a stack with torch and transformers; skips where there is none."""
    told = os.environ.get("NEURONBENCH_TEST_STACK")
    folder = Path(told) if told else PROJECT / ".venv-cpu"
    python = folder if folder.is_file() else folder / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no stack with torch: {folder} (make stack)")
    return python


def stacked(box: FakeBox) -> Path:
    """Give a box the environment for tracing: real torch, made-up torch_neuronx."""
    return box.venv("aws_neuronx_venv_pytorch_2_9", packages=VERSIONS, paths=[PACKAGES, lean()], python=torch_python())
