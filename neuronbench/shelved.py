"""What a receipt's manifest in a store says, and a session's: their texts, and telling a whole one from a damaged one.

A manifest is written after all that it names, and carries a hash of itself. Whatever is read and is not exactly what
was written counts as none: these functions never raise for what a store holds. `neuronbench.shipping` says where the
manifests lie.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from neuronbench.model import Json, canonical_json
from neuronbench.sinks.contents import FileFact, RestoreError, check_path

FORMAT: Final = 1
"""Version of both documents; a receipt's manifest of another one counts as none."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Shelved:
    """A receipt as its manifest in the store has it."""

    session: str
    name: str
    files: Mapping[str, FileFact]
    at: Mapping[str, str]
    """Path → name of the object below the receipt's `files/`, which is another one only after an upload that broke."""

    @property
    def digest(self) -> str:
        """SHA-256 over names, sizes and hashes: two receipts with the same are the same."""
        return digest_of(self.files)


def digest_of(files: Mapping[str, FileFact]) -> str:
    """SHA-256 over the canonical list of a receipt's files."""
    return hashlib.sha256(canonical_json(_files(files)).encode()).hexdigest()


def _files(files: Mapping[str, FileFact]) -> dict[str, Json]:
    return {path: {"sha256": fact.sha256, "bytes": fact.bytes} for path, fact in sorted(files.items())}


def manifest_text(shelved: Shelved) -> str:
    """A manifest as it lies in the store; it carries a hash of itself, so that a damaged one is known."""
    body: dict[str, Json] = {
        "format": FORMAT, "session": shelved.session, "receipt": shelved.name, "files": _files(shelved.files),
        "at": {path: name for path, name in sorted(shelved.at.items()) if name != path},
    }  # fmt: skip
    return canonical_json({**body, "sha256": hashlib.sha256(canonical_json(body).encode()).hexdigest()})


def manifest_in(raw: bytes) -> Shelved | None:
    """The manifest that `raw` is; None for anything else."""
    try:
        told = json.loads(raw)
        digest = told.pop("sha256")
        if told["format"] != FORMAT or hashlib.sha256(canonical_json(told).encode()).hexdigest() != digest:
            return None
        files = {check_path(path): _fact(each) for path, each in told["files"].items()}
        at = {path: check_path(told["at"].get(path, path)) for path in files}
        return Shelved(session=str(told["session"]), name=str(told["receipt"]), files=files, at=at)
    except (ValueError, KeyError, TypeError, AttributeError, RestoreError, RecursionError):
        return None


def session_document(text: str) -> bytes:
    """A session's manifest, `text`, as it lies in the store; with a hash, so that a damaged one is known."""
    document = {"format": FORMAT, "sha256": hashlib.sha256(text.encode()).hexdigest(), "text": text}
    return canonical_json(document).encode()


def session_text(raw: bytes | None) -> str | None:
    """The session's manifest that a `session_document` holds; None for anything else."""
    if not raw:
        return None
    try:
        told = json.loads(raw)
        text = told["text"]
        return text if hashlib.sha256(text.encode()).hexdigest() == told["sha256"] else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _fact(told: Mapping[str, Json]) -> FileFact:
    sha256, size = told["sha256"], told["bytes"]
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256) or not isinstance(size, int) or size < 0:
        raise ValueError(f"expected a SHA-256 and a size, found {told!r}")
    return FileFact(sha256=sha256, bytes=size)
