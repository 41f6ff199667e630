"""What families of models share: where weights are from, inputs as the harness makes them, counted operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Source:
    """Which model, with which weights."""

    path: str = ""
    """Folder with configuration and weights; empty when `architecture` is the model."""
    architecture: dict[str, Any] = field(default_factory=dict)
    """A configuration of transformers, with `model_type`."""
    weights: str = "pretrained"
    """`pretrained`, or `seeded`: random from `seed`."""
    seed: int = 0

    def config(self, **changes: Any) -> Any:
        from transformers import AutoConfig  # type: ignore[import-not-found,unused-ignore]

        if self.path:
            return AutoConfig.from_pretrained(self.path, **changes)
        given = {**self.architecture, **changes}
        return AutoConfig.for_model(given.pop("model_type"), **given)

    def model(self, auto: Any, **changes: Any) -> tuple[Any, dict[str, Any]]:
        """The model in fp32, by one of transformers' Auto classes, and what a reader must know of its weights."""
        config = self.config(**changes)
        torch.manual_seed(self.seed)
        if self.weights == "seeded":
            model = auto.from_config(config)
            return model.float().eval(), {"weights": "seeded", "seed": self.seed, "new": []}
        model, loading = auto.from_pretrained(self.path, config=config, dtype=torch.float32, output_loading_info=True)
        missing = sorted(loading.get("missing_keys", ()))  # heads the checkpoint has no weights for: from the seed
        return model.eval(), {"weights": "pretrained", "seed": self.seed if missing else None, "new": missing}


@dataclass(frozen=True)
class Graph:
    """One of several graphs that a model is compiled to."""

    module: Any
    inputs: list[dict[str, Any]]
    """`dtype` and `shape` of each argument; an empty `dtype` is the model's."""
    calls: int = 1
    """How often a call of the model runs it."""
    writes: tuple[int, ...] = ()
    """Places of the arguments that it writes to: where a compiler has no such thing, they are outputs, too."""


@dataclass(frozen=True)
class Built:
    """A model as it is compiled: tensors in, a tuple of tensors out."""

    module: Any
    """The whole model. Compiled as one graph, unless there are `graphs`; then it is the reference only."""
    inputs: list[dict[str, Any]]
    """As `neuronbench.protocols.InputSpec` describes them."""
    outputs: list[str]
    facts: dict[str, Any]
    per_item: dict[str, Any] = field(default_factory=dict)
    """What one item of a batch holds: `input_tokens` (as compiled, padding included), `output_tokens`, `audio_s`."""
    graphs: dict[str, Graph] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)
    """Arguments of the family's own `loop(graphs, ...)`, which makes one call of the compiled graphs."""


def described(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Facts of a model of transformers."""
    return {
        **weights,
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "attention": getattr(model.config, "_attn_implementation", None),
    }


def as_tensor(given: Any) -> Any:
    """A tensor of torch from (dtype, shape, data)."""
    dtype, shape, data = given
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(tuple(shape))


def as_plain(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    """(dtype, shape, data) of a tensor of torch, on the host; bfloat16 as float32."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.numpy().tobytes()


def example(inputs: list[dict[str, Any]], dtype: str = "float32") -> list[Any]:
    """Tensors of the right shape for tracing; their values do not matter. `dtype`: of inputs that have the model's."""
    return [torch.ones(tuple(entry["shape"]), dtype=getattr(torch, entry["dtype"] or dtype)) for entry in inputs]


def count_flops(module: Any, arguments: list[Any]) -> int:
    """Floating-point operations of the matrix multiplications of one call."""
    from torch.utils.flop_counter import FlopCounterMode  # type: ignore[import-not-found,unused-ignore]

    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        module(*arguments)
    return int(counter.get_total_flops())
