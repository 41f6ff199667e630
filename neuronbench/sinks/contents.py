"""What a receipt consists of, with a digest of each file, and putting one in its place in another data root.

A receipt is what its folder holds, but for the sinks' markers. `restore` writes it once: an equal one is left alone,
another one of the same name is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from neuronbench.receipts import Receipt, ReceiptError
from neuronbench.receipts.files import sync_folder, sync_tree
from neuronbench.receipts.receipt import RECORD, SINKS

PREFIX: Final = ".pull-"
_CHUNK: Final = 1 << 20
_PLAIN: Final = re.compile(r"[^/\0.][^/\0]*")
_OURS: Final = frozenset({SINKS, "open.json"})
"""What stands in a receipt's folder and is none of it."""


class RestoreError(Exception):
    """A receipt cannot be put in its place; the text says why, and what was found."""


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """A file of a receipt."""

    sha256: str
    bytes: int


def contents(folder: Path) -> dict[str, FileFact]:
    """Relative path → fact of every file of the receipt in `folder`.

    Links are none of its files: a receipt that somebody sent could name any file of this host, and would take it along.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and name.split("/")[0] not in _OURS:
            found[name] = fact_of(path)
    return found


def fact_of(path: Path) -> FileFact:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileFact(sha256=digest.hexdigest(), bytes=size)


def check_name(text: str, noun: str) -> str:
    """`text` when it is a plain folder name; raises `RestoreError`."""
    if not _PLAIN.fullmatch(text):
        raise RestoreError(f"{noun} {text!r}: expected a plain folder name that does not begin with a dot")
    return text


def check_path(text: str) -> str:
    """`text` when it is the path of a file that a receipt may have; raises `RestoreError`."""
    path = PurePosixPath(text)
    if not text or "\0" in text or path.is_absolute() or set(path.parts) & {"..", "."} or path.parts[0] in _OURS:
        raise RestoreError(f"file {text!r}: expected a path inside the receipt")
    return text


def restore(
    root: Path, session: str, name: str, wanted: Mapping[str, FileFact], fetch: Callable[[Path], None]
) -> tuple[Path, bool]:
    """The folder of a receipt below `root` (`<data root>/receipts`), and whether it was written now.

    `fetch` fills an empty folder with the files of `wanted`; what it brings is compared with their digests, and must be
    the receipt that its name says. Nothing appears under its final name before all of it is on disk. Raises
    `RestoreError` for what differs; what is there is never overwritten.
    """
    target = root / check_name(session, "session") / check_name(name, "receipt")
    for path in wanted:
        check_path(path)
    if RECORD not in wanted:
        raise RestoreError(
            f"{session}/{name}: expected a {RECORD} among its files, found {', '.join(wanted) or 'none'}"
        )
    if target.exists():
        _compare(target, wanted, f"{target} is there already and is another receipt", "nothing was overwritten")
        return target, False
    scratch = target.with_name(f"{PREFIX}{name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        fetch(scratch)
        _compare(scratch, wanted, f"{session}/{name}: what came is not what was sent", "it was thrown away; try again")
        _check_identity(scratch, session, name)
        sync_tree(scratch)
        try:
            os.rename(scratch, target)
        except OSError:
            if not target.exists():
                raise
            _compare(target, wanted, f"{target} is there already and is another receipt", "nothing was overwritten")
            return target, False  # another process was faster
        sync_folder(target.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target, True


def _compare(folder: Path, wanted: Mapping[str, FileFact], what: str, so: str) -> None:
    there = contents(folder)
    differs = [name for name in sorted({*there, *wanted}) if there.get(name) != wanted.get(name)]
    if differs:
        first = differs[0]
        told = [
            "none" if fact is None else f"{fact.bytes} bytes, sha256 {fact.sha256[:12]}…"
            for fact in (wanted.get(first), there.get(first))
        ]
        more = f" and {len(differs) - 1} more files differ" if len(differs) > 1 else ""
        raise RestoreError(f"{what}: {first}: expected {told[0]}, found {told[1]}{more}; {so}")


def _check_identity(folder: Path, session: str, name: str) -> None:
    try:
        record = Receipt(folder).record
    except ReceiptError as error:
        raise RestoreError(f"{session}/{name}: {error}") from error
    if (record.session, record.receipt_name) != (session, name):
        raise RestoreError(f"{session}/{name}: its record is that of {record.receipt_id}")
