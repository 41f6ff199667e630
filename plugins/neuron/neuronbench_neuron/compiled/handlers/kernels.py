"""Kernels of NKI: simulated and held against numpy, then compiled, run and timed on a NeuronCore by the SDK's own loop.

The language is that of `neuronxcc.nki` (up to SDK 2.28). The `nki` package that came after it has a simulator, and no
documented loop that times a kernel on the device: it is not used.

`nki.benchmark` gives percentiles and no samples. They are passed on as what they are, and said to be another's.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy  # the SDK depends on it

ROWS = 128
"""Partitions of a tile: a kernel takes whole tiles."""
EPSILON = 1e-6
SIMULATED = 1e-5
"""Largest difference between the simulator and numpy, relative to the largest value; the simulator computes in fp32."""


class SimulationDiffers(RuntimeError):
    """The simulator does not give what numpy gives: the kernel is wrong, and does not run on the device."""


class NoNki(RuntimeError):
    """The stack has no NKI that can time a kernel."""


# -- the kernels: each as numpy has it, and as NKI has it -------------------------------------------------------------


def _kernels(nki: Any, nl: Any) -> dict[str, Callable[..., Any]]:
    """The kernels in the language of NKI. Tiles of 128 rows, one after the other."""

    def add(a: Any, b: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for tile in nl.affine_range(a.shape[0] // ROWS):
            one = nl.load(a[tile * ROWS : (tile + 1) * ROWS, 0 : a.shape[1]])
            other = nl.load(b[tile * ROWS : (tile + 1) * ROWS, 0 : a.shape[1]])
            nl.store(out[tile * ROWS : (tile + 1) * ROWS, 0 : a.shape[1]], value=nl.add(one, other))
        return out

    def softmax(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for tile in nl.affine_range(a.shape[0] // ROWS):
            block = nl.load(a[tile * ROWS : (tile + 1) * ROWS, 0 : a.shape[1]])
            raised = nl.exp(nl.subtract(block, nl.max(block, axis=1, keepdims=True)))
            value = nl.divide(raised, nl.sum(raised, axis=1, keepdims=True))
            nl.store(out[tile * ROWS : (tile + 1) * ROWS, 0 : a.shape[1]], value=value)
        return out

    def rms_norm(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for tile in nl.affine_range(a.shape[0] // ROWS):
            block = nl.load(a[tile * ROWS : (tile + 1) * ROWS, 0 : a.shape[1]])
            squares = nl.sum(nl.multiply(block, block), axis=1, keepdims=True)
            scale = nl.rsqrt(nl.add(nl.multiply(squares, 1.0 / a.shape[1]), EPSILON))
            nl.store(out[tile * ROWS : (tile + 1) * ROWS, 0 : a.shape[1]], value=nl.multiply(block, scale))
        return out

    return {"add": nki.jit(add), "softmax": nki.jit(softmax), "rms_norm": nki.jit(rms_norm)}


def _softmax(a: Any) -> Any:
    raised = numpy.exp(a - a.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _rms_norm(a: Any) -> Any:
    return a / numpy.sqrt((a * a).mean(axis=1, keepdims=True) + EPSILON)


REFERENCES: dict[str, Callable[..., Any]] = {"add": lambda a, b: a + b, "softmax": _softmax, "rms_norm": _rms_norm}
INPUTS = {"add": ("a", "b"), "softmax": ("a",), "rms_norm": ("a",)}


class Handler:
    """See the README of `neuronbench/worker`."""

    synchronize = None

    def __init__(self, progress: Callable[[str], None], kernel: str, rows: int, columns: int) -> None:
        self._progress, self._kernel, self._shape = progress, kernel, (rows, columns)

    def facts(self) -> dict[str, Any]:
        return {
            "neuronx_cc": _version("neuronx-cc"),
            "numpy": numpy.__version__,
            "environment": {name: os.environ[name] for name in ("NEURON_RT_VISIBLE_CORES",) if name in os.environ},
        }

    # -- verbs

    def compile(self, target: str, seed: int, arguments: list[str], **_: Any) -> dict[str, Any]:
        """Simulate first; only what agrees with numpy is compiled and run on the device, and its NEFF kept."""
        begun = time.monotonic()
        given = [numpy.random.default_rng([seed, index]).standard_normal(self._shape, dtype="float32")
                 for index in range(len(INPUTS[self._kernel]))]  # fmt: skip
        nki, kernel = _nki(), self._jitted()
        self._progress(f"simulating {self._kernel}")
        wanted = REFERENCES[self._kernel](*given)
        error = _error(numpy.asarray(nki.simulate_kernel(kernel, *given)), wanted)
        if not error <= SIMULATED:
            raise SimulationDiffers(
                f"the simulator's {self._kernel} differs from numpy's by {error:.3g} of its largest value (limit "
                f"{SIMULATED:g}): the kernel was not run on the device"
            )
        simulated = time.monotonic()
        self._progress(f"compiling {self._kernel}")
        work = tempfile.mkdtemp(prefix="nki-")
        neff = os.path.join(work, "kernel.neff")
        nki.baremetal(save_neff_name=neff, additional_compile_opt=" ".join(arguments))(kernel)(*given)
        told = _kept(neff, os.path.join(target, "kernel.neff"))
        shutil.rmtree(work, ignore_errors=True)
        rows, columns = self._shape
        return {
            "seconds": {"simulate": simulated - begun, "compile": time.monotonic() - simulated},
            "inputs": [
                {"name": name, "dtype": "float32", "shape": [rows, columns], "kind": "normal"}
                for name in INPUTS[self._kernel]
            ],
            "outputs": ["out"],
            "per_item": {},
            "names": [self._kernel],
            "loop": {},
            "flops_per_call": 0,
            "graphs": 1,
            "operations": None,
            "model": {"weights": "none", "seed": None, "new": []},
            "compiler": f"NKI of neuronx-cc {_version('neuronx-cc') or 'of an unknown version'}",
            "parts": {self._kernel: {"neff": told, "analyze": None, "writes": [], "simulated_error": error}},
        }

    def load(self, inputs: list[dict[str, Any]], outputs: list[str], **_: Any) -> dict[str, Any]:
        """A kernel is compiled by each call that runs it outside a framework: there is nothing to load."""
        _nki()
        return {"inputs": inputs, "outputs": outputs, "seconds": 0.0}

    def step(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        """A run on the device, compile included: for its answer, not for its time."""
        given, run = _arrays(inputs), _nki().baremetal()(self._jitted())
        return lambda: run(*given)

    def tensors(self, output: Any) -> dict[str, Any]:
        found = numpy.ascontiguousarray(output, dtype="float32")
        return {"out": ("float32", found.shape, found.tobytes())}

    def reference(self, inputs: dict[str, Any], **_: Any) -> dict[str, Any]:
        return self.tensors(REFERENCES[self._kernel](*_arrays(inputs)))

    def device_times(self, inputs: dict[str, Any], warmup: int, iterations: int, percentiles: list[float]) -> Any:
        """Percentiles of the time on the device in µs, by `nki.benchmark`; None for one that it does not give."""
        kernel = _nki().benchmark(warmup=warmup, iters=iterations)(self._jitted())
        kernel(*_arrays(inputs))
        latency = kernel.benchmark_result.nc_latency
        found = [latency.get_latency_percentile(percentile) for percentile in percentiles]
        return {"source": "nki.benchmark (neuron-bench)", "us": [None if us is None else float(us) for us in found]}

    # -- parts

    def _jitted(self) -> Any:
        return _kernels(_nki(), importlib.import_module("neuronxcc.nki.language"))[self._kernel]


def _nki() -> Any:
    try:
        found = importlib.import_module("neuronxcc.nki")
    except ImportError as error:
        raise NoNki(
            f"no neuronxcc.nki in this stack ({error}): NKI's loop that times a kernel comes with it"
        ) from error
    lacking = [name for name in ("jit", "simulate_kernel", "baremetal", "benchmark") if not hasattr(found, name)]
    if lacking:
        raise NoNki(f"neuronxcc.nki of neuronx-cc {_version('neuronx-cc')} has no {', '.join(lacking)}")
    return found


def _error(found: Any, wanted: Any) -> float:
    if found.shape != wanted.shape:
        raise SimulationDiffers(f"the simulator gives shape {list(found.shape)}, numpy {list(wanted.shape)}")
    return float(numpy.abs(found - wanted).max() / numpy.abs(wanted).max())


def _arrays(inputs: dict[str, Any]) -> list[Any]:
    """Arrays of (dtype, shape, data)."""
    return [numpy.frombuffer(bytearray(data), dtype=dtype).reshape(shape) for dtype, shape, data in inputs.values()]


def _kept(neff: str, path: str) -> dict[str, Any]:
    shutil.copyfile(neff, path)
    with open(path, "rb") as file:
        return {"bytes": os.path.getsize(path), "sha256": hashlib.sha256(file.read()).hexdigest(), "executables": 1}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
