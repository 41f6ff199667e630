"""Adapters, saved as shards as the real ones are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from neuronx_distributed.parallel_layers import parallel_state  # type: ignore[import-not-found,unused-ignore]

SHARDS = "adapter_shards"


def get_peft_model(model: Any, peft_config: Any, adapter_name: str = "default") -> Any:
    from peft import get_peft_model as plain  # type: ignore[import-not-found,unused-ignore]

    made = plain(model, peft_config, adapter_name=adapter_name)
    made.save_pretrained = lambda folder, **more: save(made, folder, **more)
    return made


def save(model: Any, save_directory: str, is_main_process: bool = True, **more: Any) -> None:
    """`adapter_NAME/adapter_config.json`, and the weights below `adapter_shards`."""
    from peft import get_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

    folder = Path(save_directory, "adapter_default")
    (folder / SHARDS / "model").mkdir(parents=True, exist_ok=True)
    rank = parallel_state.get_tensor_model_parallel_rank()
    if parallel_state.get_data_parallel_rank() == 0:
        torch.save(
            get_peft_model_state_dict(model), folder / SHARDS / "model" / f"dp_rank_00_tp_rank_{rank:02}_pp_rank_00.pt"
        )
    if int(os.environ.get("RANK", "0")) == 0:
        config = model.peft_config["default"]
        kept, config.inference_mode = config.inference_mode, True
        config.save_pretrained(str(folder))
        config.inference_mode = kept
