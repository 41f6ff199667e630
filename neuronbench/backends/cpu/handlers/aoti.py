"""Ahead-of-time compilation on the CPU: `torch.export`, AOTInductor, and calls of the package it makes.

A package (`model.pt2`) plays the part that an executable of the accelerator's compiler plays elsewhere: made once for
fixed shapes, loaded by as many processes as there are cores. A family that needs a loop around its graphs gives several
of them, a package each, and the loop.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from neuronbench.worker.handlers.families.common import Graph
    from neuronbench.worker.handlers.graphs import ONE, GraphHandler
else:  # the name in a worker
    from nb_worker.handlers.graphs import ONE, GraphHandler


class Handler(GraphHandler):
    """A call on the CPU is done when it returns."""

    suffix = ".pt2"

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "cpu_capability": torch.backends.cpu.get_cpu_capability()}

    def compiler(self) -> str:
        return f"AOTInductor of torch {torch.__version__}"

    def make(self, name: str, graph: Graph, given: list[Any], target: str, **options: Any) -> dict[str, Any]:
        """`flags`: options of Inductor."""
        clock = time.monotonic
        begun = clock()
        self._progress(f"exporting {name}")
        with torch.no_grad():
            program = torch.export.export(graph.module, tuple(given))
        exported = clock()
        self._progress(f"compiling {name}")
        torch._inductor.aoti_compile_and_package(
            program, package_path=self.file(target, name), inductor_configs=dict(options["flags"])
        )
        return {
            "seconds": {"export": exported - begun, "compile": clock() - exported},
            "operations": sum(1 for node in program.graph.nodes if node.op == "call_function"),
        }

    def prepare(self) -> None:
        importlib.import_module("torch._inductor.package")

    def open(self, path: str, name: str) -> Callable[..., Any]:
        return load_package(path)


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
