"""Progress in bytes: how much of how much, how fast, how long it will still take."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from neuronbench.protocols import Progress

SAY_EVERY_S: Final = 0.5
_WINDOW_S: Final = 10.0
"""The rate is that of so much of the immediate past."""


def said_bytes(count: float) -> str:
    """`812.4 MB`, by powers of ten."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit in ("B", "KB") else f"{count:.{2 if unit == 'GB' else 1}f} {unit}"
        count /= 1000
    raise AssertionError


class Meter:
    """Counts bytes of one long step, from any thread, and says now and then where it is."""

    def __init__(self, say: Progress | None, total_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self.total_bytes, self._clock = say, total_bytes, clock
        self.done_bytes = 0
        """Of the step, what was there already among it."""
        self.moved_bytes = 0
        self.text = ""
        self._lock = threading.Lock()
        self._said = clock()
        self._past: deque[tuple[float, int]] = deque([(self._said, 0)])

    def label(self, text: str) -> None:
        """What is being done, from now on: `storing model.safetensors`."""
        self.text = text

    def moved(self, count: int) -> None:
        """So many bytes more were transferred."""
        self._count(count, count)

    def there(self, count: int) -> None:
        """So many bytes more need not be transferred: they are no part of the rate."""
        self._count(count, 0)

    def lost(self, count: int) -> None:
        """So many bytes that were counted have to be transferred once more."""
        self._count(-count, 0)

    def line(self) -> str:
        """`storing model.safetensors: 3.20 of 16.00 GB, 412.0 MB/s, 31 s left`."""
        done, total = said_bytes(self.done_bytes), said_bytes(self.total_bytes)
        words = [f"{self.text}: {done} of {total}"]
        (then, before), now = self._past[0], self._clock()
        rate = (self.moved_bytes - before) / (now - then) if now > then else 0.0
        if rate > 0:
            left_s = max(self.total_bytes - self.done_bytes, 0) / rate
            words += [f"{said_bytes(rate)}/s", f"{_said_left(left_s)} left"]
        return ", ".join(words)

    def _count(self, done: int, moved: int) -> None:
        with self._lock:
            self.done_bytes += done
            self.moved_bytes += moved
            now = self._clock()
            if now - self._said < SAY_EVERY_S:
                return
            self._said = now
            self._past.append((now, self.moved_bytes))
            while len(self._past) > 2 and now - self._past[0][0] > _WINDOW_S:
                self._past.popleft()
            line = self.line()
        if self._say is not None:
            self._say(line)


def _said_left(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
