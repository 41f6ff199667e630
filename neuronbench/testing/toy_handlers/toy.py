"""A handler whose device is a pause: standard library only, so it runs in any interpreter. Made to misbehave on demand.

Loaded by a worker (see `neuronbench.testing.toy_model`), never imported. Its model adds, for every token, the mean of
the row's real tokens; what it is asked to do wrong is its `behaviour`:

| behaviour | what is wrong |
|---|---|
| `plain` | nothing |
| `asynchronous` | calls return at once; only fetching an output waits for the device |
| `queued` | the same with room for a few calls in flight, so that a long loop looks right |
| `barrier` | asynchronous, with a barrier that says so: nothing is wrong |
| `nan` | an output is not a number |
| `turns_nan` | the same after some calls |
| `ignores_mask` | the row's mean is over the padding too |
| `too_fast` | nothing is computed at all |
| `computes` | nothing is wrong, and the time is spent computing, `work_us` × 10 additions a call |
| `end_kill`, `end_raise`, ... | after some calls it ends in one of the ways of `Handler.end` |
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

ROWS, WIDTH = 2, 8
QUEUE = 4
PATIENCE = 20
"""Calls before a behaviour that takes time to show."""


class Handler:
    """See the README of `neuronbench/worker`."""

    def __init__(self, progress: Callable[[str], None], behaviour: str = "plain", work_us: float = 300.0) -> None:
        self._progress, self._behaviour, self._work_ns = progress, behaviour, round(work_us * 1e3)
        self._done_at = 0
        self._calls = 0
        if behaviour == "barrier":
            self.synchronize = self._wait
        if behaviour == "dies_on_start":
            os.kill(os.getpid(), signal.SIGKILL)

    def facts(self) -> dict[str, Any]:
        return {"device": "pause", "work_us": self._work_ns / 1e3}

    # -- compiling and loading

    def compile(self, target: str, **told: Any) -> dict[str, Any]:
        self._progress("pausing instead of compiling")
        if told.get("flags", {}).get("break"):
            raise RuntimeError("the toy compiler was told to break")
        if told.get("flags", {}).get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        with open(os.path.join(target, "toy.bin"), "wb") as file:
            file.write(repr(sorted(told.items())).encode())
        return {"seconds": {"build": 0.0, "export": 0.0, "compile": 0.0}, "graphs": 1, "compiler": "toy"}

    def load(self, **told: Any) -> dict[str, Any]:
        size = [ROWS, WIDTH]
        inputs = [
            {"name": "input_ids", "dtype": "int64", "shape": size, "kind": "token_ids", "low": 0, "high": 100},
            {"name": "attention_mask", "dtype": "int64", "shape": size, "kind": "attention_mask"},
        ]
        return {"inputs": inputs, "outputs": ["hidden"], "seconds": 0.0}

    # -- calls

    def step(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        count = ROWS * WIDTH
        ids = struct.unpack(f"<{count}q", inputs["input_ids"].data)
        mask = struct.unpack(f"<{count}q", inputs["attention_mask"].data)
        behaviour, clock, work_ns = self._behaviour, time.perf_counter_ns, self._work_ns

        def call() -> Any:
            self._calls += 1
            if behaviour.startswith("end_") and self._calls > PATIENCE:
                self.end(behaviour.removeprefix("end_"))
            if behaviour in ("asynchronous", "queued", "barrier"):
                self._done_at = max(clock(), self._done_at) + work_ns
                if behaviour == "queued":
                    self._until(self._done_at - QUEUE * work_ns)
            elif behaviour == "computes":
                sum(range(work_ns // 100))
            elif behaviour != "too_fast":
                self._until(clock() + work_ns)
            return self._answer(ids, mask) if behaviour != "too_fast" else (ids, mask)

        return call

    def tensors(self, output: Any) -> dict[str, Any]:
        self._wait()
        values = self._answer(*output) if isinstance(output, tuple) else output
        return {"hidden": ("float32", (ROWS, WIDTH), struct.pack(f"<{ROWS * WIDTH}f", *values))}

    def reference(self, inputs: dict[str, Any], **told: Any) -> dict[str, Any]:
        return self.tensors(Handler(self._progress, "plain", 1.0).step(inputs)())

    def _answer(self, ids: Any, mask: Any) -> list[float]:
        values: list[float] = []
        for row in range(ROWS):
            here = slice(row * WIDTH, (row + 1) * WIDTH)
            real = [1] * WIDTH if self._behaviour == "ignores_mask" else list(mask[here])
            mean = sum(x * m for x, m in zip(ids[here], real, strict=True)) / max(sum(real), 1)
            values += [x + mean for x in ids[here]]
        if self._behaviour == "nan" or (self._behaviour == "turns_nan" and self._calls > PATIENCE):
            values[3] = float("nan")
        return values

    def _wait(self) -> None:
        self._until(self._done_at)

    @staticmethod
    def _until(instant_ns: int) -> None:
        left_s = (instant_ns - time.perf_counter_ns()) / 1e9
        if left_s > 0.002:
            time.sleep(left_s - 0.002)
        while time.perf_counter_ns() < instant_ns:
            pass

    # -- ends of all kinds

    def end(self, how: str) -> Any:
        """End, or misbehave, in one of the ways that real programs do."""
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "exit":
            os._exit(3)
        elif how == "raise":
            raise ValueError("the toy was told to raise")
        elif how == "memory":
            limit = 1 << 30
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            return len(bytearray(4 * limit))
        elif how == "hang":
            print("about to hang", flush=True)
            time.sleep(600)
        elif how == "print":
            print("chatter of a library", flush=True)
            os.write(1, b"chatter below Python\n")
        elif how == "garbage":
            self.spoil("garbage without an end")
        elif how == "babble":
            self.spoil("x" * 1023 + "\n", times=1 << 14)
        elif how == "not_json":
            return {"value": {1, 2}}
        elif how == "not_a_number":
            return float("nan")
        return "well"

    def spoil(self, data: str, times: int = 1) -> str:
        """Write to the protocol's own pipe, as no handler should."""
        channel: Any = self._progress.__self__._channel  # type: ignore[attr-defined]
        for _ in range(times):
            os.write(channel._outgoing, data.encode())
        return "well"
