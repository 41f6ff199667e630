"""What is made once and kept between sessions: compiled artifacts, answers of references; every hit and miss counted.

An artifact lies in `<cache>/artifacts/<key>/` beside `artifact.json`, which says all that went into the key. The folder
appears in one rename, so that a compile that was cut off leaves nothing that looks like an artifact, and one compile of
a key runs at a time on a host. A failed compile leaves `<key>.failure.json`: it is never used as an answer, the compile
is tried again, and the record of the new try cites the old failure. `journal.jsonl` has one line per event.

Whoever has an artifact holds `<key>.use`, shared, until it is released or the process ends, however that ends: what is
held is never removed. The time of that file is when the artifact was last used.

The answers of references (`<cache>/references/`) are kept in the same way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from neuronbench import keylocks
from neuronbench.model import Failure, Json, canonical_json, fingerprint, jsonable
from neuronbench.protocols import CacheEntry, Progress

MANIFEST: Final = "artifact.json"
JOURNAL: Final = "journal.jsonl"
FORMAT: Final = 1

Event: TypeAlias = Literal["hit", "miss", "corrupt", "published", "pulled", "failed", "removed"]


class Busy(TimeoutError):
    """Another process is compiling the same artifact and was not done in time."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A compiled model on disk."""

    key: str
    folder: Path
    manifest: Mapping[str, Json]
    hit: bool
    """Whether it was there; False when it was compiled now."""
    found_s: float
    """Looking it up and checking its digests."""
    notes: tuple[str, ...] = ()
    """What a reader of the record must know: a damaged artifact that was replaced, an earlier failure."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """`hits` and `misses` of this request."""
    held: keylocks.Lock | None = field(default=None, repr=False, compare=False)
    """Says to other processes that it is in use."""

    def release(self) -> None:
        """It is no longer needed: it may be removed from the cache. Idempotent."""
        if self.held is not None:
            self.held.close()

    @property
    def size_bytes(self) -> int:
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    @property
    def facts(self) -> Mapping[str, Json]:
        """What the compiler said of it."""
        return self.manifest["facts"]  # type: ignore[no-any-return]


def key_of(parts: Mapping[str, Json]) -> str:
    """The key of an artifact made from `parts`: model digest, shapes, dtype, compiler and its version, flags, ..."""
    return fingerprint({"format": FORMAT, **parts}, digest_bytes=12)


def source_digest(*files: Path) -> str:
    """Digest of source files that decide what is compiled: of their names and contents, not of where they lie."""
    state = hashlib.blake2b(digest_size=8)
    for name, text in sorted((path.name, path.read_bytes()) for path in files):
        state.update(name.encode() + b"\0" + text + b"\0")
    return state.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Words:
    """What is kept, for messages."""

    title: str
    noun: str
    made: str
    making: str


ARTIFACTS: Final = Words(title="compiled artifacts", noun="artifact", made="compiled", making="compiling")
REFERENCES: Final = Words(title="answers of references in fp32", noun="reference", made="computed", making="computing")


class ArtifactCache:
    """What is kept in one folder. Safe against other processes that use it; satisfies `protocols.Cache`."""

    def __init__(self, cache_dir: Path, name: str = "artifacts", words: Words = ARTIFACTS) -> None:
        self.name, self.title, self._words = name, words.title, words
        self.folder = cache_dir / name

    def obtain(
        self,
        parts: Mapping[str, Json],
        compile: Callable[[Path], Mapping[str, Json]],
        *,
        progress: Progress,
        deadline_s: float,
        failure_of: Callable[[BaseException], Failure | None] = lambda error: None,
        title: str = "",
    ) -> Artifact:
        """The artifact for `parts`; when it is not there, `compile(folder)` makes it in an empty folder.

        What `compile` returns becomes `facts` of the manifest; `title` says to people what it is. What `compile` raises
        is raised on, after it was noted together with what `failure_of` makes of it. Raises `Busy` when another process
        compiles the same for too long. The artifact is held until it is released or this process ends.
        """
        key = key_of(parts)
        self.folder.mkdir(parents=True, exist_ok=True)
        held = keylocks.share(self.folder / f"{key}.use")
        try:
            found = self._obtain(key, parts, compile, progress, time.monotonic() + deadline_s, failure_of, title)
        except BaseException:
            held.close()
            raise
        return replace(found, held=held)

    def _obtain(
        self,
        key: str,
        parts: Mapping[str, Json],
        compile: Callable[[Path], Mapping[str, Json]],
        progress: Progress,
        until: float,
        failure_of: Callable[[BaseException], Failure | None],
        title: str,
    ) -> Artifact:
        notes: list[str] = []
        found = self._look(key, notes)
        if found is not None:
            return found
        with self._locked(key, progress, until):
            found = self._look(key, notes)  # another process may have made it while we waited
            if found is not None:
                return found
            self._note(key, "miss")
            earlier = self.failure(key)
            if earlier:
                notes.append(
                    f"{self._words.making} the same failed {earlier['times']} time(s) before, last {earlier['at']}: "
                    f"{earlier['kind']}: {earlier['line']}; it was tried again"
                )
            return self._make(key, parts, compile, failure_of, notes, title)

    def failure(self, key: str) -> Mapping[str, Json] | None:
        """The last failed compile of a key; None when there is none, or it succeeded since."""
        try:
            return dict(json.loads(self._failure_file(key).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def journal(self) -> list[Mapping[str, Json]]:
        """Every event, oldest first; a line that was cut off is left out."""
        events: list[Mapping[str, Json]] = []
        with contextlib.suppress(OSError):
            for line in (self.folder / JOURNAL).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    events.append(dict(json.loads(line)))
        return events

    # -- parts

    def _failure_file(self, key: str) -> Path:
        return self.folder / f"{key}.failure.json"

    def _look(self, key: str, notes: list[str]) -> Artifact | None:
        folder = self.folder / key
        started = time.monotonic_ns()
        if not folder.is_dir():
            return None
        wrong = damage_of(folder)
        if wrong:
            words = self._words
            notes.append(f"the {words.noun} in the cache was damaged ({wrong}) and was {words.made} anew")
            self._note(key, "corrupt", wrong)
            shutil.rmtree(folder, ignore_errors=True)
            return None
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        found_s = (time.monotonic_ns() - started) / 1e9
        self._note(key, "hit")
        return Artifact(
            key=key, folder=folder, manifest=manifest, hit=True, found_s=found_s, notes=tuple(notes),
            counts={"hits": 1, "misses": 0},
        )  # fmt: skip

    def _make(
        self,
        key: str,
        parts: Mapping[str, Json],
        compile: Callable[[Path], Mapping[str, Json]],
        failure_of: Callable[[BaseException], Failure | None],
        notes: list[str],
        title: str,
    ) -> Artifact:
        for stale in self.folder.glob(f"{key}.tmp-*"):  # we hold the lock: whoever made them is gone
            shutil.rmtree(stale, ignore_errors=True)
        work = self.folder / f"{key}.tmp-{os.getpid()}"
        work.mkdir()
        try:
            facts = jsonable(compile(work))
            manifest = {
                "format": FORMAT,
                "key": key,
                "title": title,
                "parts": jsonable(parts),
                "facts": facts,
                "files": {path.relative_to(work).as_posix(): _describe(path) for path in _files(work)},
                "created_at": _now(),
            }
            if not manifest["files"]:
                raise RuntimeError(f"{self._words.making} reported success and left no file")
            (work / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
            for path in [*_files(work), work]:
                _fsync(path)
            os.rename(work, self.folder / key)
            _fsync(self.folder)
        except BaseException as error:
            if isinstance(error, Exception):
                self._failed(key, error, failure_of(error))
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._failure_file(key).unlink(missing_ok=True)
        self._note(key, "published")
        return Artifact(
            key=key, folder=self.folder / key, manifest=manifest, hit=False, found_s=0.0, notes=tuple(notes),
            counts={"hits": 0, "misses": 1},
        )  # fmt: skip

    def _failed(self, key: str, error: Exception, failure: Failure | None) -> None:
        line = (failure.causal_line or failure.message) if failure else f"{type(error).__name__}: {error}"
        kind = failure.kind if failure else type(error).__name__
        earlier = self.failure(key)
        told = {"kind": kind, "line": line[:500], "at": _now(), "times": 1 + int(earlier["times"] if earlier else 0)}
        temporary = self._failure_file(key).with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(told), encoding="utf-8")
        os.replace(temporary, self._failure_file(key))
        self._note(key, "failed", f"{kind}: {line[:200]}")

    def _note(self, key: str, event: Event, detail: str = "") -> None:
        line = canonical_json({"at": _now(), "key": key, "event": event, "detail": detail, "pid": os.getpid()}) + "\n"
        with open(self.folder / JOURNAL, "ab", buffering=0) as file:
            file.write(line.encode())  # one write of a short line in append mode: lines of processes do not mix

    @contextmanager
    def _locked(self, key: str, progress: Progress, until: float) -> Iterator[None]:
        while (lock := keylocks.take(self.folder / f"{key}.lock")) is None:
            if time.monotonic() >= until:
                raise Busy(f"another process is still {self._words.making} {self._words.noun} {key}") from None
            progress(f"waiting for another process that is {self._words.making} the same")
            time.sleep(0.2)
        with lock:
            yield

    # -- looking after it: satisfies `protocols.Cache`

    def entries(self) -> list[CacheEntry]:
        """Everything that is kept, what a killed compile left among it; the one that was not used for longest first."""
        found: dict[str, CacheEntry] = {}
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if path.is_dir():
                with contextlib.suppress(OSError):  # renamed or removed meanwhile
                    found[path.name] = self._entry(path)
        return sorted(found.values(), key=lambda entry: (entry.used_at, entry.key))

    def _entry(self, path: Path) -> CacheEntry:
        size = sum(file.stat().st_size for file in _files(path))
        key, _, unfinished = path.name.partition(".tmp-")
        title, created = "", path.stat().st_mtime
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            title = str(manifest.get("title") or _title(manifest["parts"]))
            created = datetime.fromisoformat(manifest["created_at"]).timestamp()
        use = self.folder / f"{key}.use"
        used = max(created, use.stat().st_mtime) if use.is_file() else created
        # What was never finished is in use as long as somebody is at it.
        lock = self.folder / (f"{key}.lock" if unfinished else f"{key}.use")
        if unfinished:
            title, used = f"left by a process that ended while {self._words.making}", created
        return CacheEntry(
            key=path.name, title=title, size_bytes=size, created_at=created, used_at=used, in_use=keylocks.is_held(lock)
        )

    def damage(self, key: str) -> str:
        """What is wrong with an entry, in a few words; empty when its files are those that were written."""
        return "was never finished" if ".tmp-" in key else damage_of(self.folder / key)

    def remove(self, key: str) -> bool:
        """Remove an entry and what belongs to it; False when somebody uses it."""
        name, _, unfinished = key.partition(".tmp-")
        if not name or not (self.folder / key).resolve().is_relative_to(self.folder.resolve()) or "/" in key:
            raise ValueError(f"{key!r} is no key of {self.folder}")
        locks = []
        try:
            for suffix in (".lock",) if unfinished else (".lock", ".use"):
                locks.append(keylocks.take(self.folder / f"{name}{suffix}"))
                if locks[-1] is None:
                    return False
            if unfinished:
                shutil.rmtree(self.folder / key, ignore_errors=True)
                return True
            # Out of sight in one step: nobody finds half an artifact.
            gone = self.folder / f"{key}.tmp-{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.folder / key, gone)
            shutil.rmtree(gone, ignore_errors=True)
            for path in (self._failure_file(name), self.folder / f"{name}.use", self.folder / f"{name}.lock"):
                path.unlink(missing_ok=True)
            self._note(key, "removed")
            return True
        finally:
            for lock in locks:
                if lock is not None:
                    lock.close()


def _title(parts: Mapping[str, Json]) -> str:
    """Of an artifact that was made before artifacts had titles."""
    shape = parts.get("shape") or {}
    sizes = "×".join(str(shape[name]) for name in ("batch_size", "sequence_length") if name in shape)
    words = [parts.get("family"), parts.get("task"), sizes, parts.get("dtype")]
    return " ".join(str(word) for word in words if word)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _describe(path: Path) -> dict[str, Json]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def damage_of(folder: Path) -> str:
    """What is wrong with an artifact, in a few words; empty when it is whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']}"
        for name, told in manifest["files"].items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if _describe(folder / name) != told:
                return f"{name} has other contents than were written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST}: {type(error).__name__}"
    return ""


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
