"""Reading files that came from elsewhere: bounded, plain, and refused with a reason.

Nothing here follows a path that a file names, opens an archive, or builds anything but numbers, text, lists and dicts.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

LIMIT_BYTES: Final = 64 * 1024 * 1024
"""A result file of any of these tools is far smaller; what is larger is a mistake or an attack."""
LIMIT_FILES: Final = 20_000
LIMIT_RESULTS: Final = 20_000
"""Of one import: each becomes a folder. Of one file too, before any is looked at: in memory a result takes 300 times
the room that it may take in a file."""
_ARCHIVES: Final = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "a gzip file", b"BZh": "a bzip2 file",
                    b"\xfd7zXZ": "an xz file", b"\x28\xb5\x2f\xfd": "a zstd file"}  # fmt: skip


class ImportFailure(Exception):
    """A file cannot be imported: which, what was expected, what was found, what to do."""


def read_bytes(path: Path, limit: int = LIMIT_BYTES) -> bytes:
    """The file's content. Raises `ImportFailure` for what is no plain file, too large, an archive, or not readable."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would wait for a writer for ever
    except OSError as error:
        raise ImportFailure(f"{path}: cannot be read: {error.strerror}") from error
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ImportFailure(f"{path}: expected a file, found something else (a folder, a pipe or a device)")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ImportFailure(
            f"{path}: expected at most {limit // 1024 // 1024} MiB, found {max(found.st_size, len(data)):,} bytes: "
            "give the tool's summary, not its log of every event"
        )
    for magic, what in _ARCHIVES.items():
        if data.startswith(magic):
            raise ImportFailure(f"{path}: expected text, found {what}; unpack it first and name the file inside")
    return data


def read_text(path: Path, limit: int = LIMIT_BYTES) -> str:
    """The file as UTF-8 text, a byte order mark left out. Raises `ImportFailure`."""
    data = read_bytes(path, limit)
    try:
        found = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportFailure(
            f"{path}: expected UTF-8 text, found byte {data[error.start]:#04x} at {error.start}"
        ) from None
    if "\0" in found:
        raise ImportFailure(f"{path}: expected UTF-8 text, found a zero byte: is it binary, or another encoding?")
    return found


def read_json(path: Path) -> Any:
    """The file's JSON; numbers that are not finite become None. Raises `ImportFailure`, also for a name given twice."""
    return _parsed(path, read_text(path))


def read_json_lines(path: Path) -> list[Any]:
    """The file's JSON, or that of each of its lines where each is an object of its own. Raises `ImportFailure`."""
    text = read_text(path)
    few_enough(path, text.count("\n"), "lines")
    lines = [line for line in text.split("\n") if line.strip()]  # U+2028 and its like end no line of JSON
    if len(lines) > 1 and all(line.startswith("{") and line.rstrip().endswith("}") for line in lines):
        return [_parsed(path, line) for line in lines]
    return [_parsed(path, text)]


def few_enough(path: Path, count: int, what: str = "results") -> None:
    """Raises `ImportFailure` for a file of more than `LIMIT_RESULTS` results."""
    if count > LIMIT_RESULTS:
        raise ImportFailure(f"{path}: expected at most {LIMIT_RESULTS:,} {what}, found {count:,}; import a part of it")


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(
            text, parse_constant=lambda name: None, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once
        )
    except RecursionError:
        raise ImportFailure(f"{path}: its JSON is nested too deeply to be a result") from None
    except _TwiceError as error:
        raise ImportFailure(f"{path}: its JSON says {str(error)[:100]!r} twice: which is it?") from None
    except json.JSONDecodeError as error:
        raise ImportFailure(f"{path}: expected JSON, found {_found(text, error)}; is the file complete?") from None


_WANTED: Final = {
    "Expecting value": "a value",
    "Expecting ',' delimiter": "a comma",
    "Expecting ':' delimiter": "a colon",
    "Expecting property name enclosed in double quotes": "a name in double quotes",
    "Unterminated string starting at": "a string that ends",
    "Invalid control character at": "a string without control characters",
    "Extra data": "its end",
}
"""What the parser misses → that in words. It is worded by the parser, so others are shown as they are."""
_SHOWN: Final = 20


def _found(text: str, error: json.JSONDecodeError) -> str:
    """What stands where the parser gave up, where that is, and what should be there."""
    if not text.strip():
        return "an empty file"
    rest = " ".join(text[error.pos : error.pos + 4 * _SHOWN].split())
    seen = repr(rest[:_SHOWN] + "…" * (len(rest) > _SHOWN)) if rest else "the end of the file"
    wanted = next((words for start, words in _WANTED.items() if error.msg.startswith(start)), "")
    where = f"{seen} in line {error.lineno}, column {error.colno}"
    return f"{where}, where {wanted} should be" if wanted else f"{where} ({error.msg})"


class _TwiceError(ValueError):
    """A name stands twice in one object."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for index, name in enumerate(names) if name in names[:index]))
    return made


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | float | None:
    return int(text) if len(text) <= 18 else _finite(text)  # a number of a million digits takes minutes


def files(path: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """`path` itself, or the files with one of `suffixes` below it, in order of their names.

    Links are left out: what is imported lies in the folder that was named. Raises `ImportFailure` when there are none
    or too many.
    """
    if not path.exists():
        raise ImportFailure(f"{path}: no such file or folder")
    if not path.is_dir():
        yield path
        return
    found = 0
    for folder, folders, names in os.walk(path, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            one = Path(folder, name)
            if name.lower().endswith(suffixes) and not one.is_symlink():
                found += 1
                if found > LIMIT_FILES:
                    raise ImportFailure(f"{path}: more than {LIMIT_FILES:,} files; name a folder further down")
                yield one
    if not found:
        raise ImportFailure(f"{path}: expected files ending in {' or '.join(suffixes)}, found none below it")
