"""The folder that a model is written to: what may be there, where it lies until it is whole, one writer at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from neuronbench import keylocks
from neuronbench.protocols import Progress
from neuronbench.weights.manifest import Manifest, StoreError, folder_files
from neuronbench.weights.meter import said_bytes

_WAIT_S: Final = 0.2


def occupied(into: Path, manifest: Manifest, say: Progress) -> bool:
    """Whether the folder holds that model. Raises `StoreError` when it holds anything else; an empty one holds nothing.

    Hidden files are no part of a model.
    """
    if not os.path.lexists(into):
        return False
    why = "it is no folder"
    if into.is_dir():
        if not any(into.iterdir()):
            return False
        files = {path.relative_to(into).as_posix(): path.stat().st_size for path in folder_files(into)}
        wanted = {name: entry.size_bytes for name, entry in manifest.files.items()}
        differing = sorted(name for name in files.keys() | wanted.keys() if files.get(name) != wanted.get(name))
        if not differing:  # only then it is worth reading all of it
            found = Manifest.of(into, progress=say).files
            differing = [name for name, entry in manifest.files.items() if found[name] != entry]
            if not differing:
                return True
        why = f"it holds something else: {', '.join(differing[:3])}{' and others' if len(differing) > 3 else ''} differ"
        why = why.replace("differ", "differs") if len(differing) == 1 else why
    raise StoreError(
        "store_occupied", f"{into} is there already, and {why}",
        remedy="Give a folder that does not exist, or remove it.",
    )  # fmt: skip


def partial_of(into: Path, digest: str) -> Path:
    """Where a model lies as long as it has not arrived whole."""
    return into.with_name(f".{into.name}.{digest[:16]}.partial")


@contextlib.contextmanager
def alone(work: Path, say: Progress) -> Iterator[None]:
    """Wait until nobody else writes there."""
    path = work.with_suffix(".lock")
    while (lock := keylocks.take(path)) is None:
        say(f"waiting for another process that gets the same ({path})")
        time.sleep(_WAIT_S)
    with lock:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def kept_in(work: Path, error: StoreError) -> StoreError:
    """The same error, and where that lies which has arrived; nothing lies where nothing has."""
    size = sum(path.stat().st_size for path in folder_files(work))
    if not size:
        shutil.rmtree(work, ignore_errors=True)
        return error
    return StoreError(
        error.kind,
        f"{error.message}\n  {said_bytes(size)} have arrived and are kept in {work}: the same again goes on from there",
        remedy=error.remedy, expected=error.expected, found=error.found,
    )  # fmt: skip
