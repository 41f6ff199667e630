"""Ahead-of-time compilation on the CPU: `torch.export`, AOTInductor, and calls of the package it makes.

The package (`model.pt2`) plays the part that an executable of the accelerator's compiler plays elsewhere: made once for
fixed shapes, loaded by as many processes as there are cores.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .common import Built, Source, as_plain, as_tensor, count_flops, example

PACKAGE = "model.pt2"


class Handler:
    """See the README of `neuronbench/worker` for what a handler is."""

    synchronize = None
    """A call on the CPU is done when it returns."""

    def __init__(self, progress: Callable[[str], None], threads: int, family: str) -> None:
        self._progress = progress
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self._family = importlib.import_module(f".{family}", __package__)
        self._model: Any = None
        self._outputs: list[str] = []
        self._eager: tuple[str, Built] | None = None

    def facts(self) -> dict[str, Any]:
        return {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }

    def compile(
        self, source: dict[str, Any], task: str, shape: dict[str, Any], dtype: str, flags: dict[str, Any], target: str
    ) -> dict[str, Any]:
        """Make `target/model.pt2`; returns seconds by stage and what the package takes, gives and computes."""
        clock = time.monotonic
        begun = clock()
        self._progress("building the model")
        built = self._build(source, task, shape)
        arguments = example(built.inputs)
        flops = count_flops(built.module, arguments)
        module = built.module.to(getattr(torch, dtype))
        ready = clock()
        self._progress("exporting")
        with torch.no_grad():
            program = torch.export.export(module, tuple(arguments))
        exported = clock()
        self._progress("compiling")
        package = os.path.join(target, PACKAGE)
        torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=dict(flags))
        done = clock()
        return {
            "seconds": {"build": ready - begun, "export": exported - ready, "compile": done - exported},
            "inputs": built.inputs,
            "outputs": built.outputs,
            "flops_per_call": flops,
            "graphs": 1,
            "operations": sum(1 for node in program.graph.nodes if node.op == "call_function"),
            "model": built.facts,
            "compiler": f"AOTInductor of torch {torch.__version__}",
        }

    def load(self, package: str, inputs: list[dict[str, Any]], outputs: list[str]) -> dict[str, Any]:
        """Load the package; returns what it takes, and how long loading took without any import."""
        importlib.import_module("torch._inductor.package")  # imports are no part of loading
        begun = time.monotonic()
        self._model = torch._inductor.aoti_load_package(package)
        self._outputs = outputs
        return {"inputs": inputs, "outputs": outputs, "seconds": time.monotonic() - begun}

    def step(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        if self._model is None:
            raise RuntimeError("nothing is loaded; `load` comes before calls")
        model, arguments = self._model, [as_tensor(given) for given in inputs.values()]
        return lambda: model(*arguments)

    def tensors(self, output: Any) -> dict[str, Any]:
        return {name: as_plain(tensor) for name, tensor in zip(self._outputs, output, strict=True)}

    def reference(
        self, inputs: dict[str, Any], source: dict[str, Any], task: str, shape: dict[str, Any]
    ) -> dict[str, Any]:
        """What the same weights answer in fp32 without any compilation; the model is built once for several batches."""
        asked = repr((source, task, shape))
        if self._eager is None or self._eager[0] != asked:
            self._eager = asked, self._build(source, task, shape)
        built = self._eager[1]
        with torch.inference_mode():
            answer = built.module(*(as_tensor(given) for given in inputs.values()))
        return {name: as_plain(tensor) for name, tensor in zip(built.outputs, answer, strict=True)}

    def _build(self, source: dict[str, Any], task: str, shape: dict[str, Any]) -> Built:
        built: Built = self._family.build(Source(**source), task, shape)
        return built
