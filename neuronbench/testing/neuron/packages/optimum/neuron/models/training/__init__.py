"""Models for training and the joining of their shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]
from neuronx_distributed.parallel_layers import parallel_state  # type: ignore[import-not-found,unused-ignore]
from torch_xla import _device  # type: ignore[import-not-found,unused-ignore]

MODEL_TYPES = ("llama", "granite", "qwen3")
SHARDS = "shards"


class NeuronModelForCausalLM:
    """Each tensor rank holds the whole model here: what is split, and summed, is the real one's affair."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str, trn_config: Any, *model_args: Any, **kwargs: Any
    ) -> Any:
        known = {"dtype", "torch_dtype", "config", "revision", "token", "cache_dir", "use_safetensors"}
        unknown = sorted(set(kwargs) - known)
        if unknown:
            raise TypeError(f"from_pretrained() got an unexpected keyword argument {unknown[0]!r}")
        config = transformers.AutoConfig.from_pretrained(pretrained_model_name_or_path)
        if config.model_type not in MODEL_TYPES:
            raise ValueError(
                f"{config.model_type} is not supported for the training mode; known: {', '.join(MODEL_TYPES)}"
            )
        model = transformers.AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path, **kwargs)
        model.save_pretrained = lambda folder, **more: save(model, folder, **more)
        plain = model.forward

        def forward(*args: Any, reduction: str = "mean", **more: Any) -> Any:
            """The real models' loss takes `reduction`, and not what those of transformers take."""
            if "num_items_in_batch" in more:
                raise TypeError("forward() got an unexpected keyword argument 'num_items_in_batch'")
            _device.get().trace("train" if model.training else "evaluate", _device.execution_s())
            if _device.extracting():  # nothing is computed
                return {"loss": next(model.parameters()).reshape(-1)[0] * 0.0}
            return plain(*args, **more, **({"num_items_in_batch": 1} if reduction == "sum" else {}))

        model.forward = forward
        return model


def save(model: Any, save_directory: str, optimizer: Any = None, **more: Any) -> None:
    folder = Path(save_directory)
    (folder / SHARDS / "model").mkdir(parents=True, exist_ok=True)
    if parallel_state.get_data_parallel_rank() == 0:
        rank = parallel_state.get_tensor_model_parallel_rank()
        stage = parallel_state.get_pipeline_model_parallel_rank()
        name = f"dp_rank_00_tp_rank_{rank:02}_pp_rank_{stage:02}.pt"
        torch.save(model.state_dict(), folder / SHARDS / "model" / name)
    if int(os.environ.get("RANK", "0")) == 0:
        model.config.save_pretrained(str(folder))


def consolidate_model_parallel_checkpoints_to_unified_checkpoint(
    checkpoint_dir: str | Path, output_dir: str | Path, save_format: str = "safetensors"
) -> None:
    from safetensors.torch import save_file  # type: ignore[import-not-found,unused-ignore]

    found, into = Path(checkpoint_dir), Path(output_dir)
    into.mkdir(parents=True, exist_ok=True)
    adapter = found / "adapter_default" / "adapter_shards"
    shards = adapter if adapter.is_dir() else found / SHARDS
    if not shards.is_dir():
        raise ValueError(f"Could not find the tensor parallel shards from {found}")
    held = torch.load(min((shards / "model").glob("*.pt")), weights_only=True)
    name = "adapter_model.safetensors" if adapter.is_dir() else "model.safetensors"
    seen: set[int] = set()
    kept = {}
    for key, tensor in held.items():
        if tensor.data_ptr() not in seen:  # tied weights are stored once
            kept[key] = tensor.contiguous()
        seen.add(tensor.data_ptr())
    save_file(kept, into / name, metadata={"format": "pt"})
