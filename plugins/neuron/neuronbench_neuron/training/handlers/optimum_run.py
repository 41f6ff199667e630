"""One rank's training by a trainer of optimum-neuron, watched. Written to the interfaces of optimum-neuron 0.4.5.

Its `NeuronTrainer` is no trainer of transformers but has the same callbacks. At the end of a step its callback comes
before the step marker: the optimizer is traced then and not handed over (see `barrier.wait`). It refuses to go on from
a checkpoint and to evaluate; the hold-out set is evaluated by a loop of our own.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.training import model, run, state  # type: ignore[import-not-found,unused-ignore]
from optimum.neuron import (  # type: ignore[import-not-found,unused-ignore]
    NeuronSFTConfig,
    NeuronSFTTrainer,
    NeuronTrainer,
    NeuronTrainingArguments,
)
from optimum.neuron.models.training import (  # type: ignore[import-not-found,unused-ignore]
    NeuronModelForCausalLM,
    consolidate_model_parallel_checkpoints_to_unified_checkpoint,
)

from . import xla

Rig = xla.Rig
OPTIMIZERS = {"adamw": "adamw_torch", "sgd": "sgd"}
SUMMARY = "training_summary_metrics.json"


class Measured:
    """Goes before a trainer's class: the batches are ours, and what happens to them is noted."""

    run: Run
    args: Any

    def get_train_dataloader(self) -> Any:
        run_ = self.run
        return torch.utils.data.DataLoader(
            run.Items(run_.indices),
            batch_size=self.args.per_device_train_batch_size,
            shuffle=False,
            collate_fn=lambda items: run_.batch(items),
        )

    def training_step(self, trained: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        loss = super().training_step(trained, inputs, *given, **more)  # type: ignore[misc]
        self.run.micro_losses.append(loss)
        return loss

    def _save_checkpoint(self, *given: Any, **more: Any) -> None:
        begin_ns = time.monotonic_ns()
        NeuronTrainer._save_checkpoint(self)
        self.run.saved(Path(self.run.folder, state.CHECKPOINTS, f"checkpoint-{self.run.last_step}"), begin_ns)


class Run(xla.Run):
    """One attempt of one rank at a job."""

    def set_up(self) -> None:
        """The arguments' constructor starts the process group, and lays out the ranks."""
        self.args = arguments(self.job, self.rig.choices, self.folder)
        self._waiting: list[list[Any]] = []

    def build(self) -> Any:
        trained = NeuronModelForCausalLM.from_pretrained(
            self.rig.weights, self.args.trn_config, dtype=getattr(torch, self.job["dtype"])
        )
        common = {
            "model": trained, "args": self.args, "processing_class": self.rig.tokens.tokenizer,
            "callbacks": [run.Steps(self)],
        }  # fmt: skip
        # What the trainers look at when they are made; the batches come from the mixin's loader.
        rows = _rows()
        if self.job["method"] == "pretrain":
            base: Any = NeuronTrainer
        else:
            base = NeuronSFTTrainer
            common["peft_config"] = model.adapter_of(self.job)
        made = type("Measured" + base.__name__, (Measured, base), {})
        trainer = made(train_dataset=rows, data_collator=list, **common)
        trainer.run = self
        self.facts["trainer"] = base.__name__
        self.facts["optimizer"] = OPTIMIZERS[self.job["optimizer"]]
        return trainer

    def batch(self, items: list[int]) -> dict[str, Any]:
        """A batch on the host. Batches are taken in the order in which they are trained on; their masks wait until
        then."""
        found: dict[str, Any] = model.batch(self.job["method"], self.prepared.train, items)
        self._waiting.append(model.masks(found))
        return found

    def go(self) -> None:
        self.trainer.train()

    def step_ends(self, step: int) -> bool:
        taken, self._waiting = self._waiting[: len(self.micro_losses)], self._waiting[len(self.micro_losses) :]
        for masks in taken:
            self._masks += masks
        self.grad_norm = self.trainer.grad_norm
        return super().step_ends(step)

    def told(self) -> dict[str, Any]:
        return {"zero_1": self.args.zero_1, "bf16": self.args.bf16}

    def ended(self) -> dict[str, Any]:
        """The library's own summary too, under its own name: its peaks of a core are not those of the catalogue."""
        found = super().ended()
        path = Path(self.args.output_dir, SUMMARY)
        if self.rank == 0 and path.is_file():
            told = json.loads(path.read_text(encoding="utf-8")).get("metrics", {})
            found["reported"] = {f"optimum-neuron/{name}": value for name, value in told.items()}
        return found

    def keep(self) -> None:
        """Shards are written by all ranks, and joined by the first to files that any library reads."""
        making, shards = self.folder / f".{state.FINAL}", self.folder / ".shards"
        self.args.save_only_model = True  # the optimizer's state is no part of what was learnt
        self.trainer.save_model(str(shards))
        self.together()
        if self.rank == 0:
            joined(shards, making)
            making.rename(self.folder / state.FINAL)
            shutil.rmtree(shards)


def joined(shards: Path, into: Path) -> None:
    """`optimum-cli neuron consolidate` of a saved model or adapter, with its configuration beside the weights."""
    consolidate_model_parallel_checkpoints_to_unified_checkpoint(shards, into, save_format="safetensors")
    adapter = shards / "adapter_default" / "adapter_config.json"
    for path in (adapter, shards / "config.json", shards / "generation_config.json"):
        if path.is_file() and (path == adapter or not adapter.is_file()):
            shutil.copyfile(path, into / path.name)


def arguments(job: dict[str, Any], choices: dict[str, Any], folder: Path) -> Any:
    """The library's settings of a job. Nothing is logged to anything, evaluated, or pushed to a hub's cache."""
    every = job["checkpoint_every"]
    common: dict[str, Any] = {
        "output_dir": str(folder / state.CHECKPOINTS),
        "max_steps": job["steps"],
        "per_device_train_batch_size": job["batch_size"],
        # Never evaluated; with pipeline stages the library wants its microbatches to divide it all the same.
        "per_device_eval_batch_size": job["batch_size"],
        "gradient_accumulation_steps": job["accumulation"],
        "learning_rate": job["learning_rate"],
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": job["warmup_steps"],
        "weight_decay": 0.0,
        "max_grad_norm": model.MAX_GRAD_NORM,
        "optim": OPTIMIZERS[job["optimizer"]],
        "seed": job["seed"],
        "bf16": job["dtype"] == "bfloat16",
        "gradient_checkpointing": job["recompute"],
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "save_strategy": "steps" if every else "no",
        "save_steps": every or job["steps"],
        "save_total_limit": 2,
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "do_eval": False,
        "skip_cache_push": True,
        "zero_1": choices["zero_1"],
        "stochastic_rounding_enabled": choices["stochastic_rounding"],
        "tensor_parallel_size": choices["tensor_parallel_size"],
        "disable_sequence_parallel": not choices["sequence_parallel"],
        "pipeline_parallel_size": choices["pipeline_parallel_size"],
        "async_save": False,
    }
    make: Callable[..., Any] = NeuronTrainingArguments
    if job["method"] != "pretrain":
        make = NeuronSFTConfig
        skip = {"skip_prepare_dataset": True}
        common.update(max_length=job["sequence_length"], packing=False, dataset_kwargs=skip)
    return make(**common)


def _rows() -> Any:
    import datasets  # type: ignore[import-not-found,unused-ignore]

    datasets.disable_progress_bars()
    return datasets.Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
