"""Dense models to hold a mixture of experts against: one that uses as many parameters a token, one that has as many.

Everything but the feed-forward part is the same, layer by layer, so that a difference is that of routing. The one of
equal active parameters says what routing costs; the one of equal total parameters what it saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronbench_moe import shape as shapes

ARMS: Final = ("moe", "dense_active", "dense_total")
STEP: Final = 16
"""Widths are multiples of it: kernels for odd ones are slow for reasons that have nothing to do with experts."""
LIMIT: Final = 0.01
"""How far, as a share, the parameters may be off before the control is none."""
_OF_EXPERTS: Final = (
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef", "output_router_logits",
)  # fmt: skip
_TWINS: Final = {"qwen3_moe": ("qwen3", "Qwen3ForCausalLM"), "mixtral": ("llama", "LlamaForCausalLM")}
"""Kinds of experts → a dense kind whose attention has the same parameters, and its class."""


def config_of(config: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """The configuration of an arm: of `moe` the given one.

    Raises `ValueError` for a kind that has no dense twin here, and for an arm that there is not.
    """
    if arm not in ARMS:
        raise ValueError(f"arm: expected one of {', '.join(ARMS)}, found {arm!r}")
    mixture = shapes.of(config)
    if arm == "moe":
        if not mixture.experts:
            raise ValueError(f"arm moe: expected a mixture of experts, found {mixture.kind}, which is dense")
        return dict(config)
    if mixture.kind not in _TWINS:
        raise ValueError(f"{mixture.kind} has no dense twin here; there is one of {', '.join(_TWINS)}")
    kind, name = _TWINS[mixture.kind]
    target = mixture.active if arm == "dense_active" else mixture.total
    fixed = mixture.embedding + mixture.attention + mixture.norms
    width = round((target - fixed) / (3 * mixture.hidden * mixture.layers) / STEP) * STEP
    kept = {key: value for key, value in config.items() if key not in _OF_EXPERTS}
    return {**kept, "model_type": kind, "architectures": [name], "intermediate_size": max(width, STEP)}


def off(config: Mapping[str, Any], arm: str) -> float:
    """How many parameters more the dense arm has than it should, as a share; 0 for `moe`."""
    mixture, made = shapes.of(config), shapes.of(config_of(config, arm))
    wanted = {"moe": mixture.total, "dense_active": mixture.active, "dense_total": mixture.total}[arm]
    return made.total / wanted - 1
