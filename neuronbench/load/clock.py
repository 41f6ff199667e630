"""Two clocks: everything is on CLOCK_MONOTONIC; the kernel stamps received data on CLOCK_REALTIME."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from neuronbench.epoch import clock_epoch

STEP_NS: Final = 1_000_000
"""The two clocks drift apart only when someone sets the wall clock: more than this is a step."""


def realtime_offset_ns() -> int:
    """CLOCK_REALTIME − CLOCK_MONOTONIC in ns."""
    now = clock_epoch()
    return now["utc_ns"] - now["mono_ns"]


class _TimeSpec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Timer:
    """A timerfd on CLOCK_MONOTONIC with absolute due times: epoll's own time-out counts in whole milliseconds.

    `fd` becomes readable when due; -1 where the system has no timerfd, and then `arm` does nothing and the caller's
    poll time-out has to do.
    """

    _ABSOLUTE: Final = 1
    _MONOTONIC: Final = 1
    _NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC

    def __init__(self) -> None:
        self.fd = -1
        self.due = 0
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            fd = libc.timerfd_create(self._MONOTONIC, self._NONBLOCK_CLOEXEC)
        except (OSError, AttributeError):
            return
        if fd >= 0:
            self.fd = fd
            self._set = libc.timerfd_settime
            self._spec = _TimerSpec()
            self._ref = ctypes.byref(self._spec)

    def arm(self, due_ns: int) -> None:
        """Fire at `due_ns` (monotonic); an instant in the past fires at once."""
        if self.fd < 0 or due_ns == self.due:
            return
        self.due = due_ns
        value = self._spec.value
        value.sec, value.nsec = divmod(max(due_ns, 1), 1_000_000_000)
        self._set(self.fd, self._ABSOLUTE, self._ref, None)

    def clear(self) -> None:
        """Take the expiry off the descriptor."""
        self.due = 0
        try:
            os.read(self.fd, 8)
        except (BlockingIOError, OSError):
            pass

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
