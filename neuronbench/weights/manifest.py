"""What a folder of a model holds: the name, SHA-256 and size of every file, and one digest over all of it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from neuronbench import modelfiles
from neuronbench.model import Failure, Json, canonical_json
from neuronbench.protocols import Progress
from neuronbench.weights.meter import Meter

FORMAT: Final = 1
CHUNK: Final = 1 << 20
"""Bytes that are read, hashed and written at a time."""
FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a system says when nothing more can be written."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME: Final = 400


class StoreError(Exception):
    """A model cannot be kept or had. `kind` is the class of failure; `expected` and `found` are hashes that differ."""

    def __init__(self, kind: str, message: str, *, remedy: str, expected: str = "", found: str = "") -> None:
        super().__init__(f"{message}\n  To do: {remedy}")
        self.kind, self.message, self.remedy, self.expected, self.found = kind, message, remedy, expected, found

    def failure(self, phase: str = "transfer") -> Failure:
        """The same as it stands in a record."""
        return Failure(kind=self.kind, phase=phase, message=self.message, causal_line=self.message, remedy=self.remedy)


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file: its SHA-256 (hexadecimal) and size."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All files of a model's folder by relative name."""

    files: Mapping[str, FileEntry]

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType({name: self.files[name] for name in sorted(self.files)}))
        if not self.files:
            raise StoreError(
                "weights_missing", "a model without files cannot be kept",
                remedy="Give the folder the model was written to.",
            )  # fmt: skip
        check_names(self.files)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest's canonical JSON: the address of the model in a store."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @property
    def weights_digest(self) -> str:
        """The digest over the weight files alone, as facts of endpoints and compiled models have it."""
        hashes = {name: entry.sha256 for name, entry in self.files.items() if modelfiles.is_weight_name(name)}
        return modelfiles.combined(hashes)

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files.values())

    def text(self) -> str:
        """The manifest as it lies in a store."""
        return canonical_json({"format": FORMAT, "files": self.to_json()})

    def to_json(self) -> dict[str, Json]:
        """Name → `sha256` and `bytes`."""
        return {name: {"sha256": entry.sha256, "bytes": entry.size_bytes} for name, entry in self.files.items()}

    @classmethod
    def from_json(cls, files: Mapping[str, Json]) -> Manifest:
        """From what `to_json` gives, and from the files that `Trainer.export` names. Raises `StoreError`."""
        entries: dict[str, FileEntry] = {}
        for name, told in files.items():
            if not isinstance(told, Mapping):
                raise _not_a_manifest(f"{name!r} is no table")
            sha256, size = told.get("sha256"), told.get("bytes")
            if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
                raise _not_a_manifest(f"the hash of {name!r} is {sha256!r}")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise _not_a_manifest(f"the size of {name!r} is {size!r}")
            entries[name] = FileEntry(sha256=sha256, size_bytes=size)
        return cls(files=entries)

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """From what `text` gives. Raises `StoreError` for anything else."""
        try:
            told = json.loads(text)
        except ValueError as error:
            raise _not_a_manifest(str(error)) from error
        if not isinstance(told, dict) or told.get("format") != FORMAT or not isinstance(told.get("files"), dict):
            raise _not_a_manifest(f"expected format {FORMAT} with files")
        return cls.from_json(told["files"])

    @classmethod
    def of(cls, folder: Path, *, progress: Progress | None = None) -> Manifest:
        """Every file below `folder` but hidden ones, read and hashed. Links to files count as files."""
        if not folder.is_dir():
            raise StoreError(
                "weights_missing", f"there is no folder {folder}", remedy="Give the folder the model was written to."
            )  # fmt: skip
        entries: dict[str, FileEntry] = {}
        found = folder_files(folder)
        meter = Meter(progress, sum(path.stat().st_size for path in found))
        for path in found:
            name = path.relative_to(folder).as_posix()
            meter.label(f"hashing {name}")
            if progress is not None:
                progress(meter.text)
            state, size = hashlib.sha256(), 0
            with path.open("rb", buffering=0) as file:
                while piece := file.read(CHUNK):
                    state.update(piece)
                    size += len(piece)
                    meter.moved(len(piece))
            entries[name] = FileEntry(sha256=state.hexdigest(), size_bytes=size)
        return cls(files=entries)


def folder_files(folder: Path) -> list[Path]:
    """Files below `folder`, hidden ones and hidden folders left out."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def check_names(names: Mapping[str, object]) -> None:
    """Raise `StoreError` for a name that could lead out of its folder, and for two that exclude each other."""
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}
    for name in names:
        parts = name.split("/")
        wrong = (
            not name
            or len(name) > _LONGEST_NAME
            or any(part in ("", ".", "..") or part.startswith(".") for part in parts)
            or "\\" in name
            or any(not character.isprintable() for character in name)
        )
        if wrong or name in folders:
            raise StoreError(
                "weights_unsafe_name",
                f"a file of the model is called {name!r}: expected a plain relative name such as `model.safetensors`",
                remedy="Do not use this model: its list of files was made wrong, or made to write elsewhere.",
            )


def mismatch(what: str, expected: str, found: str, remedy: str) -> StoreError:
    """The error for contents that are not what they should be, with both hashes."""
    return StoreError(
        "weights_mismatch", f"{what}: expected SHA-256 {expected}, found {found}", remedy=remedy, expected=expected,
        found=found,
    )  # fmt: skip


def _not_a_manifest(why: str) -> StoreError:
    return StoreError(
        "weights_corrupt", f"the list of a model's files cannot be read: {why}",
        remedy="Put the model into the store again.",
    )  # fmt: skip
