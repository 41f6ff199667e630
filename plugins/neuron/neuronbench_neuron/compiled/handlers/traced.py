"""Models traced by `torch_neuronx` for fixed shapes: `model.pt`, which carries the NEFF, and the NEFF beside it.

`torch_neuronx` is imported where something is compiled or loaded and nowhere else: the worker of the reference, which
runs the same weights in fp32 on the host, must not take a core.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from neuronbench.worker.handlers.families.common import Graph
    from neuronbench.worker.handlers.graphs import GraphHandler
else:  # the name in a worker
    from nb_worker.handlers.graphs import GraphHandler

COMPILER = "neuronx-cc"
SEEN = (
    "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_LOGICAL_NC_CONFIG", "NEURON_CC_FLAGS",
    "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "NEURON_RT_STOCHASTIC_ROUNDING_EN", "NEURON_RT_EXEC_TIMEOUT",
)  # fmt: skip
"""Variables that change what is measured."""


class UnsupportedOperators(RuntimeError):
    """`torch_neuronx.analyze` says that the compiler cannot lower some of the model's operators."""


class Handler(GraphHandler):
    """A call is done when its outputs are on the host.

    `placement`: `cores` (the copy's own, one after the other), `data_parallel` (the batch split over `cores` of them by
    `torch_neuronx.DataParallel`), `multicore` (replicated; calls of one thread take turns). `loading`: `eager`, `lazy`
    or `async`.
    """

    suffix = ".pt"

    def __init__(
        self,
        progress: Callable[[str], None],
        threads: int,
        family: str,
        placement: str = "cores",
        cores: int = 1,
        num_workers: int | None = None,
        loading: str = "eager",
    ) -> None:
        super().__init__(progress, threads, family)
        self._placement, self._cores, self._num_workers, self._loading = placement, cores, num_workers, loading
        self._writes: dict[str, list[int]] = {}
        self._split = 1

    def facts(self) -> dict[str, Any]:
        """Versions, and what of the environment changes what is measured, as this process sees it."""
        return {
            **super().facts(),
            "torch_neuronx": _version("torch-neuronx"),
            "neuronx_cc": _version("neuronx-cc"),
            "environment": {name: os.environ[name] for name in SEEN if name in os.environ},
            "placement": self._placement,
            "cores": self._cores,
            "loading": self._loading,
        }

    def compiler(self) -> str:
        return f"{COMPILER} {_version('neuronx-cc') or 'of an unknown version'}"

    def make(self, name: str, graph: Graph, given: list[Any], target: str, **options: Any) -> dict[str, Any]:
        """`arguments`: of the compiler; `analyze`: look for operators it cannot lower first; `inline_weights`."""
        neuronx, clock = _torch_neuronx(), time.monotonic
        module = Returning(graph.module, graph.writes).eval() if graph.writes else graph.module
        work = tempfile.mkdtemp(prefix=f"{name}-")
        seconds: dict[str, float] = {}
        verdict: dict[str, Any] = {}
        if options["analyze"]:
            begun = clock()
            self._progress(f"asking whether {name} can be compiled")
            verdict = _verdict(neuronx.analyze(module, tuple(given), compiler_workdir=os.path.join(work, "analyze")))
            seconds["analyze"] = clock() - begun
            _refuse_unsupported(name, verdict)
        begun = clock()
        self._progress(f"compiling {name}")
        workdir = os.path.join(work, "trace")
        with torch.no_grad():
            traced = neuronx.trace(
                module,
                tuple(given),
                compiler_workdir=workdir,
                compiler_args=list(options["arguments"]),
                inline_weights_to_neff=bool(options["inline_weights"]),
            )
        seconds["compile"] = clock() - begun
        begun = clock()
        if self._loading == "lazy":
            neuronx.lazy_load(traced, True)  # before it is saved: it is saved with the file
        elif self._loading == "async":
            neuronx.async_load(traced, True)
        torch.jit.save(traced, self.file(target, name))
        told = _kept_neff(workdir, os.path.join(target, f"{name}.neff"))
        seconds["save"] = clock() - begun
        shutil.rmtree(work, ignore_errors=True)
        return {
            "seconds": seconds,
            "operations": sum(verdict["supported"].values()) if verdict else None,
            "neff": told,
            "analyze": verdict or None,
            "writes": list(graph.writes),
        }

    def prepare(self) -> None:
        _torch_neuronx()

    def load(  # type: ignore[override]
        self, *, writes: dict[str, list[int]], split: int = 1, inputs: list[dict[str, Any]], **arguments: Any
    ) -> dict[str, Any]:
        """`split`: parts of a call's batch, each of the compiled size; `inputs` are then of the whole batch."""
        self._writes, self._split = writes, split
        whole = [{**entry, "shape": [entry["shape"][0] * split, *entry["shape"][1:]]} for entry in inputs]
        return super().load(inputs=whole, **arguments)

    def open(self, path: str, name: str) -> Callable[..., Any]:
        neuronx = _torch_neuronx()
        model = torch.jit.load(path)
        if self._placement == "data_parallel":
            model = neuronx.DataParallel(model, device_ids=list(range(self._cores)), dim=0, set_dynamic_batching=False)
            if self._num_workers is not None:
                model.num_workers = self._num_workers
        elif self._placement == "multicore":
            _placing(neuronx, "set_multicore")(model)
        else:
            _placing(neuronx, "set_neuron_cores")(model, start_nc=0, nc_count=self._cores)
        written = self._writes.get(name)
        return _writing(model, written) if written else model  # type: ignore[no-any-return,unused-ignore]

    def step(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        """The runtime may return before the device is done; only what is on the host is known to be finished."""
        call = super().step(inputs)
        return lambda: [output.cpu() for output in call()]


class Returning(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """A graph that writes to its inputs, for a compiler whose graphs have outputs only: they are outputs, too."""

    def __init__(self, module: Any, writes: Sequence[int]) -> None:
        super().__init__()
        self.module, self.writes = module, tuple(writes)

    def forward(self, *inputs: Any) -> Any:
        return (*self.module(*inputs), *(inputs[index] for index in self.writes))


def _writing(model: Any, writes: Sequence[int]) -> Callable[..., Any]:
    """The other half of `Returning`: what was to be written is, on the host."""

    def call(*inputs: Any) -> Any:
        outputs = tuple(model(*inputs))
        for index, value in zip(writes, outputs[-len(writes) :], strict=True):
            inputs[index].copy_(value)
        return outputs[: -len(writes)]

    return call


def _torch_neuronx() -> Any:
    return importlib.import_module("torch_neuronx")


def _placing(neuronx: Any, name: str) -> Any:
    """A function that places models: its older name is in `experimental`."""
    found = getattr(neuronx, name, None)
    return found if found is not None else getattr(importlib.import_module("torch_neuronx.experimental"), name)


def _verdict(told: dict[str, Any]) -> dict[str, Any]:
    """What `analyze` says, without its dumps of graphs."""
    unsupported = [
        {name: entry.get(name) for name in ("kind", "failureAt", "call")}
        for entry in told.get("unsupported_operators") or ()
    ]
    return {
        "support": told.get("support_percentage"),
        "supported": dict(told.get("supported_operators") or {}),
        "unsupported": unsupported,
        "neuronx_cc": told.get("neuronx_cc_version"),
    }


def _refuse_unsupported(name: str, verdict: dict[str, Any]) -> None:
    kinds = sorted({str(entry["kind"]) for entry in verdict["unsupported"]})
    if kinds:
        first = verdict["unsupported"][0]
        where = " ".join(str(first["call"] or "").split())[:200]
        raise UnsupportedOperators(
            f"Unsupported operator: {', '.join(kinds)} in {name}: torch_neuronx.analyze supports {verdict['support']} "
            f"of its operators (at {first['failureAt']}{', ' + where if where else ''}); nothing was compiled"
        )


def _kept_neff(workdir: str, path: str) -> dict[str, Any] | None:
    """The largest NEFF of the compiler's folder, copied to `path`, with its hash; None where it has left none."""
    found = [os.path.join(parent, each) for parent, _, names in os.walk(workdir) for each in names]
    neffs = [each for each in found if each.endswith(".neff")]
    if not neffs:
        return None
    largest = max(neffs, key=os.path.getsize)
    shutil.copyfile(largest, path)
    state = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            state.update(piece)
    return {"bytes": os.path.getsize(path), "sha256": state.hexdigest(), "executables": len(neffs)}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
