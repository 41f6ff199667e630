"""What handlers of compiled models share, whatever compiles: building the model, counting it, its reference, its calls.

A backend's own handler says how one graph is compiled (`make`) and loaded (`open`). Needs torch in the stack; the
families beside this need transformers.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .families.common import Built, Graph, Source, as_plain, as_tensor, count_flops, example

if TYPE_CHECKING:
    from collections.abc import Mapping

ONE = "model"
"""The graph of a model that is one graph."""


class GraphHandler:
    """See the README of `neuronbench/worker` for what a handler is."""

    synchronize: Callable[[], None] | None = None
    """None: a call is done when it returns."""
    suffix = ""
    """Of the file that a graph is kept in."""

    def __init__(self, progress: Callable[[str], None], threads: int, family: str) -> None:
        self._progress = progress
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self._family = importlib.import_module(f".families.{family}", __package__)
        self._model: Any = None
        self._outputs: list[str] = []
        self._eager: tuple[str, Built] | None = None

    # -- the backend's own

    def compiler(self) -> str:
        """Its name and version, for people."""
        raise NotImplementedError

    def make(self, name: str, graph: Graph, given: list[Any], target: str, **options: Any) -> dict[str, Any]:
        """Compile one graph, whose module has its type already, with inputs like `given`, to `self.file(target, name)`.

        Returns `seconds` by stage (`compile` among them; `export` where tracing is a stage of its own), `operations` of
        the graph (or None), and whatever else is to be known of it. `options` are those of the point.
        """
        raise NotImplementedError

    def open(self, path: str, name: str) -> Callable[..., Any]:
        """Load what `make` left at `path`."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Import what loading needs: imports are no part of loading."""

    # -- verbs

    def facts(self) -> dict[str, Any]:
        return {"torch": torch.__version__, "threads": torch.get_num_threads()}

    def compile(
        self, source: dict[str, Any], task: str, shape: dict[str, Any], dtype: str, target: str, **options: Any
    ) -> dict[str, Any]:
        """Make a file per graph in `target`; returns seconds by stage; what the model takes, gives and computes."""
        clock = time.monotonic
        begun = clock()
        self._progress("building the model")
        built = self._build(source, task, shape)
        graphs = built.graphs or {ONE: Graph(module=built.module, inputs=built.inputs)}
        flops = sum(graph.calls * count_flops(graph.module, example(graph.inputs)) for graph in graphs.values())
        seconds = {"build": clock() - begun}
        operations: list[int | None] = []
        parts: dict[str, Mapping[str, Any]] = {}
        for name, graph in graphs.items():
            graph.module.to(getattr(torch, dtype))
            told = dict(self.make(name, graph, example(graph.inputs, dtype), target, **options))
            for stage, took in told.pop("seconds").items():
                seconds[stage] = seconds.get(stage, 0.0) + took
            operations.append(told.pop("operations"))
            parts[name] = told
        return {
            "seconds": seconds,
            "inputs": built.inputs,
            "outputs": built.outputs,
            "per_item": built.per_item,
            "names": list(graphs),
            "loop": built.loop,
            "flops_per_call": flops,
            "graphs": len(graphs),
            "operations": None if None in operations else sum(each or 0 for each in operations),
            "model": built.facts,
            "compiler": self.compiler(),
            "parts": {name: told for name, told in parts.items() if told},
        }

    def load(
        self,
        folder: str,
        names: list[str],
        loop: dict[str, Any],
        inputs: list[dict[str, Any]],
        outputs: list[str],
    ) -> dict[str, Any]:
        """Load the graphs; returns what the model takes, and how long loading took without any import."""
        self.prepare()
        begun = time.monotonic()
        graphs = {name: self.open(self.file(folder, name), name) for name in names}
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

    # -- parts

    def file(self, folder: str, name: str) -> str:
        """Where a graph is kept."""
        return os.path.join(folder, f"{name}{self.suffix}")

    def _build(self, source: dict[str, Any], task: str, shape: dict[str, Any]) -> Built:
        built: Built = self._family.build(Source(**source), task, shape)
        return built
