"""A store of models by digest: put a folder in, get it out elsewhere, and know that it is the same.

A file lies under its own SHA-256 (`blobs/ab/abcdef...`), so that files which models share are kept once. The list of a
model's files (`models/<digest>.json`) is written last: what was cut off is no model. Nothing is ever overwritten.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench.model import Json
from neuronbench.protocols import Progress
from neuronbench.weights.blobs import Blobs
from neuronbench.weights.manifest import CHUNK, FileEntry, Manifest, StoreError, mismatch

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_AGAIN: Final = "Remove the damaged object from the store and put the model in again."
_SAY_EVERY_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What putting in or getting out did."""

    manifest: Manifest
    store: str
    moved_bytes: int
    """Bytes that were transferred for it."""
    reused_bytes: int
    """Bytes of files that were there already."""
    wall_s: float
    verify_s: float
    """The part of `wall_s` in which everything was read back."""

    def facts(self) -> dict[str, Json]:
        """What a record says of it."""
        return {
            "store": self.store, "digest": self.manifest.digest, "weights_digest": self.manifest.weights_digest,
            "files": self.manifest.to_json(), "moved_bytes": self.moved_bytes, "reused_bytes": self.reused_bytes,
            "wall_s": self.wall_s, "verify_s": self.verify_s,
        }  # fmt: skip


class WeightStore:
    """Models by digest in one place."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs

    def put(self, folder: Path, *, expected: Manifest | None = None, progress: Progress | None = None) -> Shipped:
        """Keep the model in `folder`; returns after every byte of it was read back from the store and hashed.

        `expected`: what the folder has to hold, such as what a trainer said it exported. Raises `StoreError` with both
        hashes when the folder, or what the store gives back, is something else.
        """
        say = progress or (lambda text: None)
        started = time.monotonic_ns()
        manifest = Manifest.of(folder, progress=say)
        if expected is not None:
            same(expected, manifest, f"{folder} is not what was exported")
        moved = 0
        for name, entry in manifest.files.items():
            if self.blobs.write(_key(entry), _sent(folder / name, name, entry, say), entry.size_bytes):
                moved += entry.size_bytes
        verifying = time.monotonic_ns()
        self._read_back(manifest, say)
        text = manifest.text()
        self.blobs.write(_model_key(manifest.digest), [text.encode()], len(text))
        self.manifest(manifest.digest)
        ended = time.monotonic_ns()
        return Shipped(
            manifest=manifest, store=self.blobs.url, moved_bytes=moved, reused_bytes=manifest.size_bytes - moved,
            wall_s=(ended - started) / 1e9, verify_s=(ended - verifying) / 1e9,
        )  # fmt: skip

    def manifest(self, digest: str) -> Manifest:
        """The files of a model. Raises `StoreError` when it is not here or its list was changed."""
        if not _DIGEST.fullmatch(digest):
            raise StoreError(
                "weights_missing", f"{digest!r} is not a digest: expected 64 hexadecimal digits",
                remedy="Give the digest that putting the model in has shown.",
            )  # fmt: skip
        try:
            raw = b"".join(self.blobs.read(_model_key(digest)))
        except KeyError:
            raise StoreError(
                "weights_missing", f"{self.blobs.url} has no model {digest}",
                remedy="Check digest and place; a model whose upload was cut off is not there: put it in again.",
            ) from None  # fmt: skip
        found = hashlib.sha256(raw).hexdigest()
        if found != digest:
            raise mismatch(f"the list of files of a model in {self.blobs.url}", digest, found, _AGAIN)
        return Manifest.parse(raw.decode())

    def get(self, digest: str, into: Path, *, progress: Progress | None = None) -> Shipped:
        """Write the model to the folder `into`, which must not exist; every byte is hashed on its way.

        The folder appears whole or not at all. Raises `StoreError`: with both hashes when a file is not what it was.
        """
        say = progress or (lambda text: None)
        started = time.monotonic_ns()
        manifest = self.manifest(digest)
        if into.exists():
            raise StoreError(
                "store_occupied", f"{into} is there already", remedy="Give a folder that does not exist, or remove it."
            )  # fmt: skip
        into.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(into.parent).free
        if free < manifest.size_bytes:
            raise StoreError(
                "disk_full",
                f"the model has {manifest.size_bytes / 1e9:.2f} GB, {into.parent} has room for {free / 1e9:.2f} GB",
                remedy="Free space, or give a folder elsewhere.",
            )  # fmt: skip
        work = into.with_name(f".{into.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            for name, entry in manifest.files.items():
                target = work / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    for piece in self._checked(name, entry, say):
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
            os.rename(work, into)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return Shipped(
            manifest=manifest, store=self.blobs.url, moved_bytes=manifest.size_bytes, reused_bytes=0,
            wall_s=(time.monotonic_ns() - started) / 1e9, verify_s=0.0,
        )  # fmt: skip

    def verify(self, digest: str, *, progress: Progress | None = None) -> Manifest:
        """Read all of a model and hash it. Raises `StoreError` with both hashes when a file is not what it was."""
        manifest = self.manifest(digest)
        self._read_back(manifest, progress or (lambda text: None))
        return manifest

    def digests(self) -> Iterator[str]:
        """The models that are here."""
        for key in self.blobs.keys("models/"):
            name = key.removeprefix("models/").removesuffix(".json")
            if _DIGEST.fullmatch(name):
                yield name

    # -- parts

    def _read_back(self, manifest: Manifest, say: Progress) -> None:
        seen: set[str] = set()
        for name, entry in manifest.files.items():
            if entry.sha256 not in seen:
                seen.add(entry.sha256)
                for _ in self._checked(name, entry, say, verb="verifying"):
                    pass

    def _checked(self, name: str, entry: FileEntry, say: Progress, *, verb: str = "fetching") -> Iterator[bytes]:
        """The bytes of a file; raises `StoreError` instead of ending when they were not the right ones."""
        try:
            pieces = self.blobs.read(_key(entry))
        except KeyError:
            raise StoreError(
                "weights_missing", f"{name} (SHA-256 {entry.sha256}) is missing from {self.blobs.url}",
                remedy="Put the model into the store again.", expected=entry.sha256,
            ) from None  # fmt: skip
        state = hashlib.sha256()
        count = 0
        for piece in _told(pieces, f"{verb} {name}", entry.size_bytes, say):
            state.update(piece)
            count += len(piece)
            yield piece
        if state.hexdigest() != entry.sha256:
            size = "" if count == entry.size_bytes else f" ({count} bytes instead of {entry.size_bytes})"
            raise mismatch(f"{name} in {self.blobs.url} was changed{size}", entry.sha256, state.hexdigest(), _AGAIN)


def same(expected: Manifest, found: Manifest, what: str) -> None:
    """Raise `StoreError` unless both hold the same files: the first that differs, with both hashes."""
    remedy = "Export the model again and let nothing else write to that folder."
    for name in sorted(expected.files.keys() | found.files.keys()):
        left, right = expected.files.get(name), found.files.get(name)
        if left is None or right is None:
            there = "is missing" if right is None else "was not among the files"
            raise StoreError(
                "weights_mismatch", f"{what}: {name} {there} (SHA-256 {(left or right or _NONE).sha256})",
                remedy=remedy, expected=left.sha256 if left else "", found=right.sha256 if right else "",
            )  # fmt: skip
        if left != right:
            raise mismatch(f"{what}: {name}", left.sha256, right.sha256, remedy)


_NONE: Final = FileEntry(sha256="", size_bytes=0)


def _key(entry: FileEntry) -> str:
    return f"blobs/{entry.sha256[:2]}/{entry.sha256}"


def _model_key(digest: str) -> str:
    return f"models/{digest}.json"


def _sent(path: Path, name: str, entry: FileEntry, say: Progress) -> Iterator[bytes]:
    """A file's bytes for the way up. What was hashed before must be what is read now."""
    state = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(CHUNK):
                yield piece

    for piece in _told(pieces(), f"storing {name}", entry.size_bytes, say):
        state.update(piece)
        yield piece
    if state.hexdigest() != entry.sha256:
        raise mismatch(
            f"{path} changed while it was stored", entry.sha256, state.hexdigest(),
            "Let the program that writes it come to its end first.",
        )  # fmt: skip


def _told(pieces: Iterable[bytes], text: str, total: int, say: Progress) -> Iterator[bytes]:
    done, shown = 0, time.monotonic()
    for piece in pieces:
        done += len(piece)
        if time.monotonic() - shown > _SAY_EVERY_S:
            shown = time.monotonic()
            say(f"{text}: {done / 1e9:.2f} of {total / 1e9:.2f} GB")
        yield piece
