"""Settings: the names and defaults of the real classes, and what their constructors do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch_xla.distributed.xla_backend  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
from neuronx_distributed.parallel_layers import parallel_state  # type: ignore[import-not-found,unused-ignore]

KNOWN: dict[str, Any] = json.loads(Path(__file__).with_name("arguments.json").read_text(encoding="utf-8"))


class TrainingNeuronConfig:
    """How ranks are laid out."""

    def __init__(self, tensor_parallel_size: int, pipeline_parallel_size: int, **more: Any) -> None:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("xla")
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel(tensor_parallel_size, pipeline_parallel_size)
        self.tensor_parallel_size, self.pipeline_parallel_size = tensor_parallel_size, pipeline_parallel_size
        self.data_parallel_size = parallel_state.get_data_parallel_size()
        self.__dict__.update(more)

    @property
    def model_parallelism_enabled(self) -> bool:
        return self.tensor_parallel_size > 1 or self.pipeline_parallel_size > 1


def _post_init(self: Any) -> None:
    if self.do_eval is False and self.eval_strategy != "no":
        self.do_eval = True
    if self.do_eval:
        raise RuntimeError("Evaluation is not supported yet.")
    if not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
        raise ValueError("warmup_steps must be of type int and must be 0 or a positive integer.")
    if self.optim not in ("adamw_torch", "sgd"):
        raise ValueError(f"NeuronTrainer cannot instantiate unsupported optimizer: {self.optim}")
    if self.pipeline_parallel_size > 1:
        self.per_device_train_batch_size *= self.gradient_accumulation_steps
        self.per_device_eval_batch_size *= self.gradient_accumulation_steps
        self.gradient_accumulation_steps = 1
        if self.pipeline_parallel_num_microbatches == -1:
            self.pipeline_parallel_num_microbatches = self.per_device_train_batch_size
        for size in (self.per_device_train_batch_size, self.per_device_eval_batch_size):
            if size % self.pipeline_parallel_num_microbatches:
                raise ValueError(
                    f"The number of pipeline microbatches ({self.pipeline_parallel_num_microbatches}) divide the total "
                    f"per-device batch size ({size})."
                )
    self.trn_config = TrainingNeuronConfig(
        self.tensor_parallel_size,
        self.pipeline_parallel_size,
        sequence_parallel_enabled=not self.disable_sequence_parallel and self.tensor_parallel_size > 1,
        pipeline_parallel_num_microbatches=self.pipeline_parallel_num_microbatches,
        use_xser=self.use_xser,
        async_save=self.async_save,
    )


def _fields(*names: str) -> list[tuple[str, Any, Any]]:
    defaults = {name: value for each in names for name, value in KNOWN[each].items()}
    made = []
    for name, value in defaults.items():
        default = (
            {"<dict()>": None, "<default_optim>": "adamw_torch"}.get(value, value) if isinstance(value, str) else value
        )
        made.append((name, Any, dataclasses.field(default=default)))
    return made


NeuronTrainingArguments = dataclasses.make_dataclass(
    "NeuronTrainingArguments", _fields("NeuronTrainingArguments"), namespace={"__post_init__": _post_init}
)
NeuronSFTConfig = dataclasses.make_dataclass("NeuronSFTConfig", _fields("SFTConfig"), bases=(NeuronTrainingArguments,))
