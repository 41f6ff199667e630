"""The verbs of a trainer's worker on Neuron: the worker itself holds no core; ranks do, and end with their run.

Before a run its graphs are collected and compiled in parallel (`neuron_parallel_compile`), by the same program with few
steps. What that program computes is garbage, so it cannot leave a number: it writes no step log, into a folder of its
own that is thrown away, under a variable that makes every step log refuse to be opened.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BEGUN = time.monotonic()

from nb_worker.handlers.families.common import Source  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
from nb_worker.handlers.training import model, state  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
from nb_worker.handlers.training.rig import Rig  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
from nb_worker.handlers.training.verbs import Trainer, first_words  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
from nb_worker.training.steplog import NO_NUMBERS  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

from . import graphs  # noqa: E402

TOOL = "neuron_parallel_compile"
STEPS = 2
"""Of the run that collects graphs: the second has what the first leaves."""
DISTRIBUTIONS = (
    "torch", "torch-xla", "torch-neuronx", "neuronx-cc", "libneuronxla", "neuronx-distributed", "optimum-neuron",
    "transformers", "trl", "peft", "accelerate",
)  # fmt: skip


class Launcher(Trainer):  # type: ignore[misc,unused-ignore]
    """A handler whose ranks are processes of their own, whatever their number."""

    def __init__(
        self,
        progress: Callable[[str], None],
        world_size: int,
        choices: dict[str, Any],
        cache_url: str,
        scratch: str,
        dtype: str,
        **rig: Any,
    ) -> None:
        # Not the base's: that would build the backend's rig here, and take the device away from the ranks.
        self._world_size = world_size
        self._cores: list[int] = []
        self._handlers = Path(__file__).parent
        self._choices, self._cache_url, self._scratch = choices, cache_url, Path(scratch)
        self._told: dict[str, Any] = {
            **rig,
            "choices": choices,
            "cache_url": cache_url,
            "scratch": scratch,
            "dtype": dtype,
        }
        self._rig = Rig(progress, optimizers=("adamw", "sgd"), **rig)
        self._import_s = time.monotonic() - _BEGUN

    def facts(self) -> dict[str, Any]:
        found: dict[str, str | None] = {}
        for name in DISTRIBUTIONS:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = None
        return {"import_s": self._import_s, "versions": found, "compile_cache": self._cache_url}

    def describe(self, job: dict[str, Any]) -> dict[str, Any]:
        """Model and data of the job, on the host: the device is for ranks."""
        self._rig.mind(job)
        built = model.build(self._rig.source, job["dtype"])
        if job["adapter"]:
            from peft import get_peft_model  # type: ignore[import-not-found,unused-ignore]

            built = get_peft_model(built, model.adapter_of(job))
        prepared = self._rig.data(job)
        return {"parameters": model.parameters(built), "dataset": prepared.facts, "recompute": job["recompute"]}

    @property
    def apart(self) -> bool:
        return True

    def spread(self, job: dict[str, Any], folder: Path, checkpoint: Path | None) -> dict[str, Any]:
        self._told["seeded"] = self._seeded()
        self._told["compiled"] = self._precompile(job) if self._choices["precompile"] else {"precompiled": False}
        told: dict[str, Any] = super().spread(job, folder, checkpoint)
        return {**told, "compile": self._told["compiled"]}

    def torchrun(self, job: dict[str, Any], *given: Any, more: Any = None, **told: Any) -> int:
        seed = {"NEURON_RT_STOCHASTIC_ROUNDING_SEED": str(job["seed"])}
        status: int = super().torchrun(job, *given, more={**seed, **(more or {})}, **told)
        return status

    # -- before a run

    def _precompile(self, job: dict[str, Any]) -> dict[str, Any]:
        """Collect and compile; what it took, and how much was there already."""
        tool = Path(sys.executable).parent / TOOL
        if not tool.is_file():
            found = shutil.which(TOOL)
            if found is None:
                raise FileNotFoundError(
                    f"{TOOL} is neither beside {sys.executable} nor on PATH: it comes with torch-neuronx; or set "
                    "precompile = false, and the first step compiles"
                )
            tool = Path(found)
        steps = min(job["steps"], STEPS)
        few = {**job, "steps": steps, "warmup_steps": min(job["warmup_steps"], steps)}
        few["checkpoint_every"] = 1 if job["checkpoint_every"] and steps > 1 else 0
        scratch = self._scratch / f"collect-{time.monotonic_ns()}"
        scratch.mkdir(parents=True)
        before = graphs.kept(self._cache_url)
        self._rig.say("collecting graphs and compiling them in parallel")
        begun = time.monotonic()
        try:
            status = self.torchrun(
                few, scratch, None, before=(str(tool),),
                more={NO_NUMBERS: "1"},
            )  # fmt: skip
            if status:
                raise RuntimeError(f"{first_words(scratch)}{TOOL} ended with status {status}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        after = graphs.kept(self._cache_url)
        return {
            "precompiled": True, "seconds": time.monotonic() - begun,
            "graphs_before": None if before is None else len(before), "graphs_compiled": graphs.grown(before, after),
        }  # fmt: skip

    def _seeded(self) -> str | None:
        """Seeded weights are drawn here, once, on the host: the same for every number of ranks and on every backend."""
        source: Source = self._rig.source
        if source.weights != "seeded":
            return None
        folder = self._scratch / "seeded"
        if not (folder / state.MANIFEST).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            built = model.build(source, str(self._told["dtype"]))
            built.save_pretrained(str(folder), safe_serialization=True)
            self._rig.tokens.tokenizer.save_pretrained(str(folder))
            (folder / state.MANIFEST).write_text(json.dumps({"seed": source.seed}), encoding="utf-8")
        return str(folder)
