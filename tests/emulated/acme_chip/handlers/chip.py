"""What runs on the chip's side: a queue of calls, each of which takes its time. Standard library only."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from typing import Any

ROWS, WIDTH = 2, 8


class Handler:
    def __init__(self, progress: Callable[[str], None], work_us: float = 500.0) -> None:
        self._progress, self._work_ns = progress, round(work_us * 1e3)
        self._done_at_ns = 0

    def facts(self) -> dict[str, Any]:
        return {"chip": "emulated"}

    def compile(self, target: str, seconds: float) -> dict[str, Any]:
        self._progress("compiling for the chip")
        time.sleep(seconds)
        with open(os.path.join(target, "model.acme"), "wb") as file:
            file.write(b"a program for the chip")
        return {"compiler": "acmecc 1.0"}

    def load(self, folder: str) -> dict[str, Any]:
        with open(os.path.join(folder, "model.acme"), "rb") as file:
            file.read()
        size = [ROWS, WIDTH]
        ids = {"name": "input_ids", "dtype": "int64", "shape": size, "kind": "token_ids", "low": 0, "high": 100}
        return {"inputs": [ids], "outputs": ["sums"], "seconds": 0.0}

    def step(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        ids = struct.unpack(f"<{ROWS * WIDTH}q", inputs["input_ids"].data)

        def call() -> Any:
            """Into the queue, and back at once: the chip works on it while the caller goes on."""
            self._done_at_ns = max(time.perf_counter_ns(), self._done_at_ns) + self._work_ns
            return ids

        return call

    def synchronize(self) -> None:
        """Wait until the queue is empty: without it a timer would see the way into the queue only."""
        while (left_ns := self._done_at_ns - time.perf_counter_ns()) > 0:
            if left_ns > 2_000_000:
                time.sleep((left_ns - 2_000_000) / 1e9)

    def tensors(self, output: Any) -> dict[str, Any]:
        self.synchronize()
        sums = [float(sum(output[row * WIDTH : (row + 1) * WIDTH])) for row in range(ROWS)]
        return {"sums": ("float32", (ROWS,), struct.pack(f"<{ROWS}f", *sums))}

    def reference(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self.tensors(struct.unpack(f"<{ROWS * WIDTH}q", inputs["input_ids"].data))
