"""Locks on files, between processes: one has it, or several share it; whoever ends, however, has let go of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType


class Lock:
    """A lock that is held until it is closed, forgotten, or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Let go of it; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def share(path: Path) -> Lock:
    """A shared lock; waits while another process has the file to itself. The file's time becomes now."""
    lock = _flock(path, fcntl.LOCK_SH)
    assert lock is not None
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)
    return lock


def take(path: Path) -> Lock | None:
    """The file to oneself; None when another has it, or shares it."""
    return _flock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether anybody holds a lock on it, shared or not. Nothing is made."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _flock(path: Path, how: int) -> Lock | None:
    """None where that would mean waiting and `how` says not to."""
    # Whoever has a lock file to itself may remove it: a lock on one that is no longer there is worth nothing.
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        lock = Lock(descriptor)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            lock.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return lock
        lock.close()
