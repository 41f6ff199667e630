"""Common instants of several driver processes.

A worker says that it has reached a point (`ramp`, `open`, `close`, `drain`) and is called back with the instant at
which all do. Alone, that is now; one of several waits for a line `<point> <monotonic ns>` on standard input, which the
parent writes once every worker has asked.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from neuronbench.load.progress import say

if TYPE_CHECKING:
    from neuronbench.load.engine import Engine

AHEAD_NS = 30_000_000
"""How far in the future the parent sets an instant, so that it reaches every worker before."""


class Baton:
    def __init__(self, engine: Engine, workers: int) -> None:
        self._engine, self._workers = engine, workers
        self._waiting: dict[str, Callable[[int], None]] = {}
        self._tail = b""
        if workers > 1:
            os.set_blocking(0, False)
            engine.attach(0, self._read)

    def reach(self, point: str, then: Callable[[int], None], *, at: int = 0) -> None:
        """Call `then(instant)` once all workers are at `point`; `at` is the instant when there is only one worker."""
        if self._workers == 1:
            then(at or time.monotonic_ns())
            return
        if point not in self._waiting:
            self._waiting[point] = then
            say(json.dumps({"event": "at", "point": point}))

    def _read(self) -> None:
        try:
            data = os.read(0, 4096)
        except BlockingIOError:
            return
        if not data:
            self._engine.detach(0)
            return
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            point, _, instant = line.decode().partition(" ")
            then = self._waiting.pop(point, None)
            if then is not None:
                self._engine.call(int(instant), then, int(instant))
