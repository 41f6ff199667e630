"""Entries of compile caches between hosts, through the same blobs as weights: by digest, never overwritten.

A file lies under its own SHA-256 (`blobs/ab/abcdef...`). What an entry holds (`entries/<scope>/<key>.json`) is written
last of all: what was cut off is no entry, and doing the same again sends only what is missing, of a large file only the
parts that are missing. The first who sends an entry stays; compilers do not give the same bytes twice, and an
executable that others measured with is not replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from neuronbench.model import Json, canonical_json
from neuronbench.weights.blobs import Blobs
from neuronbench.weights.manifest import FileEntry, StoreError
from neuronbench.weights.meter import Meter
from neuronbench.weights.transfers import fetch_files, send_file

FORMAT: Final = 1
SCOPE_PARTS: Final = 3
"""Cache, compiler, cores."""
Done: TypeAlias = Literal["sent", "there", "other"]
"""`other`: there is an entry of that key with other contents, which stays."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PART: Final = re.compile(r"[A-Za-z0-9][\w.+=@-]*")
"""Of scopes and keys. Names of files may begin with a dot, too."""
_NAME: Final = re.compile(r"[\w.+=@-]+")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What an entry holds."""

    scope: str
    key: str
    files: Mapping[str, FileEntry]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files.values())

    def text(self) -> str:
        """As it lies in a store."""
        files = {name: {"sha256": each.sha256, "bytes": each.size_bytes} for name, each in sorted(self.files.items())}
        return canonical_json({"format": FORMAT, "scope": self.scope, "key": self.key, "files": files})


class EntryStore:
    """Entries of caches in one place."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs

    def put(self, scope: str, key: str, files: Mapping[str, Path], *, meter: Meter | None = None) -> tuple[Done, int]:
        """Keep an entry; what became of it, and bytes that were sent. `meter` counts all of the entry's bytes.

        Raises `StoreError`, also when a file changes meanwhile: the entry is not there then."""
        where = _entry_key(scope, key)
        meter = meter or Meter(None, 0)
        entry = Entry(scope=scope, key=key, files={_checked(name): _hashed(path) for name, path in files.items()})
        known = self._entry(where)
        if known is not None:
            meter.there(entry.size_bytes)
            return ("there" if known.files == entry.files else "other"), 0
        moved = 0
        for name, each in entry.files.items():
            moved += send_file(self.blobs, _blob_key(each), files[name], each, meter).moved_bytes
        text = entry.text().encode()
        if self.blobs.write(where, [text], len(text)):
            return "sent", moved
        other = self._entry(where)  # somebody else was faster
        return ("there" if other is not None and other.files == entry.files else "other"), moved

    def has(self, scope: str, key: str) -> bool:
        """Whether there is an entry of that key."""
        return self.blobs.size(_entry_key(scope, key)) is not None

    def entries(self, scope: str) -> Iterator[Entry]:
        """All entries of a scope. Raises `StoreError` for one whose list of files was changed."""
        prefix = f"entries/{_path(scope)}/"
        for where in sorted(self.blobs.keys(prefix)):
            found = self._entry(where)
            if found is not None:
                yield found

    def scopes(self) -> list[str]:
        """Scopes that have entries here."""
        return sorted({"/".join(where.split("/")[1 : 1 + SCOPE_PARTS]) for where in self.blobs.keys("entries/")})

    def fetch(self, entry: Entry, into: Path, *, meter: Meter | None = None) -> int:
        """Write the files of an entry to the folder `into`; every byte is hashed on its way. Bytes that were moved.

        What an earlier try has left there is hashed and kept, and nothing but the entry is there in the end. Raises
        `StoreError`, with both hashes where a file is not what it was: that file is not there then.
        """
        files = {_checked(name): each for name, each in entry.files.items()}
        keys = {name: _blob_key(each) for name, each in files.items()}
        moved, _ = fetch_files(self.blobs, files, keys, into, meter or Meter(None, entry.size_bytes))
        return moved

    # -- parts

    def _entry(self, where: str) -> Entry | None:
        try:
            raw = b"".join(self.blobs.read(where))
        except KeyError:
            return None
        try:
            told = json.loads(raw)
            if told["format"] != FORMAT:
                raise ValueError(f"format {told['format']}")
            files = {_checked(name): _file(each) for name, each in told["files"].items()}
            entry = Entry(scope=told["scope"], key=told["key"], files=files)
            if _entry_key(entry.scope, entry.key) != where:
                raise ValueError("it names another entry")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                "weights_corrupt", f"{self.blobs.url}: {where} cannot be read: {error}",
                remedy="Remove that object from the store and push the entry again.",
            ) from error  # fmt: skip
        return entry


def _file(told: Json) -> FileEntry:
    sha256, size = told["sha256"], told["bytes"]
    if not _SHA256.fullmatch(sha256) or isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"expected a SHA-256 and a size, found {told!r}")
    return FileEntry(sha256=sha256, size_bytes=size)


def _hashed(path: Path) -> FileEntry:
    with path.open("rb") as file:
        return FileEntry(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size_bytes=path.stat().st_size)


def _blob_key(entry: FileEntry) -> str:
    return f"blobs/{entry.sha256[:2]}/{entry.sha256}"


def _entry_key(scope: str, key: str) -> str:
    if scope.count("/") != SCOPE_PARTS - 1:
        raise StoreError(
            "weights_unsafe_name", f"scope {scope!r} is not of the form cache/compiler/cores",
            remedy="Give one that `neuronbench cache push` has said.",
        )  # fmt: skip
    return f"entries/{_path(scope)}/{_path(key)}.json"


def _path(text: str) -> str:
    """A scope or a key, which may have slashes. Raises `StoreError` for what could lead elsewhere."""
    if not all(_PART.fullmatch(part) for part in text.split("/")):
        raise _unsafe(text)
    return text


def _checked(name: str) -> str:
    parts = name.split("/")
    if not all(_NAME.fullmatch(part) and part not in (".", "..") for part in parts):
        raise _unsafe(name)
    return name


def _unsafe(name: str) -> StoreError:
    return StoreError(
        "weights_unsafe_name", f"{name!r} is no plain relative name such as `neuronxcc-2.21/MODULE_1+2`",
        remedy="Do not use this entry: its list of files was made wrong, or made to write elsewhere.",
    )  # fmt: skip
