"""A store of models by digest: put a folder in, get it out elsewhere, and know that it is the same.

A file lies under its own SHA-256 (`blobs/ab/abcdef...`), so that files which models share are kept once. The list of a
model's files (`models/<digest>.json`) is written last: what was cut off is no model. Nothing is ever overwritten.
What was cut off goes on where it stopped when the same is done again, up and down, in another process as well.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from neuronbench.model import Json
from neuronbench.protocols import Progress
from neuronbench.weights.adapters import CONFIG, AdapterFacts, Base, base_in, is_adapter
from neuronbench.weights.arrival import alone, kept_in, occupied, partial_of
from neuronbench.weights.blobs import Blobs, Sent
from neuronbench.weights.manifest import FileEntry, Manifest, StoreError, folder_files, mismatch
from neuronbench.weights.meter import Meter, said_bytes
from neuronbench.weights.transfers import checked_there, fetch_files, missing, send_file, wrong_bytes

Verify: TypeAlias = Literal["checksum", "full"]
"""How what a store holds is compared with what was put in. `checksum`: by the SHA-256 that the service computed of it,
and by reading back where it has none; `full`: by reading all of it back."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_AGAIN: Final = "Remove the damaged object from the store and put the model in again."


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What putting in or getting out did."""

    manifest: Manifest
    store: str
    moved_bytes: int
    """Bytes that were transferred for it."""
    reused_bytes: int
    """Bytes of files that were there already, whole or in part."""
    wall_s: float
    verify_s: float
    """The part of `wall_s` in which what is in the store was compared with what was put in."""
    resumed_bytes: int = 0
    """Of those that were there: what a transfer that was cut off had left."""
    read_back_bytes: int = 0
    """Compared by reading them back and hashing them."""
    checksum_bytes: int = 0
    """Compared by the SHA-256 that the service has computed of them."""
    retries: int = 0
    """Requests that had to be made once more: throttled, broken, or damaged on their way."""
    there: bool = False
    """Nothing was to be done: it was there, whole and equal."""
    base: Base | None = None
    """Of an adapter: what is known of the model that it belongs to. None for what is no adapter."""

    def facts(self) -> dict[str, Json]:
        """What a record says of it."""
        return {
            "store": self.store, "digest": self.manifest.digest, "weights_digest": self.manifest.weights_digest,
            "files": self.manifest.to_json(), "moved_bytes": self.moved_bytes, "reused_bytes": self.reused_bytes,
            "resumed_bytes": self.resumed_bytes, "read_back_bytes": self.read_back_bytes,
            "checksum_bytes": self.checksum_bytes, "retries": self.retries,
            "wall_s": self.wall_s, "verify_s": self.verify_s,
            **({} if self.base is None else {"kind": "adapter", "base": self.base.to_json()}),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What putting in or getting out would do."""

    manifest: Manifest
    missing: Mapping[str, FileEntry] = field(default_factory=dict)
    """Files that would be transferred; what an earlier try has left of them is not looked at."""

    @property
    def size_bytes(self) -> int:
        """That would be transferred."""
        return sum(entry.size_bytes for entry in {entry.sha256: entry for entry in self.missing.values()}.values())


class WeightStore:
    """Models by digest in one place."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.adapters = AdapterFacts(blobs)

    # -- in

    def put(
        self,
        folder: Path,
        *,
        expected: Manifest | None = None,
        progress: Progress | None = None,
        verify: Verify = "checksum",
        base: Base | None = None,
    ) -> Shipped:
        """Keep the model in `folder`; returns after all of it was compared with what the store then has.

        `expected`: what the folder has to hold, such as what a trainer said it exported. `base`: of an adapter, the
        model that it belongs to, where that is known better than the folder says; a base that is in this store is
        found by its digest. Raises `StoreError` with both
        hashes when the folder, or what is in the store, is something else. What was cut off goes on with the next one.
        """
        say = progress or (lambda text: None)
        started = time.monotonic_ns()
        manifest = Manifest.of(folder, progress=say)
        if expected is not None:
            same(expected, manifest, f"{folder} is not what was exported")
        known = self._base(folder, manifest, base, say)
        meter = Meter(say, manifest.size_bytes)
        sent: dict[str, Sent] = {}
        for name, entry in manifest.files.items():
            if entry.sha256 in sent:
                meter.there(entry.size_bytes)
                continue
            meter.label(f"storing {name}")
            sent[entry.sha256] = send_file(self.blobs, key_of(entry), folder / name, entry, meter)
        verifying = time.monotonic_ns()
        checked, read = self._compare(manifest, folder, sent, verify, say)
        text = manifest.text()
        self.blobs.write(_model_key(manifest.digest), [text.encode()], len(text))
        self.manifest(manifest.digest)
        if known is not None:
            known = self.adapters.tell(manifest.digest, known)
        ended = time.monotonic_ns()
        moved = sum(each.moved_bytes for each in sent.values())
        return Shipped(
            manifest=manifest, store=self.blobs.url, moved_bytes=moved,
            reused_bytes=max(manifest.size_bytes - moved, 0),
            resumed_bytes=sum(each.resumed_bytes for each in sent.values()), checksum_bytes=checked,
            read_back_bytes=read, retries=sum(each.retries for each in sent.values()), there=not moved,
            base=known, wall_s=(ended - started) / 1e9, verify_s=(ended - verifying) / 1e9,
        )  # fmt: skip

    def plan_put(self, folder: Path, *, progress: Progress | None = None) -> Planned:
        """What `put` would transfer. Nothing is written."""
        manifest = Manifest.of(folder, progress=progress)
        absent = {name: each for name, each in manifest.files.items() if self.blobs.size(key_of(each)) is None}
        return Planned(manifest=manifest, missing=absent)

    # -- what is here

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

    def has(self, digest: str) -> bool:
        """Whether the model is here."""
        return self.blobs.size(_model_key(digest)) is not None

    def full_digest(self, start: str) -> str:
        """The one model whose digest begins so. Raises `StoreError` when there is none, or several."""
        if _DIGEST.fullmatch(start) or not re.fullmatch(r"[0-9a-f]{6,63}", start):
            return start  # `manifest` says what is wrong with it
        found = sorted(
            key.removeprefix("models/").removesuffix(".json") for key in self.blobs.keys(f"models/{start}")
        )  # fmt: skip
        if len(found) == 1:
            return found[0]
        what = f"several models that begin with {start}" if found else f"no model that begins with {start}"
        raise StoreError(
            "weights_missing", f"{self.blobs.url} has {what}", remedy="Give more of the digest: weights list shows all."
        )

    def digests(self) -> Iterator[str]:
        """The models that are here."""
        for key in self.blobs.keys("models/"):
            name = key.removeprefix("models/").removesuffix(".json")
            if _DIGEST.fullmatch(name):
                yield name

    def verify(self, digest: str, *, progress: Progress | None = None) -> Manifest:
        """Read all of a model and hash it. Raises `StoreError` with both hashes when a file is not what it was."""
        manifest = self.manifest(digest)
        self._read_back(manifest.files, progress or (lambda text: None))
        return manifest

    # -- out

    def get(self, digest: str, into: Path, *, progress: Progress | None = None) -> Shipped:
        """Write the model to the folder `into`; every byte is hashed on its way.

        The folder appears whole or not at all. Where it is there already and holds the same model, that is said
        (`there`) and nothing is done. What was cut off lies beside it, under a name made of the digest, and the next
        `get` goes on from there; of two who write the same folder one waits. Raises `StoreError`: `store_occupied` for
        a folder that holds something else, with both hashes when a file in the store is not what it was.
        """
        say = progress or (lambda text: None)
        started = time.monotonic_ns()
        manifest = self.manifest(digest)
        base = self.adapters.base(digest) if is_adapter(manifest) else None

        def shipped(moved: int, kept: int, *, there: bool = False) -> Shipped:
            return Shipped(
                manifest=manifest, store=self.blobs.url, moved_bytes=moved, there=there,
                reused_bytes=manifest.size_bytes if there else kept, resumed_bytes=0 if there else kept,
                wall_s=(time.monotonic_ns() - started) / 1e9, verify_s=0.0, base=base,
            )  # fmt: skip

        if occupied(into, manifest, say):
            return shipped(0, 0, there=True)
        into.parent.mkdir(parents=True, exist_ok=True)
        work = partial_of(into, digest)
        with alone(work, say):
            if occupied(into, manifest, say):  # whoever had it before us was writing the same
                return shipped(0, 0, there=True)
            here = sum(path.stat().st_size for path in folder_files(work)) if work.is_dir() else 0
            free = shutil.disk_usage(into.parent).free
            wanted = manifest.size_bytes - min(here, manifest.size_bytes)
            if free < wanted:
                raise StoreError(
                    "disk_full",
                    f"{said_bytes(wanted)} are still to come of the model's {said_bytes(manifest.size_bytes)}, "
                    f"{into.parent} has room for {said_bytes(free)}",
                    remedy="Free space, or give a folder elsewhere.",
                )  # fmt: skip
            meter = Meter(say, manifest.size_bytes)
            keys = {name: key_of(entry) for name, entry in manifest.files.items()}
            try:
                moved, kept = fetch_files(self.blobs, manifest.files, keys, work, meter)
            except StoreError as error:
                raise kept_in(work, error) from error
            if into.is_dir() and not into.is_symlink():
                into.rmdir()  # an empty one
            os.rename(work, into)
        return shipped(moved, kept)

    # -- parts

    def _base(self, folder: Path, manifest: Manifest, told: Base | None, say: Progress) -> Base | None:
        """Of an adapter what is known of its base; None for a model that is none. Raises `StoreError` for two bases."""
        if not is_adapter(manifest):
            if told is not None:
                raise StoreError(
                    "bad_parameters", f"{folder} is no adapter (there is no {CONFIG}), and has no base",
                    remedy="Leave the base out, or give the adapter's folder.",
                )  # fmt: skip
            return None
        found = base_in(folder)
        found = found if told is None else told.joined(found, str(folder))
        if found.weights_digest and not found.digest:
            say(f"looking for the base in {self.blobs.url}")
            for digest in self.digests():
                if self.manifest(digest).weights_digest == found.weights_digest:
                    return replace(found, digest=digest)
        return found

    def _compare(
        self, manifest: Manifest, folder: Path, sent: Mapping[str, Sent], verify: Verify, say: Progress
    ) -> tuple[int, int]:
        """Compare what is in the store with the folder: bytes by the service's checksum, bytes by reading them."""
        checked, to_read = 0, {}
        for name, entry in _once(manifest.files).items():
            told = sent[entry.sha256]
            known = told.checked
            if verify == "checksum" and not known:
                say(f"asking {self.blobs.url} for its checksum of {name}")
                known = checked_there(self.blobs, key_of(entry), folder / name, entry)
            if verify == "checksum" and known:
                checked += entry.size_bytes
            else:
                to_read[name] = entry
        self._read_back(to_read, say)
        return checked, sum(entry.size_bytes for entry in to_read.values())

    def _read_back(self, files: Mapping[str, FileEntry], say: Progress) -> None:
        wanted = _once(files)
        meter = Meter(say, sum(entry.size_bytes for entry in wanted.values()))
        for name, entry in wanted.items():
            meter.label(f"reading back {name}")
            try:
                pieces = self.blobs.read(key_of(entry))
            except KeyError:
                raise missing(self.blobs, name, entry) from None
            state, count = hashlib.sha256(), 0
            for piece in pieces:
                state.update(piece)
                count += len(piece)
                meter.moved(len(piece))
            if state.hexdigest() != entry.sha256:
                raise wrong_bytes(self.blobs, name, entry, state.hexdigest(), count)


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


def key_of(entry: FileEntry) -> str:
    """Where a file lies in a store."""
    return f"blobs/{entry.sha256[:2]}/{entry.sha256}"


def _model_key(digest: str) -> str:
    return f"models/{digest}.json"


def _once(files: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    """Of files with the same contents the first."""
    first: dict[str, str] = {}
    for name, entry in files.items():
        first.setdefault(entry.sha256, name)
    return {name: files[name] for name in first.values()}
