"""Receipts through a store of objects: sent as they are written, fetched elsewhere, the same to the last byte.

```text
<prefix><session>/
  session.begun.json            what was planned, and where: the session's manifest as it was first seen
  session.json                  the same at its end
  <receipt>/files/<path>        the receipt's files
  <receipt>/MANIFEST.json       their names, sizes and SHA-256, written last of all: without it there is no receipt
  <receipt>~<digest>/...        another receipt of the same name, kept beside the first
```

Nothing is ever overwritten or deleted. What was written is read back and hashed before it is called sent; an object
that is not what it should be (a body that was cut short) stays where it is, and the right one goes beside it under the
next name (`<path>~2`, `MANIFEST-2.json`). So an upload that broke can be repeated as often as one likes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from neuronbench.protocols import Progress
from neuronbench.receipts import ReceiptError, write_atomic
from neuronbench.receipts.sessions import MANIFEST as SESSION
from neuronbench.receipts.sessions import read_manifest
from neuronbench.shelved import Shelved, digest_of, manifest_in, manifest_text, session_document, session_text
from neuronbench.sinks.contents import FileFact, check_name, check_path, contents, restore
from neuronbench.sinks.contents import RestoreError as RestoreError
from neuronbench.weights import Blobs, StoreError
from neuronbench.weights.blobs import blobs

Done: TypeAlias = Literal["sent", "there", "other"]
"""`there`: it was in the store already. `other`: another receipt has its name there; this one is kept beside it."""
Name: TypeAlias = tuple[str, str]
"""Session and receipt."""

_TRIES: Final = 9
"""Names that are tried for an object before the store is called broken."""
_CHUNK: Final = 1 << 20
_LARGEST_MANIFEST: Final = 8 << 20
_MANIFEST_KEY: Final = re.compile(r"([^/]+)/([^/]+)/MANIFEST(?:-\d)?\.json")
_FILE_KEY: Final = re.compile(r"([^/]+)/([^/]+)/files/.+")
_SESSION_KEY: Final = re.compile(r"([^/]+)/session(?:\.begun)?(?:-\d)?\.json")
_OTHER: Final = re.compile(r"(.+)~[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a shelf holds, by names alone; nothing was read."""

    whole: Sequence[Name] = ()
    """Receipts with a manifest."""
    others: Sequence[Name] = ()
    """Receipts that were sent under a name that another one had."""
    unfinished: Sequence[Name] = ()
    """Files without a manifest: still being sent, or cut off."""
    sessions: Sequence[str] = ()


@dataclass(kw_only=True)
class Pulled:
    """What fetching did."""

    fetched: list[str] = field(default_factory=list)
    """Ids of receipts that are here now and were not."""
    kept: list[str] = field(default_factory=list)
    """Those that were here already, equal to the last byte."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Id and reason: another receipt of that name is here, or what came is not what was sent."""
    problems: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """Ids of receipts that are not whole in the store yet. No failure: they may come."""

    @property
    def ok(self) -> bool:
        return not self.refused and not self.problems


class ReceiptShelf:
    """Receipts in a store, below `prefix` (empty, or with a slash at its end).

    Every call raises `StoreError` when the store cannot be reached; doing the same again goes on where it was.
    """

    def __init__(self, store: Blobs, prefix: str = "") -> None:
        self.blobs = store
        self.prefix = prefix
        self.url = f"{store.url}/{prefix}".rstrip("/")

    # -- sending

    def put(self, folder: Path, *, progress: Progress = lambda text: None) -> Done:
        """Send the receipt in `folder` (`.../<session>/<receipt>`); returns after all of it was read back and hashed.

        Raises `StoreError`; `RestoreError` when the folder is no receipt or changes meanwhile.
        """
        session, name = check_name(folder.parent.name, "session"), check_name(folder.name, "receipt")
        facts = contents(folder)
        if "record.json" not in facts:
            raise RestoreError(f"{folder}: expected a receipt with its record.json, found none")
        wanted = digest_of(facts)
        for where, fresh, known in (
            (f"{session}/{name}", "sent", "there"),
            (f"{session}/{name}~{wanted[:12]}", "other", "other"),
        ):
            there = self._manifest(where)
            if there is None:
                progress(f"sending {session}/{name}")
                at = {path: self._put_file(where, path, folder / path, fact) for path, fact in facts.items()}
                there = self._put_manifest(where, Shelved(session=session, name=name, files=facts, at=at))
                known = fresh
            if there.digest == wanted:
                return known  # type: ignore[return-value]
        raise StoreError(
            "store_occupied", f"{self.url}/{session}/{name}~{wanted[:12]} holds another receipt than its name says",
            remedy="Look at that place: something else than neuronbench writes there.",
        )  # fmt: skip

    def put_session(self, folder: Path, *, ended: bool) -> None:
        """Send a session's manifest: as it begins, and once more when nothing will change it. Without one: nothing."""
        try:
            text = (folder / SESSION).read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        data = session_document(text)
        stem = f"{check_name(folder.name, 'session')}/session{'' if ended else '.begun'}"
        for key in _numbered(stem, ".json"):
            if self.blobs.write(self.prefix + key, [data], len(data)) and self._raw(key) == data:
                return
            if session_text(self._raw(key)) is not None:
                return  # there is one already: the first stays
        raise self._broken(stem)

    # -- looking

    def names(self) -> Listing:
        """What is here."""
        whole: dict[Name, None] = {}
        begun: dict[Name, None] = {}
        sessions: dict[str, None] = {}
        for key in self.blobs.keys(self.prefix):
            key = key.removeprefix(self.prefix)
            if found := _MANIFEST_KEY.fullmatch(key):
                whole[(found[1], found[2])] = None
            elif found := _FILE_KEY.fullmatch(key):
                begun[(found[1], found[2])] = None
            elif found := _SESSION_KEY.fullmatch(key):
                sessions[found[1]] = None
        others = [name for name in whole if (of := _OTHER.fullmatch(name[1])) and (name[0], of[1]) in whole]
        return Listing(
            whole=tuple(sorted(name for name in whole if name not in others)),
            others=tuple(sorted(others)),
            unfinished=tuple(sorted(name for name in begun if name not in whole)),
            sessions=tuple(sorted({*sessions, *(session for session, _ in whole)})),
        )

    def manifest(self, session: str, name: str) -> Shelved:
        """The files of a receipt. Raises `RestoreError` when it is not whole here, or its manifest was changed."""
        found = self._manifest(f"{check_name(session, 'session')}/{check_name(name, 'receipt')}")
        if found is None:
            raise RestoreError(f"{session}/{name}: {self.url} has no manifest of it that can be read")
        if (found.session, found.name) != (session, name):
            raise RestoreError(f"{session}/{name}: its manifest is that of {found.session}/{found.name}")
        return found

    # -- fetching

    def get(self, root: Path, session: str, name: str) -> tuple[Path, bool]:
        """The folder of a receipt below `root` (`<data root>/receipts`), and whether it was written now.

        It appears whole or not at all, after its bytes were compared with its manifest. Raises `StoreError`;
        `RestoreError` for what differs, from the manifest or from a receipt that is here.
        """
        found = self.manifest(session, name)
        return restore(root, session, name, found.files, partial(self._fetch, found))

    def get_session(self, root: Path, session: str) -> bool:
        """Write a session's manifest where its receipts are; whether anything was written.

        One that is here stays, unless it says that the session runs and the one in the store knows its end.
        """
        folder = root / check_name(session, "session")
        if not folder.is_dir():
            return False
        here = folder / SESSION
        if here.is_file() and not _runs(folder):
            return False
        for stem in ("session",) if here.is_file() else ("session", "session.begun"):
            for key in _numbered(f"{session}/{stem}", ".json"):
                raw = self._raw(key)
                text = session_text(raw)
                if text is not None:
                    write_atomic(here, text)
                    return True
                if raw is None:
                    break
        return False

    # -- parts

    def _raw(self, key: str) -> bytes | None:
        """A small object; None when there is none."""
        held = bytearray()
        try:
            for piece in self.blobs.read(self.prefix + key):
                held += piece
                if len(held) > _LARGEST_MANIFEST:
                    return b""
        except KeyError:
            return None
        return bytes(held)

    def _manifest(self, where: str) -> Shelved | None:
        """The first manifest that is what it was when it was written; None when there is none."""
        for key in _numbered(f"{where}/MANIFEST", ".json"):
            raw = self._raw(key)
            if raw is None:
                return None
            found = manifest_in(raw)
            if found is not None:
                return found
        return None

    def _put_manifest(self, where: str, wanted: Shelved) -> Shelved:
        """Write the manifest; returns the one that counts, which is another's when that was faster."""
        data = manifest_text(wanted).encode()
        for key in _numbered(f"{where}/MANIFEST", ".json"):
            self.blobs.write(self.prefix + key, [data], len(data))
            found = manifest_in(self._raw(key) or b"")
            if found is not None:
                return found
        raise self._broken(f"{where}/MANIFEST")

    def _put_file(self, where: str, path: str, source: Path, fact: FileFact) -> str:
        """Send a file and read it back; the name of the object that holds it."""
        check_path(path)
        for name in (path, *(f"{path}~{number}" for number in range(2, _TRIES + 1))):
            key = f"{self.prefix}{where}/files/{name}"
            self.blobs.write(key, _sent(source, fact), fact.bytes)
            if self.blobs.size(key) == fact.bytes and self._hash(key) == fact.sha256:
                return name
        raise self._broken(f"{where}/files/{path}")

    def _hash(self, key: str) -> str:
        state = hashlib.sha256()
        for piece in self.blobs.read(key):
            state.update(piece)
        return state.hexdigest()

    def _fetch(self, found: Shelved, target: Path) -> None:
        for path, fact in found.files.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                pieces = self.blobs.read(f"{self.prefix}{found.session}/{found.name}/files/{found.at[path]}")
                with file.open("xb") as stream:
                    for piece in pieces:
                        stream.write(piece)
                        if stream.tell() > fact.bytes:
                            break  # the comparison says the rest
            except KeyError:
                raise RestoreError(f"{found.session}/{found.name}: {path} is missing from {self.url}") from None

    def _broken(self, what: str) -> StoreError:
        return StoreError(
            "store_corrupt", f"{self.url}/{what}: {_TRIES} times the store gave back other bytes than it was sent",
            remedy="Look at what is between here and the store, or use another store; what was measured is still here.",
        )  # fmt: skip


def open_shelf(reference: str, *, root: Path | None = None) -> ReceiptShelf:
    """The shelf of a run (`s3://BUCKET/runs/RUN`, or a folder of the same layout), with `/receipts` or without.

    Raises `StoreError` for what is neither.
    """
    plain = reference.rstrip("/")
    inner = "" if plain.rpartition("/")[2] == "receipts" else "receipts/"
    return ReceiptShelf(blobs(plain, root=root), inner)


def pull(
    shelf: ReceiptShelf,
    root: Path,
    *,
    sessions: Sequence[str] = (),
    known: set[Name] | None = None,
    progress: Progress = lambda text: None,
) -> Pulled:
    """Fetch all receipts of a shelf, or those of `sessions` (ids, or the start of one), into `root`.

    One that is refused does not keep the others. `known` are receipts to leave alone; what came is added to it, so that
    a caller who pulls again and again asks for each only once. Raises `StoreError` when the store cannot be reached.
    """
    known = set() if known is None else known
    there, result = shelf.names(), Pulled()

    def chosen(names: Iterable[Name]) -> list[Name]:
        return [name for name in names if not sessions or any(name[0].startswith(start) for start in sessions)]

    wanted = [name for name in chosen(there.whole) if name not in known]
    for number, (session, name) in enumerate(wanted, start=1):
        progress(f"{number}/{len(wanted)} {session}/{name}")
        try:
            _, written = shelf.get(root, session, name)
        except RestoreError as error:
            result.refused.append((f"{session}/{name}", str(error)))
            continue
        known.add((session, name))
        (result.fetched if written else result.kept).append(f"{session}/{name}")
    for session, name in chosen(there.others):
        if (session, name) not in known:
            text = f"another receipt was sent under this name; it is kept in {shelf.url}/{session}/{name}"
            result.refused.append((f"{session}/{name.rpartition('~')[0]}", text))
    result.unfinished = [f"{session}/{name}" for session, name in chosen(there.unfinished)]
    for session in there.sessions:
        if not sessions or any(session.startswith(start) for start in sessions):
            shelf.get_session(root, session)
    return result


def _runs(folder: Path) -> bool:
    """Whether the session's manifest that is here does not know its end."""
    try:
        return not read_manifest(folder).ended_at
    except ReceiptError:
        return False  # not ours to judge, and not ours to replace


def _numbered(stem: str, suffix: str) -> Iterator[str]:
    yield f"{stem}{suffix}"
    for number in range(2, _TRIES + 1):
        yield f"{stem}-{number}{suffix}"


def _sent(path: Path, fact: FileFact) -> Iterator[bytes]:
    """A file's bytes. What was hashed before must be what is read now."""
    state, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            state.update(piece)
            size += len(piece)
            yield piece
    if (state.hexdigest(), size) != (fact.sha256, fact.bytes):
        raise RestoreError(f"{path} changed while it was sent; receipts are never changed: what writes there?")
