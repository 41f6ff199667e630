"""`neuronxcc.nki` on numpy: kernels run as they are written, tile by tile; times are the host's and say nothing.

Arguments that the documented functions do not have are refused. What is to go wrong is ordered by variables:

| variable | what it does |
|---|---|
| `NEURONBENCH_FAKE_NKI_SIMULATED` | factor: the simulator's answers come out so much larger |
| `NEURONBENCH_FAKE_WRONG` | factor: the device's answers do |
| `NEURONBENCH_FAKE_COMPILE_ERROR` | `[STATUS:]TEXT`: the compiler says TEXT and ends with STATUS (70) |
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy

if not os.environ.get("NEURONBENCH_NEURON_ROOT"):
    raise ImportError(
        "this neuronxcc is a fake for made-up hosts, and this host is not one: NEURONBENCH_NEURON_ROOT is not set"
    )

_BAREMETAL = {"save_neff_name", "save_trace_name", "additional_compile_opt", "artifacts_dir"}
_BENCHMARK = {*_BAREMETAL, "warmup", "iters", "device_count"}


class Kernel:
    """A function that `jit` has been told of. Called without a device or a simulator it refuses, as outside a graph."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        self.func_name = func.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a kernel is called by a framework, by simulate_kernel, baremetal or benchmark")


def jit(func: Any = None, **kwargs: Any) -> Any:
    """Marks a kernel."""
    return Kernel(func) if func is not None else lambda kernel: Kernel(kernel)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel's answer by the simulator; arrays of numpy only."""
    return _run(kernel, args, kwargs) * float(os.environ.get("NEURONBENCH_FAKE_NKI_SIMULATED") or 1.0)


class _OnDevice:
    def __init__(self, kernel: Any, options: dict[str, Any]) -> None:
        self.kernel, self.options = kernel, options
        self.benchmark_result: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch_neuronx import (  # type: ignore[import-not-found,unused-ignore]
            _compiler,
            _runtime,
        )

        order = os.environ.get("NEURONBENCH_FAKE_COMPILE_ERROR")
        if order:
            status, colon, text = order.partition(":")
            told = colon and status.lstrip("-").isdigit()
            _compiler.failed(text if told else order, int(status) if told else 70)
        _compiler.parsed(self.options.get("additional_compile_opt"))
        _runtime.Device.get()
        if self.options.get("save_neff_name"):
            with open(self.options["save_neff_name"], "wb") as file:
                file.write(_runtime.packed({"kernel": self.kernel.func_name, "compiler": _compiler.COMPILER}, b""))
        return _run(self.kernel, args, kwargs) * float(os.environ.get("NEURONBENCH_FAKE_WRONG") or 1.0)


class _Latency:
    def __init__(self, durations_us: list[float]) -> None:
        self._sorted = sorted(durations_us)

    def get_latency_percentile(self, percentile: float) -> float:
        """In µs."""
        return self._sorted[min(int(len(self._sorted) * percentile / 100), len(self._sorted) - 1)]


class _Result:
    def __init__(self, latency: _Latency) -> None:
        self.nc_latency = latency


class _Benchmark(_OnDevice):
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        super().__call__(*args, **kwargs)
        durations = []
        for index in range(self.options.get("warmup", 10) + self.options.get("iters", 100)):
            begun = time.perf_counter_ns()
            _run(self.kernel, args, kwargs)
            if index >= self.options.get("warmup", 10):
                durations.append((time.perf_counter_ns() - begun) / 1e3)
        self.benchmark_result = _Result(_Latency(durations))
        print(f"Latency (P50): {self.benchmark_result.nc_latency.get_latency_percentile(50)}", file=sys.stderr)


def baremetal(kernel: Any = None, **kwargs: Any) -> Any:
    """The kernel compiled and run on the device, without a framework."""
    _known("baremetal", kwargs, _BAREMETAL)
    return _OnDevice(kernel, kwargs) if kernel is not None else lambda given: _OnDevice(given, kwargs)


def benchmark(kernel: Any = None, **kwargs: Any) -> Any:
    """The same in a loop: `benchmark_result.nc_latency.get_latency_percentile(p)` afterwards; no answer."""
    _known("benchmark", kwargs, _BENCHMARK)
    return _Benchmark(kernel, kwargs) if kernel is not None else lambda given: _Benchmark(given, kwargs)


def _run(kernel: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(kernel, Kernel):
        raise TypeError(f"expected a kernel (nki.jit), found {type(kernel).__name__}")
    for given in args:
        if not isinstance(given, numpy.ndarray):
            raise TypeError(f"expected arrays of numpy, found {type(given).__name__}")
    return kernel.func(*args, **kwargs)


def _known(name: str, given: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"nki.{name} got unexpected keyword arguments: {', '.join(unknown)}")
