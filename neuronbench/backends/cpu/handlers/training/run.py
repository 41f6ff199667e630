"""One rank's training of a job on the CPU: a trainer of trl or transformers, watched.

Everything that draws at random is seeded, and only deterministic algorithms are used.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.training import model, rig, run, state  # type: ignore[import-not-found,unused-ignore]

from . import trl_trainers

Items, Steps = run.Items, run.Steps


class Rig(rig.Rig):  # type: ignore[misc,unused-ignore]
    """See `nb_worker.handlers.training.rig`; here what is computed twice is the same twice."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, optimizers=tuple(trl_trainers.OPTIMIZERS), **more)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and nothing here reads such memory


class Measured:
    """Goes before a trainer's class: the batches are ours, and what happens to them is noted."""

    run: Run
    model: Any
    state: Any

    def get_train_dataloader(self) -> Any:
        run = self.run
        return torch.utils.data.DataLoader(
            Items(run.indices),
            batch_size=run.job["batch_size"],
            shuffle=False,
            collate_fn=lambda items: model.batch(run.job["method"], run.prepared.train, items),
        )

    def training_step(self, model: Any, inputs: Any, *more: Any, **given: Any) -> Any:
        self.run.seen(inputs)
        loss = super().training_step(model, inputs, *more, **given)  # type: ignore[misc]
        self.run.micro_losses.append(loss)
        return loss

    def _get_grad_norm(self, *given: Any, **more: Any) -> Any:
        self.run.grad_norm = super()._get_grad_norm(*given, **more)  # type: ignore[misc]
        return self.run.grad_norm

    def _load_from_checkpoint(self, folder: str, model: Any = None) -> None:
        self.run.restore_ns = time.monotonic_ns()
        state.check(Path(folder))
        super()._load_from_checkpoint(folder, model)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        begin_ns = time.monotonic_ns()
        # Not trl's own, which writes a model card each time.
        transformers.Trainer._save_checkpoint(self, model, trial)
        self.run.saved(Path(self.run.folder, state.CHECKPOINTS, f"checkpoint-{self.state.global_step}"), begin_ns)


class Run(run.Run):  # type: ignore[misc,unused-ignore]
    """One attempt of one rank at a job; see `nb_worker.handlers.training.run`."""

    BARRIER = "torch.cpu: synchronous, a call is done when it returns"

    def build(self) -> Any:
        trainer = trl_trainers.trainer_of(
            self.job, self.rig.source, self.rig.tokens, self.folder, Measured, callbacks=[Steps(self)]
        )
        trainer.run = self
        self.facts["trainer"] = type(trainer).__mro__[2].__name__
        self.facts["optimizer"] = trl_trainers.OPTIMIZERS[self.job["optimizer"]]
        return trainer

    def barrier(self) -> None:
        """Nothing to wait for."""

    def go(self) -> None:
        self.trainer.train(resume_from_checkpoint=str(self.resume) if self.resume else None)

    def values(self) -> dict[str, float | None]:
        """Ranks of other data have other losses; the mean is the step's."""
        loss = torch.stack([each.float() for each in self.micro_losses]).sum()
        if self.world > 1:
            torch.distributed.all_reduce(loss)
            loss /= self.world
        return {"loss": loss.item(), "grad_norm": float(self.grad_norm) if self.grad_norm is not None else None}

    def together(self) -> None:
        if self.world > 1:
            torch.distributed.barrier()
