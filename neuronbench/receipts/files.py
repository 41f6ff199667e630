"""Durable files: a write is there whole after a crash, or not there at all."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from neuronbench.model import Json


class LockTimeout(TimeoutError):
    """Another process held the lock for longer than we were willing to wait."""


def to_text(document: Json) -> str:
    """Readable JSON, two spaces, keys in the order given; refuses NaN and infinities."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_atomic(path: Path, text: str) -> None:
    """Write `text` beside `path`, sync it, and rename it into place.

    Characters that UTF-8 cannot hold (bytes of a log that were no text) become `?`: a log line never costs a result.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(scratch, "wb") as stream:
        stream.write(text.encode("utf-8", errors="replace"))
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(scratch, path)


def inside(folder: Path, relative: str) -> bool:
    """Whether `relative` is a file in `folder` and not a link that leads out of it."""
    try:
        path = (folder / relative).resolve()
        return path.is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError):  # too long, a zero byte, or links in a circle
        return False


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make every file below `folder` durable, then the folders that name them, deepest first."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            if path.is_symlink() or not path.is_file():
                continue
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(parent))


@contextmanager
def locked(path: Path, *, timeout_s: float, purpose: str) -> Iterator[IO[str]]:
    """Hold an exclusive lock on `path` (made when missing); the kernel frees it when the holder dies.

    Yields the open file, whose text the holder may use. Raises `LockTimeout` that names the lock and its purpose.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as stream:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LockTimeout(
                        f"{purpose}: another process has held {path} for more than {timeout_s:g} s; "
                        "wait for it to end, or end it, and try again"
                    ) from None
                time.sleep(0.02)
        try:
            yield stream
        finally:
            fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
