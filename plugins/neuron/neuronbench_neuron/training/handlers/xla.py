"""The device as torch-xla shows it: its barrier, sums over ranks, what was compiled, and the run that leaves no
number."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch_xla  # type: ignore[import-not-found,unused-ignore]
import torch_xla.core.xla_model as xm  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.training import model, run, state  # type: ignore[import-not-found,unused-ignore]
from nb_worker.handlers.training.rig import Rig as BaseRig  # type: ignore[import-not-found,unused-ignore]
from neuronx_distributed.parallel_layers import parallel_state  # type: ignore[import-not-found,unused-ignore]

from . import barrier, graphs

EXTRACTING = "NEURON_EXTRACT_GRAPHS_ONLY"
"""Set by `neuron_parallel_compile`: graphs are collected and nothing is computed, so every value is garbage."""


def extracting() -> bool:
    return os.environ.get(EXTRACTING) == "1"


class Rig(BaseRig):  # type: ignore[misc,unused-ignore]
    """Model and data sets at hand, and how ranks are laid out."""

    def __init__(
        self,
        *given: Any,
        choices: dict[str, Any],
        cache_url: str,
        scratch: str,
        dtype: str,
        seeded: str | None = None,
        compiled: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """`seeded`: folder of weights that were drawn once for all ranks; `compiled`: what was compiled before."""
        super().__init__(*given, optimizers=("adamw", "sgd"), **more)
        self.choices, self.cache_url, self.scratch, self.dtype = choices, cache_url, scratch, dtype
        self.seeded, self.compiled = seeded, compiled or {}

    @property
    def weights(self) -> str:
        """The folder that the model is loaded from."""
        return self.seeded or str(self.source.path)


class Run(run.Run):  # type: ignore[misc,unused-ignore]
    """What all runs on Neuron have in common."""

    BARRIER = barrier.name()
    NO_HOLDOUT: Callable[[Any], str] | None = None

    def place(self) -> tuple[int, int]:
        return parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_size()

    def barrier(self) -> None:
        barrier.wait()

    def together(self) -> None:
        if self.world > 1:
            barrier.wait()
            torch.distributed.barrier()

    # -- a run that only collects graphs has no log

    def begin(self, optimizer: Any, step: int) -> None:
        self._graphs_at_first: set[str] | None = None
        if extracting():
            self._evaluate(0)
            return
        self.facts["compile"] = self.rig.compiled
        self.facts["backend"] = {**self.layout(), **self.told()}
        super().begin(optimizer, step)

    def step_begins(self) -> None:
        if not extracting():
            super().step_begins()

    def step_ends(self, step: int) -> bool:
        if extracting():
            self.values()
            self.last_step = step
            return True
        on = super().step_ends(step)
        if self._graphs_at_first is None and self.rank == 0:
            self._graphs_at_first = graphs.kept(self.rig.cache_url)
        return bool(on)

    def train(self) -> dict[str, Any]:
        if not extracting():
            return dict(super().train())
        self.go()
        self._evaluate(self.last_step)
        return {}

    def _evaluate(self, step: int) -> None:
        if not extracting():
            super()._evaluate(step)
        elif self.prepared.holdout.items:
            self.evaluated()

    def saved(self, folder: Path, begin_ns: int) -> None:
        if not extracting():
            super().saved(folder, begin_ns)

    def ended(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        compiled = graphs.grown(self._graphs_at_first, graphs.kept(self.rig.cache_url)) if self.rank == 0 else None
        if compiled is not None:
            found["compiles_in_window"] = compiled
        return found

    # -- facts

    def layout(self) -> dict[str, Any]:
        return {
            "tensor_parallel_size": parallel_state.get_tensor_model_parallel_size(),
            "pipeline_parallel_size": parallel_state.get_pipeline_model_parallel_size(),
            "data_parallel_size": parallel_state.get_data_parallel_size(),
            "neuron_cc_flags": os.environ.get("NEURON_CC_FLAGS", ""),
        }

    def told(self) -> dict[str, Any]:
        """More of it, by the library that trains."""
        return {}

    def digest(self) -> str:
        """Of what is trained alone, as this rank holds it: all of a large model would go through the host's bus."""
        return "" if extracting() else str(state.digest(self.model, trainable=True))

    def counted(self, optimizer: Any) -> dict[str, Any]:
        """Each rank counts what no rank before it has: shares of split parameters, and whole ones on the first."""
        tensor = parallel_state.get_tensor_model_parallel_size()
        stages = parallel_state.get_pipeline_model_parallel_size()
        first = parallel_state.get_tensor_model_parallel_rank() == 0

        def own(parameter: Any) -> bool:
            return first or bool(getattr(parameter, "tensor_model_parallel", False))

        found: dict[str, Any] = model.parameters(self.model, optimizer, own=own)
        found["tp_degree"] = tensor * stages
        return found

    # -- sums

    def mean(self, loss: Any) -> float:
        """Mean over the shares of the data of what each has, on the host; it is on the last stage of a pipeline."""
        groups = parallel_state.get_data_parallel_replica_groups()
        if parallel_state.get_data_parallel_size() > 1:
            loss = xm.all_reduce(xm.REDUCE_SUM, loss / parallel_state.get_data_parallel_size(), groups=groups)
        if parallel_state.get_pipeline_model_parallel_size() > 1:
            stages = parallel_state.get_pipeline_model_parallel_group(as_list=True)
            loss = xm.all_reduce(xm.REDUCE_SUM, loss, groups=stages)
        torch_xla.sync(wait=True)
        return float(loss.detach().to("cpu").item())

    def values(self) -> dict[str, float | None]:
        loss = torch.stack([each.detach().float() for each in self.micro_losses]).sum()
        norm = self.grad_norm
        if isinstance(norm, torch.Tensor):
            norm = norm.detach().to("cpu").item()
        return {"loss": self.mean(loss), "grad_norm": None if norm is None else float(norm)}

    def fetch(self) -> None:
        """A bit of each trained parameter to the host, in one graph."""
        trained = [p.detach().reshape(-1)[:1].float() for p in self.model.parameters() if p.requires_grad]
        torch.cat(trained).to("cpu").tolist()

    # -- the hold-out set

    def evaluated(self) -> dict[str, Any] | None:
        """Mean loss per token to be learnt, by the model on the device; all ranks see all of the set, because those
        that share a copy have to work together. Rows of padding fill the last batch: one graph is enough."""
        if parallel_state.get_pipeline_model_parallel_size() > 1:
            return None  # the schedule of stages trains, it does not evaluate
        split, size = self.prepared.holdout, int(self.job["batch_size"])
        device = xm.xla_device()
        total, tokens = 0.0, 0
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for at in range(0, split.items, size):
                    items = list(range(at, min(at + size, split.items)))
                    found = model.batch("full_sft", split, items + items[-1:] * (size - len(items)))
                    found["labels"][len(items) :] = -100
                    count = int((found["labels"][:, 1:] != -100).sum())
                    if not count:  # rows of a packed prompt alone: there is nothing to be learnt in them
                        continue
                    loss = self.loss_of({name: tensor.to(device) for name, tensor in found.items()})
                    torch_xla.sync(wait=True)
                    total += count * float(loss.detach().to("cpu").item())
                    tokens += count
        finally:
            self.model.train(training)
        return {"loss": total / tokens if tokens else float("nan"), "tokens": tokens}

    def loss_of(self, inputs: dict[str, Any]) -> Any:
        """Mean over a batch's tokens to be learnt."""
        return self.model(**inputs, use_cache=False)["loss"]
