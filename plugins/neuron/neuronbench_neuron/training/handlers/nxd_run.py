"""One rank's training through neuronx-distributed: its parallel layers, model, optimizer and checkpoints, our own loop.

Written to the interfaces of neuronx-distributed 0.18 (commit fbac349). Linear layers of attention and of the
feed-forward part are split over the cores that share a model; embeddings, norms and the output stay whole on each.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import neuronx_distributed as nxd  # type: ignore[import-not-found,unused-ignore]
import torch  # type: ignore[import-not-found,unused-ignore]
import torch_xla.core.xla_model as xm  # type: ignore[import-not-found,unused-ignore]
import torch_xla.distributed.xla_backend  # type: ignore[import-not-found,unused-ignore]  # noqa: F401 - registers "xla"
import transformers  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.training import model, state  # type: ignore[import-not-found,unused-ignore]
from neuronx_distributed.parallel_layers import (  # type: ignore[import-not-found,unused-ignore]
    layers,
    parallel_state,
)

from . import xla

Rig = xla.Rig
OPTIMIZERS: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")


class Held:
    """What a run calls a trainer: the model."""

    def __init__(self, trained: Any) -> None:
        self.model = trained


class Run(xla.Run):
    """One attempt of one rank at a job."""

    def set_up(self) -> None:
        torch.distributed.init_process_group("xla")
        choices = self.rig.choices
        clipping = {"grad_clipping": True, "max_grad_norm": model.MAX_GRAD_NORM}
        self.config = nxd.neuronx_distributed_config(
            tensor_parallel_size=choices["tensor_parallel_size"],
            optimizer_config={"zero_one_enabled": choices["zero_1"], **clipping},
            activation_checkpoint_config="full" if self.job["recompute"] else None,
        )

    def build(self) -> Any:
        self.facts["trainer"] = "neuronx_distributed"
        self.facts["optimizer"] = OPTIMIZERS[self.job["optimizer"]].__name__
        held = Held(nxd.initialize_parallel_model(self.config, lambda: built(self.rig.weights, self.job["dtype"])))
        trained = [parameter for parameter in held.model.parameters() if parameter.requires_grad]
        extra = {"weight_decay": 0.0} if self.job["optimizer"] == "adamw" else {}
        self.optimizer = nxd.initialize_parallel_optimizer(
            self.config, OPTIMIZERS[self.job["optimizer"]], trained, lr=self.job["learning_rate"], **extra
        )
        return held

    def told(self) -> dict[str, Any]:
        return {"zero_1": self.config["optimizer_config"]["zero_one_enabled"]}

    def go(self) -> None:
        first = 0
        if self.resume is not None:
            self.restore_ns = time.monotonic_ns()
            state.check(self.resume)
            told = nxd.load_checkpoint(
                str(self.resume.parent), tag=self.resume.name, model=self.model, optimizer=self.optimizer
            )
            first = int(told["step"])
        self.model.train()
        self.begin(self.optimizer, first)
        micro, each = int(self.job["accumulation"]), int(self.job["batch_size"])
        device = xm.xla_device()
        for step in range(first + 1, self.job["steps"] + 1):
            at = (step - 1) * micro * each
            batches = [
                model.batch(self.job["method"], self.prepared.train, self.indices[at + n * each : at + (n + 1) * each])
                for n in range(micro)
            ]
            counted = sum(int((batch["labels"] != -100).sum()) for batch in batches)
            ready = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
            self.learning_rate = rate(self.job, step)
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate
            self.step_begins()
            for batch, inputs in zip(batches, ready, strict=True):
                self.seen(batch)
                loss = self.model(**inputs, use_cache=False, num_items_in_batch=counted).loss
                loss.backward()
                xm.mark_step()
                self.micro_losses.append(loss.detach())
            self.optimizer.step()
            self.grad_norm = self.optimizer.grad_norm
            self.optimizer.zero_grad()
            on = self.step_ends(step)
            if not on:
                return
            if self.to_save(step):
                self._save(step)

    def _save(self, step: int) -> None:
        begin_ns = time.monotonic_ns()
        folder, tag = self.folder / state.CHECKPOINTS, f"checkpoint-{step}"
        nxd.save_checkpoint(
            str(folder), tag=tag, model=self.model, optimizer=self.optimizer, user_content={"step": step}, use_xser=True
        )
        self.saved(folder / tag, begin_ns)

    def keep(self) -> None:
        """Each share of the first copy is written by its rank; the first rank joins them."""
        making, shares = self.folder / f".{state.FINAL}", self.folder / ".shares"
        shares.mkdir(exist_ok=True)
        if parallel_state.get_data_parallel_rank() == 0:
            held = {name: parameter.detach().to("cpu") for name, parameter in self.model.named_parameters()}
            dims = {
                name: int(parameter.partition_dim)
                for name, parameter in self.model.named_parameters()
                if getattr(parameter, "tensor_model_parallel", False)
            }
            rank = parallel_state.get_tensor_model_parallel_rank()
            torch.save({"parameters": held, "dims": dims}, shares / f"{rank}.pt")
        self.together()
        if self.rank == 0:
            joined(shares, self.rig.weights, self.job["dtype"], making)
            making.rename(self.folder / state.FINAL)


def built(folder: str, dtype: str) -> Any:
    """The model with its linear layers split; each rank keeps its share."""
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    whole.config.use_cache = False
    size, rank = parallel_state.get_tensor_model_parallel_size(), parallel_state.get_tensor_model_parallel_rank()
    if size == 1:
        return whole
    for parent in list(whole.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear) and name in (*COLUMNS, *ROWS):
                setattr(parent, name, _split(child, name in COLUMNS, size, rank))
    return whole


def _split(whole: Any, columns: bool, size: int, rank: int) -> Any:
    given = {"bias": whole.bias is not None, "dtype": whole.weight.dtype}
    if columns:
        made = layers.ColumnParallelLinear(whole.in_features, whole.out_features, gather_output=False, **given)
    else:
        made = layers.RowParallelLinear(whole.in_features, whole.out_features, input_is_parallel=True, **given)
    dim = 0 if columns else 1
    with torch.no_grad():
        made.weight.copy_(whole.weight.chunk(size, dim=dim)[rank])
        if whole.bias is not None:
            made.bias.copy_(whole.bias.chunk(size)[rank] if columns else whole.bias)
    return made


def joined(shares: Path, folder: str, dtype: str, into: Path) -> None:
    """The whole model of its shares, as any library reads it; the shares are removed."""
    found = [torch.load(path, weights_only=True) for path in sorted(shares.glob("*.pt"), key=lambda p: int(p.stem))]
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    dims = found[0]["dims"]
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parts = [each["parameters"][name] for each in found]
            parameter.copy_(torch.cat(parts, dim=dims[name]) if name in dims else parts[0])
    whole.save_pretrained(str(into), safe_serialization=True)
    for path in shares.iterdir():
        path.unlink()
    shares.rmdir()


def rate(job: dict[str, Any], step: int) -> float:
    """Of a step, counted from 1: it rises from 0 over `warmup_steps`, and stays."""
    warm = job["warmup_steps"]
    return float(job["learning_rate"] * (min((step - 1) / warm, 1.0) if warm else 1.0))
