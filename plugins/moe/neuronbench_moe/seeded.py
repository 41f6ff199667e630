"""Random weights on a configuration, from a seed: the same bytes everywhere, for every server and every framework.

So one model is served, routed and held against its reference. Nothing about quality follows from it, and its routing
is that of a router that was never trained. Written as transformers names the tensors, in bfloat16.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from neuronbench_moe import shape as shapes

KINDS: Final = ("qwen3_moe", "qwen3")
"""Kinds of model whose tensors are known here by name."""
DEVIATION: Final = 0.02
WIDE: Final = 5.0
"""The router and the output matrix are drawn so much wider: the likeliest expert and the likeliest token are then
likelier than the next by more than 16 bits can blur."""


def names(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor. Raises `ValueError` for a kind that is not known."""
    found = shapes.of(config)
    if found.kind not in KINDS:
        raise ValueError(f"seeded weights: expected one of {', '.join(KINDS)}, found {found.kind}")
    hidden, size = found.hidden, config.get("head_dim") or found.hidden // found.heads
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(found.layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (found.heads * size, hidden)
        yield at + "self_attn.k_proj.weight", (found.kv_heads * size, hidden)
        yield at + "self_attn.v_proj.weight", (found.kv_heads * size, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, found.heads * size)
        yield at + "self_attn.q_norm.weight", (size,)
        yield at + "self_attn.k_norm.weight", (size,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        routed = (layer + 1) % (config.get("decoder_sparse_step") or 1) == 0
        if found.experts and routed and layer not in (config.get("mlp_only_layers") or ()):
            yield at + "mlp.gate.weight", (found.experts, hidden)
            for expert in range(found.experts):
                yield from _feed_forward(f"{at}mlp.experts.{expert}.", hidden, found.expert_width)
        else:
            yield from _feed_forward(f"{at}mlp.", hidden, config["intermediate_size"])
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _feed_forward(at: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield at + "gate_proj.weight", (width, hidden)
    yield at + "up_proj.weight", (width, hidden)
    yield at + "down_proj.weight", (hidden, width)


def draw(name: str, shape: tuple[int, ...], seed: int) -> bytes:
    """A tensor's bytes in bfloat16: ones for norms, else normally distributed; each name has a stream of its own."""
    import numpy as np

    if name.endswith("norm.weight"):
        values = np.ones(shape, dtype="float32")
    else:
        stream = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        wide = name == "lm_head.weight" or name.endswith(".mlp.gate.weight")
        values = np.random.Generator(np.random.PCG64([seed, stream])).standard_normal(shape, dtype="float32")
        values *= DEVIATION * (WIDE if wide else 1.0)
    bits = values.view("<u4")
    bits += 0x7FFF + ((bits >> 16) & 1)  # to the nearest, ties to even
    return bytes((bits >> 16).astype("<u2").tobytes())


def write(config: Mapping[str, Any], path: Path, seed: int) -> int:
    """Write all tensors as one safetensors file; how many parameters it has."""
    entries = list(names(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in entries:
        length = 2 * _product(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + length]}
        at += length
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, shape in entries:
            out.write(draw(name, shape, seed))
    return at // 2


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for each in shape:
        product *= each
    return product
