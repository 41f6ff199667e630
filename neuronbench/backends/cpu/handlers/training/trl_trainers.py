"""The trainer of a job: trl's for fine-tuning, transformers' own for pretraining."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import transformers  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.families.common import Source  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.training.data import Tokens  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.training.model import (  # type: ignore[import-not-found,unused-ignore]
    MAX_GRAD_NORM,
    adapter_of,
    build,
)

OPTIMIZERS = {"adamw": "adamw_torch_fused", "sgd": "sgd", "adafactor": "adafactor"}


def trainer_of(
    job: dict[str, Any], source: Source, tokens: Tokens, folder: Path, mixin: type, **given: Any
) -> Any:  # fmt: skip
    """The method's trainer with `mixin` before it; its batches are what the mixin's loader gives."""
    import datasets  # type: ignore[import-not-found,unused-ignore]

    datasets.disable_progress_bars()
    method, model = job["method"], build(source, job["dtype"])
    model.config.use_cache = False
    common = _arguments(job, folder)
    own: dict[str, Any] = {"processing_class": tokens.tokenizer}
    # What trl's trainers look at when they are made; the batches come from the mixin's loader.
    pairs = datasets.Dataset.from_dict({"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]})
    rows = datasets.Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
    width = job["sequence_length"]
    base: Any
    if method == "pretrain":
        base, arguments = transformers.Trainer, transformers.TrainingArguments(**common)
        own["train_dataset"] = rows
    elif method in ("lora_sft", "full_sft"):
        from trl import SFTConfig, SFTTrainer  # type: ignore[import-not-found,unused-ignore]

        skip = {"skip_prepare_dataset": True}
        base, arguments = SFTTrainer, SFTConfig(**common, max_length=width, packing=False, dataset_kwargs=skip)
        own.update(train_dataset=rows, peft_config=adapter_of(job))
    elif method == "dpo":
        from trl import DPOConfig, DPOTrainer

        base = DPOTrainer
        arguments = DPOConfig(**common, max_length=width, beta=job["beta"], disable_dropout=False)
        own.update(train_dataset=pairs, peft_config=adapter_of(job))
        if not job["adapter"]:  # with one, the model without it is the reference
            own["ref_model"] = build(source, job["dtype"])
    else:
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer  # type: ignore[import-not-found,unused-ignore]

        base = ORPOTrainer
        arguments = ORPOConfig(**common, max_length=width, beta=job["beta"], disable_dropout=False)
        own.update(train_dataset=pairs, peft_config=adapter_of(job), data_collator=lambda rows: rows)
    trainer = type("Measured" + base.__name__, (mixin, base), {})(model=model, args=arguments, **own, **given)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def _arguments(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What all methods share of transformers' settings. Nothing is logged to anything, evaluated or pushed."""
    every = job["checkpoint_every"]
    return {
        "output_dir": str(folder / "checkpoints"),
        "max_steps": job["steps"],
        "per_device_train_batch_size": job["batch_size"],
        "gradient_accumulation_steps": job["accumulation"],
        "learning_rate": job["learning_rate"],
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": job["warmup_steps"],
        "weight_decay": 0.0,
        "max_grad_norm": MAX_GRAD_NORM,
        "optim": OPTIMIZERS[job["optimizer"]],
        "seed": job["seed"],
        "data_seed": job["seed"],
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": job["recompute"],
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "save_strategy": "steps" if every else "no",
        "save_steps": every or job["steps"],
        "save_total_limit": 2,
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "use_cpu": True,
        "ddp_backend": "gloo" if "RANK" in os.environ else None,
        "ddp_find_unused_parameters": False,
        "average_tokens_across_devices": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
