"""Model, optimizer and checkpoints; see `neuronx_distributed`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from torch_xla import _device  # type: ignore[import-not-found,unused-ignore]
from transformers.modeling_outputs import CausalLMOutputWithPast  # type: ignore[import-not-found,unused-ignore]

from ..parallel_layers import parallel_state

OPTIMIZER_CONFIG = ("zero_one_enabled", "grad_clipping", "max_grad_norm")


def neuronx_distributed_config(
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    expert_parallel_size: int = 1,
    context_parallel_size: int = 1,
    pipeline_config: Any = None,
    optimizer_config: dict[str, Any] | None = None,
    activation_checkpoint_config: Any = None,
    pad_model: bool = False,
    sequence_parallel: bool = False,
    model_init_config: Any = None,
    lora_config: Any = None,
    mixed_precision_config: Any = None,
    sequential_move_factor: int = 11,
    lnc_size: int = 1,
) -> dict[str, Any]:
    told = {"zero_one_enabled": False, "grad_clipping": True, "max_grad_norm": 1.0, **(optimizer_config or {})}
    unknown = sorted(set(told) - set(OPTIMIZER_CONFIG))
    if unknown:
        raise TypeError(f"optimizer_config: {', '.join(unknown)} is none of {', '.join(OPTIMIZER_CONFIG)}")
    if dist.is_initialized():
        parallel_state.initialize_model_parallel(tensor_parallel_size, pipeline_parallel_size)
    return {
        "tensor_parallel_size": tensor_parallel_size, "pipeline_parallel_size": pipeline_parallel_size,
        "optimizer_config": told, "activation_checkpoint_config": activation_checkpoint_config,
        "sequence_parallel": sequence_parallel, "model_init_config": model_init_config, "lora_config": lora_config,
    }  # fmt: skip


def initialize_parallel_model(
    nxd_config: dict[str, Any], model_fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    return NxDModel(model_fn(*args, **kwargs), nxd_config)


class NxDModel(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, module: Any, nxd_config: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.nxd_config = module, nxd_config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        _device.get().trace("train" if self.training else "evaluate", _device.execution_s())
        if _device.extracting():  # nothing is computed
            first = next(parameter for parameter in self.module.parameters() if parameter.requires_grad)
            return CausalLMOutputWithPast(loss=first.reshape(-1)[0] * 0.0)
        return self.module(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.named_parameters(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        return self.module.load_state_dict(state_dict, strict=strict)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def initialize_parallel_optimizer(
    nxd_config: dict[str, Any], optimizer_class: Any, parameters: Any, **defaults: Any
) -> Any:
    return NxDOptimizer(optimizer_class(parameters, **defaults), nxd_config)


class NxDOptimizer:
    def __init__(self, optimizer: Any, nxd_config: dict[str, Any]) -> None:
        self.optimizer, self.nxd_config, self._grad_norm = optimizer, nxd_config, None

    @property
    def grad_norm(self) -> Any:
        return self._grad_norm

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = False) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Any = None) -> None:
        _device.get().trace("optimizer", _device.execution_s() / 10)
        if _device.extracting():
            self._grad_norm = torch.zeros(())
            return
        self._grad_norm = reduced(self.optimizer, self.nxd_config["optimizer_config"])
        self.optimizer.step()


def reduced(optimizer: Any, config: dict[str, Any]) -> Any:
    """Gradients averaged over the copies and clipped; their norm over the whole model."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    copies = parallel_state.get_data_parallel_size()
    first = parallel_state.get_tensor_model_parallel_rank() == 0
    square = torch.zeros(())
    for parameter in parameters:
        if copies > 1:
            dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
            parameter.grad /= copies
        if first or getattr(parameter, "tensor_model_parallel", False):
            square += parameter.grad.float().pow(2).sum()
    dist.all_reduce(square, group=parallel_state.get_tensor_model_parallel_group())
    norm = square.sqrt()
    if config["grad_clipping"]:
        scale = min(float(config["max_grad_norm"] / (norm + 1e-6)), 1.0)
        for parameter in parameters:
            parameter.grad *= scale
    return norm


# -- checkpoints


def _file(path: str, tag: str) -> Path:
    return Path(path, tag, f"rank_{dist.get_rank():05d}.pt")


def save_checkpoint(
    checkpoint_dir_str: str,
    tag: str,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    user_content: Any = None,
    num_workers: int = 8,
    use_xser: bool = False,
    num_kept_ckpts: int | None = None,
    async_save: bool = False,
    zero1_optimizer: bool = False,
    use_zero1_dcp: bool = False,
    avoid_saving_lower_precision_weights: bool = False,
) -> None:
    path = _file(checkpoint_dir_str, tag)
    path.parent.mkdir(parents=True, exist_ok=True)
    held = model.state_dict() if hasattr(model, "state_dict") else model
    torch.save(
        {
            "model": held,
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "user_content": user_content,
        },
        path,
    )
    dist.barrier()


def load_checkpoint(
    path: str,
    tag: str | None = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    num_workers: int = 8,
    strict: bool = True,
    use_zero1_dcp: bool = False,
) -> Any:
    assert tag is not None, "the fake needs a tag"
    told = torch.load(_file(path, tag), weights_only=False)
    if model is not None:
        model.load_state_dict(told["model"], strict=strict)
    if optimizer is not None:
        optimizer.load_state_dict(told["optimizer"])
    return told["user_content"]


def has_checkpoint(checkpoint_dir_str: str) -> bool:
    return any(Path(checkpoint_dir_str).glob("*/rank_*.pt"))
