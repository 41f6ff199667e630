"""A mixture of experts as its configuration describes it: parameters counted by part, and what of them a token uses.

Everything is read from `config.json`; no weights, no framework. A kind of model that is not known is refused: a count
that leaves something out would make every rate per parameter wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuronbench.model import Json

DENSE: Final = ("qwen3", "llama")
KINDS: Final = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "gpt_oss")
"""Values of `model_type` whose parameters are counted. All of them choose the experts of the largest router logits."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Parameters of a model, by part; of a dense one, `experts` is 0."""

    kind: str
    hidden: int
    layers: int
    moe_layers: int
    """Layers that have experts; the others have one feed-forward part."""
    experts: int
    top_k: int
    expert_width: int
    heads: int
    kv_heads: int
    embedding: int
    """Token embeddings, and the output matrix where it is one of its own."""
    attention: int
    """Of all layers, norms of queries and keys included."""
    norms: int
    router: int
    """Of all layers: what chooses the experts."""
    expert: int
    """Of one expert in one layer."""
    shared: int
    """Of all layers: experts that every token goes through, with their gates."""
    dense: int
    """Of all layers without experts."""

    @property
    def common(self) -> int:
        """What every token uses, whichever experts it is sent to."""
        return self.embedding + self.attention + self.norms + self.router + self.shared + self.dense

    @property
    def total(self) -> int:
        return self.common + self.moe_layers * self.experts * self.expert

    @property
    def active(self) -> int:
        """What one token uses: all but the experts that it is not sent to."""
        return self.common + self.moe_layers * self.top_k * self.expert

    def touched(self, experts: float) -> float:
        """What a step reads whose tokens use `experts` different ones in each layer, on average."""
        return self.common + self.moe_layers * experts * self.expert

    def to_json(self) -> dict[str, Json]:
        names = (
            "kind", "hidden", "layers", "moe_layers", "experts", "top_k", "expert_width", "heads", "kv_heads",
            "embedding", "attention", "norms", "router", "expert", "shared", "dense", "total", "active",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def of(config: Mapping[str, Any]) -> Shape:
    """The shape of a `config.json`. Raises `ValueError` for a kind that is not known, or a missing or wrong figure."""
    kind = str(config.get("model_type", ""))
    if kind not in (*KINDS, *DENSE):
        raise ValueError(
            f"model_type: expected one of {', '.join((*KINDS, *DENSE))}, found {kind!r}: cannot be counted"
        )
    hidden, layers, heads = (
        _whole(config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    kv = _whole(config, "num_key_value_heads", heads)
    size = _whole(config, "head_dim", hidden // heads)
    width, vocabulary = _whole(config, "intermediate_size"), _whole(config, "vocab_size")
    moe_layers, experts, top_k, expert_width = 0, 0, 0, 0
    if kind in KINDS:
        experts = _whole(config, "num_experts", config.get("num_local_experts"))
        top_k = _whole(config, "num_experts_per_tok")
        expert_width = _whole(config, "moe_intermediate_size") if kind.startswith("qwen") else width
        moe_layers = _moe_layers(config, layers)
        if top_k > experts:
            raise ValueError(f"num_experts_per_tok: expected at most the {experts} experts, found {top_k}")
    queries, keys = heads * size, kv * size
    attention = hidden * (queries + 2 * keys) + queries * hidden
    if kind == "qwen2_moe" and config.get("qkv_bias", True):
        attention += queries + 2 * keys
    elif kind == "gpt_oss":  # biases everywhere, and a sink for each head
        attention += queries + 2 * keys + hidden + heads
    elif kind != "qwen2_moe" and config.get("attention_bias"):
        attention += queries + 2 * keys + hidden
    if kind in ("qwen3", "qwen3_moe"):
        attention += 2 * size
    elif kind == "olmoe":
        attention += queries + keys
    shared = _whole(config, "shared_expert_intermediate_size", 0, least=0) if kind == "qwen2_moe" else 0
    biased = int(kind == "gpt_oss")
    return Shape(
        kind=kind, hidden=hidden, layers=layers, moe_layers=moe_layers, experts=experts, top_k=top_k,
        expert_width=expert_width, heads=heads, kv_heads=kv,
        embedding=vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2),
        attention=layers * attention, norms=layers * 2 * hidden + hidden,
        router=moe_layers * (hidden + biased) * experts,
        expert=3 * hidden * expert_width + biased * (2 * expert_width + hidden),
        shared=moe_layers * (3 * hidden * shared + hidden) if shared else 0,
        dense=(layers - moe_layers) * 3 * hidden * width,
    )  # fmt: skip


def _moe_layers(config: Mapping[str, Any], layers: int) -> int:
    """Qwen's rule: every `decoder_sparse_step`-th layer has experts, those in `mlp_only_layers` never do."""
    step = _whole(config, "decoder_sparse_step", 1)
    without = set(config.get("mlp_only_layers") or ())
    return sum((layer + 1) % step == 0 and layer not in without for layer in range(layers))


def _whole(config: Mapping[str, Any], name: str, default: Any = None, *, least: int = 1) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected a whole number from {least}, found {value!r}")
    return value
