"""The trainers: the real one's order of things, on a made-up device."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch_xla.core.xla_model as xm  # type: ignore[import-not-found,unused-ignore]
from neuronx_distributed.parallel_layers import parallel_state  # type: ignore[import-not-found,unused-ignore]
from neuronx_distributed.trainer import reduced  # type: ignore[import-not-found,unused-ignore]
from torch_xla import _device  # type: ignore[import-not-found,unused-ignore]
from transformers.optimization import get_scheduler  # type: ignore[import-not-found,unused-ignore]
from transformers.trainer_callback import (  # type: ignore[import-not-found,unused-ignore]
    TrainerControl,
    TrainerState,
)

from .peft import get_peft_model

PEAK_TFLOPS = 191 / 2
"""What the real library takes for a core of trn1 in bfloat16."""


class NeuronTrainer:
    def __init__(
        self,
        model: Any,
        args: Any,
        data_collator: Callable[..., Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        tokenizer: Any = None,
    ) -> None:
        if eval_dataset is not None:
            raise RuntimeError("Evaluation is not supported in NeuronTrainer.")
        self.model, self.args, self.processing_class = model, args, processing_class
        self.train_dataset, self.data_collator = train_dataset, data_collator
        self.callbacks = list(callbacks or [])
        self.optimizer, self.lr_scheduler = optimizers
        self.state, self.control = TrainerState(), TrainerControl()
        self.trn_config = args.trn_config
        self.grad_norm: Any = None
        self._steps_s: list[float] = []

    # -- what the real one has

    def get_train_dataloader(self) -> Any:
        raise ValueError("NeuronTrainer: training requires a train_dataset.")

    def train(self, resume_from_checkpoint: str | bool | None = None) -> None:
        if resume_from_checkpoint not in (False, None):
            raise ValueError("`resume_from_checkpoint` is not supported by the NeuronTrainer.")
        args = self.args
        loader = self.get_train_dataloader()
        self._set_up()
        batches = iter(loader)
        total = len(loader) // args.gradient_accumulation_steps
        for _ in range(min(total, args.max_steps)):
            inputs = [next(batches) for _ in range(args.gradient_accumulation_steps)]
            count = sum(int(batch["labels"].ne(-100).sum()) for batch in inputs)
            begun = time.monotonic()
            for number, batch in enumerate(inputs):
                xm.mark_step()
                if number == 0:
                    self._tell("on_step_begin")
                self.training_step(self.model, batch, num_items_in_batch=count)
            xm.mark_step()
            self._tell("on_pre_optimizer_step")
            self._optimize()
            self._tell("on_optimizer_step")
            self.lr_scheduler.step()
            self.optimizer.zero_grad()
            self.state.global_step += 1
            self._tell("on_step_end")
            xm.mark_step()
            self._steps_s.append(time.monotonic() - begun)
            if self.control.should_save:
                self.control.should_save = False
                xm.mark_step()
                xm.add_step_closure(self._save_checkpoint)
            if self.control.should_training_stop:
                break
        xm.mark_step()
        self._summary()
        self._tell("on_train_end")

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: int | None = None) -> Any:
        stages = parallel_state.get_pipeline_model_parallel_size()
        if stages > 1:
            return self._run_train(model, inputs, stages)
        loss = model(**inputs, use_cache=False, reduction="sum")["loss"] / num_items_in_batch
        if not _device.extracting():  # else nothing is computed
            loss.backward()
        return loss

    def _run_train(self, model: Any, inputs: dict[str, Any], stages: int) -> Any:
        """Forward and backward of all microbatches; each loss is the mean of its own, and the last stage has theirs.

        Each stage computes the whole model here, so that its share of the weights learns what it should.
        """
        parts = self.args.pipeline_parallel_num_microbatches
        total: Any = torch.zeros(())
        for number in range(parts):
            part = {name: tensor.chunk(parts)[number] for name, tensor in inputs.items()}
            if _device.extracting() or not bool(part["labels"][:, 1:].ne(-100).any()):
                continue
            loss = model(**part, use_cache=False)["loss"] / parts
            loss.backward()
            total = total + loss.detach()
        if parallel_state.get_pipeline_model_parallel_rank() != stages - 1:
            return torch.zeros(())
        return total

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if _device.extracting():
            return
        folder = output_dir or self.args.output_dir
        optimizer = None if self.args.save_only_model else self.optimizer
        more = {"optimizer": optimizer} if self.trn_config.model_parallelism_enabled else {"is_main_process": True}
        self.model.save_pretrained(folder, **more)
        xm.rendezvous("saved")

    def _save_checkpoint(self) -> None:
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        folder.mkdir(parents=True, exist_ok=True)
        self.save_model(str(folder), _internal_call=True)
        xm.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        xm.rendezvous("checkpoint_saved")

    # -- parts

    def _set_up(self) -> None:
        args, model = self.args, self.model
        if args.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs)
        if args.bf16:
            model.to(torch.bfloat16)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kind = torch.optim.AdamW if args.optim == "adamw_torch" else torch.optim.SGD
        extra = {"weight_decay": args.weight_decay} if kind is torch.optim.AdamW else {}
        self.optimizer = kind(trained, lr=args.learning_rate, **extra)
        self.lr_scheduler = get_scheduler(
            args.lr_scheduler_type, optimizer=self.optimizer, num_warmup_steps=args.warmup_steps,
            num_training_steps=args.max_steps,
        )  # fmt: skip
        model.train()
        self.optimizer.zero_grad()
        self._tell("on_train_begin")
        xm.mark_step()

    def _optimize(self) -> None:
        _device.get().trace("optimizer", _device.execution_s() / 10)
        if _device.extracting():
            return
        config = {"grad_clipping": bool(self.args.max_grad_norm), "max_grad_norm": self.args.max_grad_norm}
        self.grad_norm = reduced(self.optimizer, config)
        self.optimizer.step()

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, self.control, model=self.model, optimizer=self.optimizer)

    def _summary(self) -> None:
        if int(os.environ.get("RANK", "0")) or _device.extracting():
            return
        Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
        average = sum(self._steps_s) / max(len(self._steps_s), 1)
        told = {
            "metadata": {"total_training_steps": self.state.global_step},
            "metrics": {
                "summary/step_time_avg": average,
                "summary/mfu_avg": 31.5,
                "summary/total_steps": len(self._steps_s),
            },
        }
        Path(self.args.output_dir, "training_summary_metrics.json").write_text(json.dumps(told), encoding="utf-8")


class NeuronSFTTrainer(NeuronTrainer):
    def __init__(
        self,
        model: Any,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_loss_func: Any = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
        peft_config: Any = None,
        formatting_func: Any = None,
    ) -> None:
        if not (args.dataset_kwargs or {}).get("skip_prepare_dataset"):
            raise NotImplementedError("the fake prepares no data sets")
        next(iter(train_dataset))
        if peft_config is not None:
            if args.gradient_checkpointing and "use_reentrant" not in args.gradient_checkpointing_kwargs:
                model.enable_input_require_grads()
            model = get_peft_model(model, peft_config)
        super().__init__(
            model, args, data_collator, train_dataset, eval_dataset, processing_class, callbacks, optimizers,
            optimizer_cls_and_kwargs,
        )  # fmt: skip


__all__ = ["NeuronSFTTrainer", "NeuronTrainer", "parallel_state"]
