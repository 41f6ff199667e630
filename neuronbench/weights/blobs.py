"""Where a store keeps its bytes: the protocol, and the backend for a folder of this host."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from neuronbench.weights.manifest import CHUNK, StoreError


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
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
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
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, key: str) -> Iterator[bytes]:
        try:
            file = (self.folder / key).open("rb")
        except FileNotFoundError:
            raise KeyError(key) from None
        return _pieces(file)

    def keys(self, prefix: str) -> Iterator[str]:
        for path in sorted(self.folder.rglob("*")):
            key = path.relative_to(self.folder).as_posix()
            if key.startswith(prefix) and path.is_file() and not path.name.startswith("."):
                yield key


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
            raise StoreError(
                "store_not_found", f"store {reference!r} is not of the form s3://BUCKET/PREFIX",
                remedy="Give s3://BUCKET/PREFIX, or a folder.",
            )  # fmt: skip
        from neuronbench.weights.s3 import S3Blobs

        return S3Blobs(named["bucket"], (named["prefix"] or "").strip("/"))
    path = Path(reference.removeprefix("file:")).expanduser()
    if not reference or "://" in reference:
        raise StoreError(
            "store_not_found", f"store {reference!r} is neither a folder nor s3://BUCKET/PREFIX",
            remedy="Give s3://BUCKET/PREFIX, or a folder.",
        )  # fmt: skip
    return LocalBlobs(path if path.is_absolute() else (root or Path.cwd()) / path)
