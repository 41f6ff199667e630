"""What tests of serving on Neuron share: a small model that is none, stacks of each generation, settings, points."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import neuronbench.testing.neuron as fakes
from neuronbench.model import FrozenMap, Point

PACKAGES: Final = Path(fakes.__file__).parent / "packages"
WORDS: Final = 2000
STACKS: Final[Mapping[str, Mapping[str, str]]] = {
    "0": {"vllm": "0.9.2", "neuronx-distributed-inference": "0.4.7422"},
    "1a": {"vllm": "0.11.0", "vllm-neuron": "0.2.0"},
    "1b": {"vllm": "0.13.0", "vllm-neuron": "0.4.1"},
    "1c": {"vllm": "0.16.0", "vllm-neuron": "0.5.0"},
    "2a": {"vllm": "0.21.0", "vllm-neuron": "0.21.0.1.0.0"},
    "2b": {"vllm": "0.24.0", "vllm-neuron": "0.24.0.1.1.0"},
    "H": {"vllm": "0.11.0", "optimum-neuron": "0.4.5"},
}
"""Generation → the packages that make it."""
BASE: Final = {"torch": "2.8.0", "torch-neuronx": "2.8.0.2.10.16998"}


def make_model(folder: Path, *, length: int = 2048, heads: int = 32, kv_heads: int = 4) -> Path:
    """Files that are found, described and never computed with."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS, "hidden_size": 2048,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": 2, "intermediate_size": 128,
        "max_position_embeddings": length,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    words = {f"t{index}": index for index in range(WORDS)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def point(backend: str, **params: Any) -> Point:
    return Point(benchmark="b.py::f", lane="serving", backend=backend, params=FrozenMap(params), id="p")
