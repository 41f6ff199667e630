"""`trace` and `analyze`: a graph of torch becomes a module that carries a NEFF, unless an operator forbids it."""

from __future__ import annotations

import io
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from . import _compiler, _placement, _runtime

UNSUPPORTED = ("aten::fft_fft", "aten::_fft_c2c", "aten::_fft_r2c", "aten::linalg_svd")
"""What the compiler cannot lower, whatever is ordered."""


@dataclass(kw_only=True)
class PartitionerConfig:
    """Accepted, and what it asks for is not done: nothing is put on the CPU here."""

    trace_kwargs: Any = None
    model_support_percentage_threshold: float = 0.5
    min_subgraph_size: int = -1
    max_subgraph_count: int = -1
    ops_to_partition: Any = None
    analyze_parameters: Any = None


class _Carrier(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """A NEFF and how it is loaded; calls go to the runtime's operator."""

    def __init__(self, neff: bytes, placement: list[int], alone: bool) -> None:
        super().__init__()
        self.register_buffer("neff", torch.frombuffer(bytearray(neff), dtype=torch.uint8))
        self.register_buffer("placement", torch.tensor(placement))
        self.alone = alone

    def forward(self, *inputs: Any) -> Any:
        outputs = torch.ops.neuron.forward_v2(list(inputs), self.neff, self.placement)
        return outputs[0] if self.alone else tuple(outputs)


def trace(
    func: Any,
    example_inputs: Any,
    *,
    input_output_aliases: Any = None,
    compiler_workdir: Any = None,
    compiler_args: Any = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> Any:
    """A ScriptModule on the device (with `cpu_backend` on none), for inputs of exactly these shapes.

    The real one swallows further positional arguments; here they are refused.
    """
    options = _compiler.parsed(compiler_args)
    if cpu_backend and "--target" not in options.values:
        raise ValueError("cpu_backend=True needs --target among the compiler's arguments")
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    graph, answer = _graph(func, inputs)
    lacking = [kind for kind in _operators(graph) if kind in _unsupported()]
    if lacking:
        _compiler.failed(f"Unsupported operator: {lacking[0].removeprefix('aten::')}", 70)
    told = {
        "inputs": [list(each.shape) for each in inputs],
        "outputs": [
            {"shape": list(each.shape), "dtype": str(each.dtype).removeprefix("torch.")} for each in _flat(answer)
        ],
    }
    saved = io.BytesIO()
    torch.jit.save(graph, saved)
    hlo = str(graph.inlined_graph).encode() + repr(told).encode()

    def make() -> bytes:
        work = Path(compiler_workdir) if compiler_workdir else Path(tempfile.mkdtemp(prefix="neuroncc_"))
        return _compiler.compiled(hlo, saved.getvalue(), told, options, work)

    through_cache = os.environ.get("NEURONBENCH_FAKE_TRACE_CACHE") == "1"
    neff = _compiler.cached(hlo, options, make) if through_cache else make()
    carrier = _Carrier(neff, _placement.current(), alone=isinstance(answer, torch.Tensor)).eval()
    with _runtime.answering(_flat(answer)):  # how many outputs the operator has is seen when it is traced
        traced = torch.jit.trace(carrier, inputs, check_trace=False)
    if not cpu_backend:
        _runtime.put(traced)
    return traced


def analyze(func: Any, example_inputs: Any, compiler_workdir: Any = None) -> dict[str, Any]:
    """Which operators of a graph the compiler can lower."""
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    graph, _ = _graph(func, inputs)
    counts = _operators(graph)
    refused = _unsupported()
    good = {kind: count for kind, count in counts.items() if kind not in refused}
    share = 100.0 * sum(good.values()) / max(sum(counts.values()), 1)
    return {
        "torch_neuronx_version": _compiler.__version__,
        "neuronx_cc_version": _compiler.COMPILER,
        "support_percentage": f"{share:.2f}%",
        "supported_operators": good,
        "unsupported_operators": [
            {"kind": kind, "failureAt": "neuronx-cc", "call": "model.py(1): forward\n", "opGraph": f"graph: {kind}\n"}
            for kind, count in counts.items()
            if kind in refused
            for _ in range(count)
        ],
    }


def _graph(func: Any, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    with torch.no_grad():
        answer = func(*(each.clone() for each in inputs))
        graph = torch.jit.trace(func, tuple(each.clone() for each in inputs), check_trace=False, strict=False)
    return graph, answer


def _operators(graph: Any) -> dict[str, int]:
    kinds = [node.kind() for node in graph.inlined_graph.nodes()]
    return dict(Counter(kind for kind in kinds if kind.startswith("aten::")))


def _unsupported() -> set[str]:
    told = os.environ.get("NEURONBENCH_FAKE_UNSUPPORTED", "")
    return {*UNSUPPORTED, *(name.strip() for name in told.split(",") if name.strip())}


def _flat(answer: Any) -> list[Any]:
    if isinstance(answer, torch.Tensor):
        return [answer]
    if not isinstance(answer, (tuple, list)) or not all(isinstance(each, torch.Tensor) for each in answer):
        raise TypeError("a traced function returns a tensor or a tuple of tensors")
    return list(answer)
