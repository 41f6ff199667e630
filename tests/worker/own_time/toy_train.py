"""The toy that trains (`neuronbench/testing/toy_handlers/toy_train.py`) on a clock of its own; loaded by a worker."""

from __future__ import annotations

from collections import deque
from typing import Any

from nb_worker.training import steplog  # type: ignore[import-not-found]

from .clock import CLOCK, original

toy_train: Any = original("toy_train")
steplog.time = CLOCK


class Device:
    """Does what it is given, one thing after the other, in time that passes when somebody waits for it."""

    def __init__(self, work_s: float, room: int) -> None:
        self._work_ns, self._room = round(work_s * 1e9), max(room, 1)
        self._ends: deque[int] = deque()

    def submit(self) -> None:
        while self._ends and self._ends[0] <= CLOCK.now_ns:
            self._ends.popleft()
        if len(self._ends) > self._room:  # one is being done, the others wait
            CLOCK.until(self._ends.popleft())
        self._ends.append(max([CLOCK.now_ns, *self._ends]) + self._work_ns)

    def wait(self) -> None:
        if self._ends:
            CLOCK.until(self._ends[-1])
        self._ends.clear()


toy_train.Device = Device


class Handler(toy_train.Handler):  # type: ignore[misc]
    """See there."""

    def train(self, job: dict[str, Any], folder: str, resume: bool) -> Any:
        CLOCK.begin()
        try:
            return super().train(job, folder, resume)
        finally:
            CLOCK.end()
