"""Files to a store and back, so that what was cut off goes on where it stopped, in another process as well.

A place that can do more than `Blobs` asks for is a `Resumable`; every other place is used through `Blobs` alone, and
then a file begins anew. Whatever arrives is hashed, all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from neuronbench.weights.blobs import Blobs, Resumable, Sent, counted
from neuronbench.weights.manifest import CHUNK, FULL_DISK, FileEntry, StoreError, mismatch
from neuronbench.weights.meter import Meter, said_bytes

_AGAIN: Final = "Remove the damaged object from the store and put it in again."


def send_file(place: Blobs, key: str, path: Path, entry: FileEntry, meter: Meter) -> Sent:
    """Keep a file under `key`. Raises `StoreError`, also when it is not what `entry` says any more."""
    if isinstance(place, Resumable):
        return place.write_file(key, path, entry, meter)
    if place.write(key, counted(path, entry, meter), entry.size_bytes):
        return Sent(moved_bytes=entry.size_bytes)
    meter.there(entry.size_bytes)
    return Sent(there=True)


def checked_there(place: Blobs, key: str, path: Path, entry: FileEntry) -> bool:
    """See `Resumable.checked`; False for a place that is none."""
    return isinstance(place, Resumable) and place.checked(key, path, entry)


def fetch_files(
    place: Blobs, files: Mapping[str, FileEntry], keys: Mapping[str, str], into: Path, meter: Meter
) -> tuple[int, int]:
    """Write `files` (name → entry; `keys`: name → object) below the folder `into`; bytes moved, and those kept.

    What is in `into` from an earlier try is hashed and kept; files that do not belong there go. Names must have been
    checked. Raises `StoreError`: with both hashes when a file is not what it was, in which case that file is gone;
    whatever else has arrived stays.
    """
    into.mkdir(parents=True, exist_ok=True)
    _tidy(into, files)
    moved = kept = 0
    for name, entry in files.items():
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            more, old = _fetch(place, name, keys[name], entry, target, meter)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise StoreError(
                "disk_full",
                f"{into.parent} is full: {said_bytes(meter.done_bytes)} of {said_bytes(meter.total_bytes)} have "
                f"arrived when {name} could not be written ({error.strerror})",
                remedy="Free space; the same again goes on from there.",
            ) from error  # fmt: skip
        moved, kept = moved + more, kept + old
    return moved, kept


def _fetch(
    place: Blobs, name: str, key: str, entry: FileEntry, target: Path, meter: Meter, *, last: bool = False
) -> tuple[int, int]:
    state = hashlib.sha256()
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        kept = _prefix(file, entry, state.update, isinstance(place, Resumable))
        meter.label(f"fetching {name}")
        meter.there(kept)
        moved = 0
        if kept < entry.size_bytes or not entry.size_bytes:
            try:
                pieces = _pieces(place, name, key, entry, kept)
            except StoreError:
                if not kept:
                    target.unlink()  # nothing of it has come
                raise
            for piece in pieces:
                state.update(piece)
                file.write(piece)
                moved += len(piece)
                meter.moved(len(piece))
                if kept + moved > entry.size_bytes:
                    break  # the hash says the rest
            file.flush()
            os.fsync(file.fileno())
    if state.hexdigest() == entry.sha256:
        return moved, kept
    target.unlink(missing_ok=True)
    if kept and not last:  # what an earlier try left may be wrong, after a crash of the host say
        meter.lost(kept + moved)
        more, _ = _fetch(place, name, key, entry, target, meter, last=True)
        return moved + more, 0
    raise wrong_bytes(place, name, entry, state.hexdigest(), kept + moved)


def wrong_bytes(place: Blobs, name: str, entry: FileEntry, found: str, count: int) -> StoreError:
    """The error for an object that is not the file it should be."""
    size = "" if count == entry.size_bytes else f" ({count} bytes instead of {entry.size_bytes})"
    return mismatch(f"{name} in {place.url} was changed{size}", entry.sha256, found, _AGAIN)


def _prefix(file: IO[bytes], entry: FileEntry, hashed: Callable[[bytes], None], resumable: bool) -> int:
    """Bytes of the file that are there and may be right, hashed; it stands at their end."""
    size = os.fstat(file.fileno()).st_size
    if size > entry.size_bytes or (size < entry.size_bytes and not resumable):
        file.truncate(0)
        return 0
    while piece := file.read(CHUNK):
        hashed(piece)
    return size


def _pieces(place: Blobs, name: str, key: str, entry: FileEntry, start: int) -> Iterator[bytes]:
    try:
        if start and isinstance(place, Resumable):
            return place.read_from(key, start)
        return place.read(key)
    except KeyError:
        raise missing(place, name, entry) from None


def missing(place: Blobs, name: str, entry: FileEntry) -> StoreError:
    """The error for an object that should be there."""
    return StoreError(
        "weights_missing", f"{name} (SHA-256 {entry.sha256}) is missing from {place.url}",
        remedy="Put it into the store again.", expected=entry.sha256,
    )  # fmt: skip


def _tidy(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Only what belongs there stays."""
    for parent, folders, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            if path.is_symlink() or path.relative_to(folder).as_posix() not in files:
                path.unlink()
        for name in folders:
            path = Path(parent, name)
            if path.is_symlink():
                path.unlink()
            else:
                with contextlib.suppress(OSError):
                    path.rmdir()  # an empty one; those with files stay
