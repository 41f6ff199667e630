"""One rank's training of a job, told as it happens: what every backend's trainer leaves in its log.

Steps are timed from where the trainer has its batches to where the loss is on the host; the loss of a step is the mean
over all ranks, so fetching it waits for all of them. What is logged was seen in the batches and the optimiser
themselves. A backend makes a `Run` of its own: the trainer, the device's barrier, who holds which data.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]

from ...training.order import order, shard
from ...training.steplog import StepLog, StepTimer
from . import data, model, state
from .rig import Rig, seed_all

EVALUATION_ROWS = 8
"""Rows of one forward pass of an evaluation, at most; the loss does not depend on it."""


class Items(torch.utils.data.Dataset):  # type: ignore[misc,unused-ignore]
    """Numbers of items, in the order in which a rank takes them."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, at: int) -> int:
        return self.indices[at]


class Steps(transformers.TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Tells the run when steps begin and end."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.begin(given["optimizer"], state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.step_begins()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.learning_rate = float(given["optimizer"].param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        control.should_save = self.run.to_save(state.global_step)
        if not self.run.step_ends(state.global_step):
            control.should_training_stop = True
            control.should_save = False


class Run:
    """One attempt of one rank at a job. A backend's own says where the model and its trainer come from."""

    BARRIER = ""
    """Name of the device's barrier."""

    def __init__(
        self, rig: Rig, job: dict[str, Any], folder: Path, *, rank: int = 0, resume: Path | None = None
    ) -> None:
        self.rig, self.job, self.folder, self.rank, self.resume = rig, job, folder, rank, resume
        self.micro_losses: list[Any] = []
        self.grad_norm: Any = None
        self.learning_rate = 0.0
        self.restore_ns = 0
        self.facts: dict[str, Any] = {}
        """More for the start line: what is of this backend alone."""
        self._masks: list[Any] = []
        self.resumed_from = self.last_step = 0
        self._reason, self._finite = "done", True
        self.prepared = rig.data(job)
        self.world = job["world_size"]
        seed_all(job["seed"])
        self.set_up()
        self.shard, self.shards = self.place()
        everyone = order(job["seed"], self.prepared.train.items, self._count())
        self.indices = shard(everyone, rank=self.shard, world_size=self.shards, batch_size=job["batch_size"])
        rig.say(f"building {rig.model or 'the model'}")
        self._log: Any = None
        self._timer = StepTimer(self.barrier, name=self.BARRIER)
        self.trainer = self.build()
        self.init_digest = self.digest()

    # -- what a backend says

    def set_up(self) -> None:
        """Before anything else: groups of ranks, for one."""

    def place(self) -> tuple[int, int]:
        """Which share of the data this rank trains on, and how many there are."""
        return self.rank, int(self.world)

    def build(self) -> Any:
        """The trainer, with the model at `.model`."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Return when the device has finished all that it was given."""
        raise NotImplementedError

    def go(self) -> None:
        """Train from the beginning, or from the checkpoint `resume`."""
        raise NotImplementedError

    def fetch(self) -> None:
        """A bit of each trained parameter to the host: then all of it is computed, whatever the barrier says."""
        trained = [p.detach().reshape(-1)[:1] for p in self.model.parameters() if p.requires_grad]
        torch.cat([each.float() for each in trained]).tolist()

    def values(self) -> dict[str, float | None]:
        """Loss and norm of the gradient of the step, on the host; the loss the mean over all shares of the data."""
        raise NotImplementedError

    def together(self) -> None:
        """Wait for all ranks."""

    def evaluated(self) -> dict[str, Any] | None:
        """`loss`, `tokens` and more of the hold-out set by the model as it is, by all ranks; None where this cannot be
        computed."""
        return evaluate(self.model, self.prepared.holdout) if self.rank == 0 else {}

    def counted(self, optimizer: Any) -> dict[str, Any]:
        """Parameters, as this rank holds them."""
        return model.parameters(self.model, optimizer)

    def digest(self) -> str:
        return state.digest(self.model)

    def keep(self) -> None:
        """Leave the trained state in the folder. Asked of all ranks."""
        if self.rank == 0:
            state.keep(self.model, self.folder)

    def ended(self) -> dict[str, Any]:
        """More for the end line."""
        return {}

    # -- the run

    @property
    def model(self) -> Any:
        return self.trainer.model

    def train(self) -> dict[str, Any]:
        """To the end, or to a loss that is not finite. The log has an `end` then, and the final state is kept
        where all losses were finite."""
        if self.resume is not None and self.resume.name == f"checkpoint-{self.job['steps']}":
            raise ValueError(f"the checkpoint {self.resume} is of the last step: there is nothing left to train")
        if self.rank == 0:
            state.forget(self.folder)
        self._log = StepLog(self.folder, self.rank)
        try:
            self.go()
            self.fetch()
            total = self._timer.total()
            self._evaluate(self.last_step)
            final = self.digest()
            if self._finite:
                self.keep()
            self.together()
            more = self.ended()
            self._log.end(total, steps=self.last_step, reason=self._reason, final_digest=final, **more)
        finally:
            self._log.close()
        return {"steps": self.last_step, "reason": self._reason, "final_digest": final}

    def described(self, optimizer: Any = None) -> dict[str, Any]:
        """What the start line says of model and data."""
        return {
            "parameters": self.counted(optimizer),
            "dataset": {**self.prepared.facts, "consumed": self._to_consume()},
            "init_digest": self.init_digest,
            "recompute": self.job["recompute"],
            "attention": "causal",
            "max_grad_norm": model.MAX_GRAD_NORM,
            "threads": torch.get_num_threads(),
            **self.facts,
        }

    # -- what the trainer tells

    def begin(self, optimizer: Any, step: int) -> None:
        self.resumed_from = self.last_step = step
        self._log.start(
            world_size=self.world, data_shard=[self.shard, self.shards], barrier=self.BARRIER, resumed_from=step,
            job=self.job["digest"], **self.described(optimizer),
        )  # fmt: skip
        if not step:
            self._evaluate(0)

    def step_begins(self) -> None:
        if self.restore_ns:
            self._log.restore(self.resumed_from, self.restore_ns, time.monotonic_ns())
            self.restore_ns = 0
        self.micro_losses, self._masks, self.grad_norm = [], [], None
        self._timer.begin()

    def seen(self, inputs: dict[str, Any]) -> None:
        """A batch that is trained on, on the host."""
        self._masks += model.masks(inputs)

    def to_save(self, step: int) -> bool:
        """Whether a checkpoint is due after a step; not after the last of itself."""
        every = self.job["checkpoint_every"]
        return bool(every) and step % every == 0

    def step_ends(self, step: int) -> bool:
        """Whether to go on."""
        timed = self._timer.finish(self.values)
        tokens = sum(int(mask.sum()) for mask in self._masks)
        self._log.step(
            step, timed, learning_rate=self.learning_rate, tokens=tokens,
            padding_tokens=sum(mask.numel() for mask in self._masks) - tokens,
            sequences=sum(len(mask) for mask in self._masks), micro_batches=len(self.micro_losses),
        )  # fmt: skip
        self.last_step = step
        if math.isfinite(timed.values["loss"]):
            return True
        self._finite = False
        if self.job["on_non_finite"] == "continue":
            return True
        self._reason = "non_finite"
        return False

    def saved(self, folder: Path, begin_ns: int) -> None:
        """A checkpoint was written: see it to the disk, seal it. All of that is its price."""
        self.together()
        told = None
        if self.rank == 0:
            state.sync(folder)
            told = state.seal(folder, self.last_step, self.job["digest"])
        self.together()
        if told is not None:
            self._log.checkpoint(
                told["step"], begin_ns, time.monotonic_ns(), size_bytes=told["bytes"], digest=told["digest"]
            )

    # -- parts

    def _evaluate(self, step: int) -> None:
        if self.prepared.holdout.items:
            begin_ns = time.monotonic_ns()
            self.rig.say("evaluating the hold-out set")
            found = self.evaluated()
            if found and self.rank == 0:
                loss, tokens = found.pop("loss"), found.pop("tokens")
                span = {"begin_ns": begin_ns, "end_ns": time.monotonic_ns()}
                self._log.evaluation(step, loss, tokens, name="holdout", **span, **found)
        self.together()

    def _count(self) -> int:
        """Items of a whole run, over all shares of the data."""
        per_step = self.job["batch_size"] * self.job["accumulation"] * self.shards
        return int(self.job["steps"] * per_step)

    def _to_consume(self) -> dict[str, int]:
        """What all ranks together see of the data in a whole run, by the order of items and their lengths alone."""
        split = self.prepared.train
        rows = split.rows(order(self.job["seed"], split.items, self._count()))
        tokens = int(split.lengths[rows].astype(np.int64).sum())
        return {"sequences": len(rows), "tokens": tokens, "padding_tokens": len(rows) * split.ids.shape[1] - tokens}


def evaluate(trained: Any, split: data.Split) -> dict[str, Any]:
    """Mean loss per token to be learnt. Of pairs that of the answers chosen, and the share of pairs in which the
    chosen answer's tokens are, on average, likelier than the rejected one's."""
    sums: list[float] = []
    counts: list[int] = []
    training = trained.training
    trained.eval()
    try:
        with torch.inference_mode():
            for at in range(0, len(split.ids), EVALUATION_ROWS):
                where = slice(at, at + EVALUATION_ROWS)
                ids = torch.from_numpy(split.ids[where]).long()
                mask = (torch.arange(ids.shape[1])[None, :] < torch.from_numpy(split.lengths[where])[:, None]).long()
                labels = torch.where(torch.from_numpy(split.loss[where]).bool(), ids, -100)[:, 1:]
                logits = trained(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
                losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
                sums += losses.double().sum(1).tolist()
                counts += (labels != -100).sum(1).tolist()
    finally:
        trained.train(training)
    each = split.rows_per_item
    tokens = sum(counts[::each])
    found = {"loss": sum(sums[::each]) / tokens if tokens else math.nan, "tokens": tokens}
    if each == 2:
        means = [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)]
        better = sum(chosen < rejected for chosen, rejected in zip(means[::2], means[1::2], strict=True))
        found["preferred"] = better / split.items
    return found
