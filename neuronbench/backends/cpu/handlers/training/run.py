"""One rank's training of a job: a trainer of trl or transformers whose steps are timed and logged as they happen.

Steps are timed from where the trainer has its batches to where the loss is on the host; the loss of a step is the mean
over all ranks, so fetching it waits for all of them. What is logged was seen in the batches and the optimiser
themselves. Everything that draws at random is seeded, and only deterministic algorithms are used.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]
from nb_worker.training.order import order, shard  # type: ignore[import-not-found,unused-ignore]
from nb_worker.training.steplog import StepLog, StepTimer  # type: ignore[import-not-found,unused-ignore]

from ..common import Source
from . import data, model, state

BARRIER = "torch.cpu: synchronous, a call is done when it returns"
EVALUATION_ROWS = 8
"""Rows of one forward pass of an evaluation, at most; the loss does not depend on it."""


class Rig:
    """A model and data sets at hand: all that jobs have in common. One per process."""

    def __init__(
        self,
        progress: Callable[[str], None],
        *,
        source: dict[str, Any],
        model: str | None,
        datasets: dict[str, str],
        cache: str,
        root: str,
        threads: int,
    ) -> None:
        """`source`: of `common.Source`; `model`: the reference it is of; `datasets`: reference → file."""
        torch.set_num_threads(threads)
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and nothing here reads such memory
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.say, self.source, self.model = progress, Source(**source), model
        self._files, self._cache, self._root = datasets, Path(cache), Path(root)
        self._tokens: data.Tokens | None = None

    @property
    def tokens(self) -> data.Tokens:
        if self._tokens is None:
            self._tokens = model.tokenizer_of(self.source)
        return self._tokens

    def mind(self, job: dict[str, Any]) -> None:
        """Raise `ValueError` for a job of another model than the one that is here."""
        own: dict[str, Any] = {"model": self.model, "weights": self.source.weights, "weights_seed": self.source.seed}
        if not self.model:
            own["architecture"] = self.source.architecture
        for name, value in own.items():
            if job[name] != value:
                raise ValueError(f"{name}: this trainer was started with {value!r}, the job asks for {job[name]!r}")
        if job["optimizer"] not in model.OPTIMIZERS:
            known = ", ".join(model.OPTIMIZERS)
            raise ValueError(f"optimizer: expected one of {known}; found {job['optimizer']!r}")

    def prepare(self, job: dict[str, Any]) -> Path:
        """The folder of the job's arrays."""
        kind, _, name = job["dataset"].partition(":")
        source: dict[str, Any]
        if kind == "synthetic":
            source = {"synthetic": int(name)}
        elif job["dataset"] in self._files:
            source = {"path": self._files[job["dataset"]]}
        elif kind == "file":
            source = {"path": str(self._root / Path(name).expanduser())}
        else:
            raise ValueError(
                f"data set {job['dataset']!r} was not fetched when this trainer was started (it has "
                f"{', '.join(sorted(self._files))}); name it in the point's parameter dataset"
            )
        return data.prepare(job, source, self.tokens, self._cache, self.say)

    def data(self, job: dict[str, Any]) -> data.Prepared:
        return data.load(self.prepare(job), job["method"] in ("dpo", "orpo"))


class Items(torch.utils.data.Dataset):  # type: ignore[misc,unused-ignore]
    """Numbers of items, in the order in which a rank takes them."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, at: int) -> int:
        return self.indices[at]


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
        every = self.run.job["checkpoint_every"]
        control.should_save = bool(every) and state.global_step % every == 0  # not after the last step of itself
        if not self.run.step_ends(state.global_step):
            control.should_training_stop = True
            control.should_save = False


class Run:
    """One attempt of one rank at a job."""

    def __init__(
        self, rig: Rig, job: dict[str, Any], folder: Path, *, rank: int = 0, resume: Path | None = None
    ) -> None:
        self.rig, self.job, self.folder, self.rank, self._resume = rig, job, folder, rank, resume
        self.micro_losses: list[Any] = []
        self.grad_norm: Any = None
        self.learning_rate = 0.0
        self.restore_ns = 0
        self._masks: list[Any] = []
        self._resumed_from = self._last_step = 0
        self._reason, self._finite = "done", True
        self.prepared = rig.data(job)
        self._world = job["world_size"]
        per_step = job["batch_size"] * job["accumulation"] * self._world
        everyone = order(job["seed"], self.prepared.train.items, job["steps"] * per_step)
        self.indices = shard(everyone, rank=rank, world_size=self._world, batch_size=job["batch_size"])
        seed_all(job["seed"])
        rig.say(f"building {rig.model or 'the model'}")
        self._log: Any = None
        self._timer = StepTimer(lambda: None, name=BARRIER)
        self.trainer = model.trainer_of(job, rig.source, rig.tokens, folder, Measured, callbacks=[Steps(self)])
        self.trainer.run = self
        self.init_digest = state.digest(self.trainer.model)

    def train(self) -> dict[str, Any]:
        """To the end, or to a loss that is not finite. The log has an `end` then, and the final state is kept
        where all losses were finite."""
        if self._resume is not None and self._resume.name == f"checkpoint-{self.job['steps']}":
            raise ValueError(f"the checkpoint {self._resume} is of the last step: there is nothing left to train")
        if self.rank == 0:
            state.forget(self.folder)
        self._log = StepLog(self.folder, self.rank)
        try:
            self.trainer.train(resume_from_checkpoint=str(self._resume) if self._resume else None)
            trained = [p.detach().reshape(-1)[:1] for p in self.trainer.model.parameters() if p.requires_grad]
            torch.cat([each.float() for each in trained]).tolist()  # on the host, so there
            total = self._timer.total()
            self._evaluate(self._last_step)
            final = state.digest(self.trainer.model)
            if self.rank == 0 and self._finite:
                state.keep(self.trainer.model, self.folder)
            self._together()
            self._log.end(total, steps=self._last_step, reason=self._reason, final_digest=final)
        finally:
            self._log.close()
        return {"steps": self._last_step, "reason": self._reason, "final_digest": final}

    def described(self, optimizer: Any = None) -> dict[str, Any]:
        """What the start line says of model and data."""
        return {
            "parameters": model.parameters(self.trainer.model, optimizer),
            "dataset": {**self.prepared.facts, "consumed": self._to_consume()},
            "init_digest": self.init_digest,
            "recompute": self.job["recompute"],
            "attention": "causal",
            "trainer": type(self.trainer).__mro__[2].__name__,
            "optimizer": model.OPTIMIZERS[self.job["optimizer"]],
            "max_grad_norm": model.MAX_GRAD_NORM,
            "threads": torch.get_num_threads(),
        }

    # -- what the trainer tells

    def begin(self, optimizer: Any, step: int) -> None:
        self._resumed_from = self._last_step = step
        self._log.start(
            world_size=self._world, data_shard=[self.rank, self._world], barrier=BARRIER, resumed_from=step,
            job=self.job["digest"], **self.described(optimizer),
        )  # fmt: skip
        if not step:
            self._evaluate(0)

    def step_begins(self) -> None:
        if self.restore_ns:
            self._log.restore(self._resumed_from, self.restore_ns, time.monotonic_ns())
            self.restore_ns = 0
        self.micro_losses, self._masks, self.grad_norm = [], [], None
        self._timer.begin()

    def seen(self, inputs: dict[str, Any]) -> None:
        """A batch that is trained on."""
        self._masks += model.masks(inputs)

    def step_ends(self, step: int) -> bool:
        """Whether to go on."""
        timed = self._timer.finish(self._values)
        tokens = sum(int(mask.sum()) for mask in self._masks)
        self._log.step(
            step, timed, learning_rate=self.learning_rate, tokens=tokens,
            padding_tokens=sum(mask.numel() for mask in self._masks) - tokens,
            sequences=sum(len(mask) for mask in self._masks), micro_batches=len(self.micro_losses),
        )  # fmt: skip
        self._last_step = step
        if math.isfinite(timed.values["loss"]):
            return True
        self._finite = False
        if self.job["on_non_finite"] == "continue":
            return True
        self._reason = "non_finite"
        return False

    def _values(self) -> dict[str, float]:
        """Loss and norm of the gradient, on the host. Ranks of other data have other losses; the mean is the step's."""
        loss = torch.stack([each.float() for each in self.micro_losses]).sum()
        if self._world > 1:
            torch.distributed.all_reduce(loss)
            loss /= self._world
        norm = self.grad_norm
        return {"loss": loss.item(), "grad_norm": float(norm) if norm is not None else None}

    def saved(self, folder: Path, begin_ns: int) -> None:
        """A checkpoint was written: see it to the disk, seal it. All of that is its price."""
        self._together()
        told = None
        if self.rank == 0:
            state.sync(folder)
            told = state.seal(folder, self.trainer.state.global_step, self.job["digest"])
        self._together()
        if told is not None:
            self._log.checkpoint(
                told["step"], begin_ns, time.monotonic_ns(), size_bytes=told["bytes"], digest=told["digest"]
            )

    # -- parts

    def _evaluate(self, step: int) -> None:
        if self.rank == 0 and self.prepared.holdout.items:
            self.rig.say("evaluating the hold-out set")
            found = evaluate(self.trainer.model, self.prepared.holdout)
            self._log.evaluation(step, found.pop("loss"), found.pop("tokens"), name="holdout", **found)
        self._together()

    def _together(self) -> None:
        if self._world > 1:
            torch.distributed.barrier()

    def _to_consume(self) -> dict[str, int]:
        """What all ranks together see of the data in a whole run, by the order of items and their lengths alone."""
        split, job = self.prepared.train, self.job
        count = job["steps"] * job["batch_size"] * job["accumulation"] * self._world
        rows = split.rows(order(job["seed"], split.items, count))
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


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
