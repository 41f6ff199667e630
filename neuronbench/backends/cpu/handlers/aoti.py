"""Ahead-of-time compilation on the CPU: `torch.export`, AOTInductor, and calls of the package it makes.

A package (`model.pt2`) plays the part that an executable of the accelerator's compiler plays elsewhere: made once for
fixed shapes, loaded by as many processes as there are cores. A family that needs a loop around its graphs gives several
of them, a package each, and the loop.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .common import Built, Graph, Source, as_plain, as_tensor, count_flops, example

ONE = "model"
"""The graph of a model that is one graph."""


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
        """Make a package per graph in `target`; returns seconds by stage; what the model takes, gives and computes."""
        clock = time.monotonic
        seconds = {"build": 0.0, "export": 0.0, "compile": 0.0}
        begun = clock()
        self._progress("building the model")
        built = self._build(source, task, shape)
        graphs = built.graphs or {ONE: Graph(module=built.module, inputs=built.inputs)}
        flops = sum(graph.calls * count_flops(graph.module, example(graph.inputs)) for graph in graphs.values())
        seconds["build"] = clock() - begun
        operations = 0
        for name, graph in graphs.items():
            begun = clock()
            self._progress(f"exporting {name}")
            module = graph.module.to(getattr(torch, dtype))
            with torch.no_grad():
                program = torch.export.export(module, tuple(example(graph.inputs, dtype)))
            exported = clock()
            self._progress(f"compiling {name}")
            package = os.path.join(target, f"{name}.pt2")
            torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=dict(flags))
            seconds["export"] += exported - begun
            seconds["compile"] += clock() - exported
            operations += sum(1 for node in program.graph.nodes if node.op == "call_function")
        return {
            "seconds": seconds,
            "inputs": built.inputs,
            "outputs": built.outputs,
            "per_item": built.per_item,
            "names": list(graphs),
            "loop": built.loop,
            "flops_per_call": flops,
            "graphs": len(graphs),
            "operations": operations,
            "model": built.facts,
            "compiler": f"AOTInductor of torch {torch.__version__}",
        }

    def load(
        self,
        folder: str,
        names: list[str],
        loop: dict[str, Any],
        inputs: list[dict[str, Any]],
        outputs: list[str],
    ) -> dict[str, Any]:
        """Load the packages; returns what the model takes, and how long loading took without any import."""
        importlib.import_module("torch._inductor.package")  # imports are no part of loading
        begun = time.monotonic()
        graphs = {name: load_package(os.path.join(folder, f"{name}.pt2")) for name in names}
        self._model = self._family.loop(graphs, **loop) if loop else graphs[ONE]
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


def load_package(path: str) -> Callable[..., Any]:
    """A package as something to call.

    torch's own function first asks what this processor can do, and finds out by running the C++ compiler several times,
    which takes longer than all the rest; the artifact's key has the processor's flags already. Where the loader beneath
    it is not where it was, its own function will do.
    """
    try:
        from torch.export.pt2_archive._package import (  # type: ignore[import-not-found,unused-ignore]
            AOTICompiledModel,
        )

        loader = torch._C._aoti.AOTIModelPackageLoader(path, ONE, False, 1, -1)
    except (ImportError, AttributeError, TypeError):
        return torch._inductor.aoti_load_package(path)  # type: ignore[no-any-return,unused-ignore]
    return AOTICompiledModel(loader)  # type: ignore[no-any-return,unused-ignore]
