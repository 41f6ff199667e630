"""Where a store keeps its bytes: the protocol, and the backend for a folder of this host."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from neuronbench import keylocks
from neuronbench.weights.manifest import CHUNK, FULL_DISK, FileEntry, StoreError, mismatch
from neuronbench.weights.meter import Meter

_YOUNG_S: Final = 60.0
_QUIET: Final = "Let the program that writes it come to its end first."


@runtime_checkable
class Blobs(Protocol):
    """Objects by key, written once. What they hold is the store's affair, and so are hashes."""

    url: str
    """What a person calls the place: a path, or `s3://bucket/prefix`."""

    def size(self, key: str) -> int | None:
        """Size of an object in bytes; None when there is none."""
        ...

    def write(self, key: str, chunks: Iterable[bytes], size_bytes: int) -> bool:
        """Write an object of which `size_bytes` are announced; False when one of that key is there already.

        It appears whole or not at all, and what is there is never overwritten. Passes on what `chunks` raises, after
        it has cleared away what was written so far.
        """
        ...

    def read(self, key: str) -> Iterator[bytes]:
        """The contents in pieces. Raises `KeyError` when there is no such object, `StoreError` when reading fails."""
        ...

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with `prefix`, in any order."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of one file on its way up."""

    moved_bytes: int = 0
    """Transferred now."""
    resumed_bytes: int = 0
    """Found there, left by an upload that was cut off, and compared with the file."""
    there: bool = False
    """The whole object was there before."""
    checked: bool = False
    """The service has hashed (SHA-256) what it holds, and it is the file."""
    retries: int = 0
    """Requests that had to be made once more: throttled, or the connection broke."""


@runtime_checkable
class Resumable(Blobs, Protocol):
    """A place that can go on with what was cut off."""

    def write_file(self, key: str, path: Path, entry: FileEntry, meter: Meter) -> Sent:
        """Write a file, in parts where it is large, going on with an upload of that key that was cut off.

        It appears whole or not at all; what is there is never overwritten. Raises `StoreError`; what has arrived of a
        large file is kept then, for the next try, unless the file is not what `entry` says.
        """
        ...

    def checked(self, key: str, path: Path, entry: FileEntry) -> bool:
        """Whether the service has hashed an object by itself and says that it is the file.

        False where it cannot say, and where it says something else: reading the object tells what it is.
        """
        ...

    def read_from(self, key: str, start: int) -> Iterator[bytes]:
        """The contents from a byte on, which must be there. Raises like `read`."""
        ...


class LocalBlobs:
    """A folder. An object appears by a hard link, which fails where there is one already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)

    def size(self, key: str) -> int | None:
        try:
            return (self.folder / key).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, key: str, chunks: Iterable[bytes], size_bytes: int) -> bool:
        path = self.folder / key
        if path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < size_bytes:
            raise StoreError(
                "disk_full", f"{self.url} has no room for {size_bytes / 1e9:.2f} GB more",
                remedy="Free space, or use a store elsewhere.",
            )  # fmt: skip
        self._clear(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        held = keylocks.take(temporary)  # so that others know that it is not left over
        try:
            with temporary.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o444)
            try:
                os.link(temporary, path)
            except FileExistsError:  # another process was first
                return False
            return True
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise StoreError(
                "disk_full", f"{self.url} became full ({error.strerror}) while {key} was written",
                remedy="Free space, or use a store elsewhere; what is there whole is not sent again.",
            ) from error  # fmt: skip
        finally:
            temporary.unlink(missing_ok=True)
            if held is not None:
                held.close()

    def read(self, key: str) -> Iterator[bytes]:
        try:
            file = (self.folder / key).open("rb")
        except FileNotFoundError:
            raise KeyError(key) from None
        return _pieces(file)

    # -- Resumable

    def write_file(self, key: str, path: Path, entry: FileEntry, meter: Meter) -> Sent:
        if self.write(key, counted(path, entry, meter), entry.size_bytes):
            return Sent(moved_bytes=entry.size_bytes)
        meter.there(entry.size_bytes)
        return Sent(there=True)

    def checked(self, key: str, path: Path, entry: FileEntry) -> bool:
        return False  # a file system hashes nothing

    def read_from(self, key: str, start: int) -> Iterator[bytes]:
        try:
            file = (self.folder / key).open("rb")
        except FileNotFoundError:
            raise KeyError(key) from None
        file.seek(start)
        return _pieces(file)

    def _clear(self, path: Path) -> None:
        """Take away what processes that were killed have left of an object."""
        for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime < _YOUNG_S:
                    continue  # it may not be locked yet
                lock = keylocks.take(left)
                if lock is not None:
                    with lock:
                        left.unlink()

    def keys(self, prefix: str) -> Iterator[str]:
        for path in sorted(self.folder.rglob("*")):
            key = path.relative_to(self.folder).as_posix()
            if key.startswith(prefix) and path.is_file() and not path.name.startswith("."):
                yield key


def counted(path: Path, entry: FileEntry, meter: Meter) -> Iterator[bytes]:
    """A file's bytes for the way up. What was hashed before must be what is read now."""
    state = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            state.update(piece)
            meter.moved(len(piece))
            yield piece
    if state.hexdigest() != entry.sha256:
        raise changed(path, entry, state.hexdigest())


def changed(path: Path, entry: FileEntry, found: str) -> StoreError:
    """The error for a file that is not what it was when it was hashed."""
    return mismatch(f"{path} changed while it was stored", entry.sha256, found, _QUIET)


def _pieces(file: object) -> Iterator[bytes]:
    with file as opened:  # type: ignore[attr-defined]
        while piece := opened.read(CHUNK):
            yield piece


_S3: re.Pattern[str] = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<prefix>[^?#]*))?")


def blobs(reference: str, *, root: Path | None = None) -> Blobs:
    """The place that `reference` names: `s3://BUCKET[/PREFIX]`, or a folder (`file:PATH`, or a path).

    A relative path starts at `root` (default: the current folder). Raises `StoreError` for anything else.
    """
    if reference.startswith("s3:"):
        named = _S3.fullmatch(reference)
        if named is None:
            bucket = reference.removeprefix("s3:").lstrip("/").partition("/")[0]
            raise StoreError(
                "store_not_found",
                f"store {reference!r}: expected s3://BUCKET/PREFIX with the name of a bucket (3 to 63 lower-case "
                f"letters, digits, dots and hyphens) and a PREFIX without ? and #, found bucket {bucket!r}",
                remedy="Give s3://BUCKET/PREFIX with your bucket's name in place of BUCKET, or a folder.",
            )
        from neuronbench.weights.s3 import S3Blobs

        return S3Blobs(named["bucket"], (named["prefix"] or "").strip("/"))
    path = Path(reference.removeprefix("file:")).expanduser()
    if not reference or "://" in reference:
        raise StoreError(
            "store_not_found", f"store {reference!r} is neither a folder nor s3://BUCKET/PREFIX",
            remedy="Give s3://BUCKET/PREFIX, or a folder.",
        )  # fmt: skip
    return LocalBlobs(path if path.is_absolute() else (root or Path.cwd()) / path)
