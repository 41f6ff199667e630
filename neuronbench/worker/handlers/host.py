"""What the host can do at best: STREAM triad and matrix products, in numpy; for workers of the harness's own Python.

`triad`: a = b + s·c over arrays far larger than the caches, one stretch of them a call, so that a window holds many
calls. A stretch is done in blocks that stay in a core's own cache between its two steps (numpy has no fused triad), so
that memory sees what STREAM counts: two reads and a write.

`matmul`: c = a @ b of square fp32 matrices by the BLAS that numpy has, with as many threads as the environment says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

BLOCK = 32_768
"""Elements (256 KiB) of a block: three of them fit a second-level cache."""
STRETCH = 1 << 20
"""Elements of a call, at most."""
NOTHING = [{"name": "nothing", "dtype": "int64", "shape": [1], "kind": "zeros"}]


class Handler:
    """See the README of `neuronbench/worker`."""

    synchronize = None

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._step: Callable[[], Any] | None = None

    def facts(self) -> dict[str, Any]:
        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index,unused-ignore]
        return {"numpy": numpy.__version__, "blas": f"{blas.get('name')} {blas.get('version')}"}

    def load(self, kernel: str, size: int) -> dict[str, Any]:
        """`size`: elements of each array of the triad; rows of a matrix. `bytes` and `flops` are of one call."""
        if kernel == "triad":
            stretch = min(size, STRETCH)
            self._step = _triad(size - size % stretch, stretch)
            told = {"bytes": 24 * stretch, "flops": 2 * stretch}
        elif kernel == "matmul":
            self._step = _matmul(size)
            told = {"bytes": 12 * size * size, "flops": 2 * size**3}
        else:
            raise ValueError(f"kernel: expected triad or matmul, found {kernel!r}")
        return {"inputs": NOTHING, "outputs": ["sample"], "seconds": 0.0, **told}

    def step(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        if self._step is None:
            raise RuntimeError("nothing is loaded; `load` comes before calls")
        return self._step

    def tensors(self, output: Any) -> dict[str, Any]:
        """One number of what was computed, and what it has to be."""
        value, wanted = output
        return {"sample": ("float64", (2,), numpy.array([value, wanted], dtype="float64").tobytes())}


def _triad(size: int, stretch: int) -> Callable[[], Any]:
    b, c = numpy.full(size, 1.5), numpy.full(size, 0.25)
    a = numpy.zeros(size)  # written to here, so that its pages are there
    a.fill(0.0)
    add, multiply, scale = numpy.add, numpy.multiply, 3.0
    stretches = [
        [
            (a[i:j], b[i:j], c[i:j])
            for i, j in ((i, min(i + BLOCK, start + stretch)) for i in range(start, start + stretch, BLOCK))
        ]
        for start in range(0, size, stretch)
    ]
    turn = -1

    def call() -> Any:
        nonlocal turn
        turn = (turn + 1) % len(stretches)
        for out, one, other in stretches[turn]:
            multiply(other, scale, out=out)
            add(out, one, out=out)
        return out[-1], 2.25

    return call


def _matmul(size: int) -> Callable[[], Any]:
    a = numpy.full((size, size), 0.5, dtype="float32")
    b = numpy.full((size, size), 2.0, dtype="float32")
    c = numpy.empty((size, size), dtype="float32")
    multiply = numpy.matmul

    def call() -> Any:
        multiply(a, b, out=c)
        return c[-1, -1], float(size)

    return call
