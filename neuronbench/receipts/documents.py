"""JSON of receipts as it is read: within bounds, and through a view that says where something else was expected.

Every complaint names the file, the key, what was expected and what was found.
"""

from __future__ import annotations

import enum
import json
import math
import os
import stat as modes
from pathlib import Path
from typing import Any, Final, TypeVar

from neuronbench.model import Json

LIMIT_BYTES: Final = 64 << 20
"""A record of ours has some ten kilobytes; what is larger than this is no record."""
LIMIT_DEPTH: Final = 100
"""Of lists and objects in each other: ours have ten at most, and what works on them goes down by recursion."""

E = TypeVar("E", bound=enum.StrEnum)
Document = dict[str, Json]


class ReceiptError(ValueError):
    """A receipt cannot be read or written: which file, which key, what was expected."""


class Fields:
    """A JSON object that remembers where it stands, so that a complaint can say so."""

    def __init__(self, path: Path, data: Json, where: str = "") -> None:
        self.path, self.where = path, where
        if not isinstance(data, dict):
            raise ReceiptError(f"{path}: {where or 'document'}: expected an object, found {_kind(data)}")
        self.data: Document = data

    def fail(self, key: str, expected: str) -> ReceiptError:
        found = _kind(self.data[key]) if key in self.data else "nothing"
        return ReceiptError(f"{self.path}: {self.key(key)}: expected {expected}, found {found}")

    def key(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def text(self, key: str, default: str | None = None) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "text")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(key, "a whole number")
        return value

    def number_or_none(self, key: str) -> float | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not _is_finite(value):
            raise self.fail(key, "a number or null")
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self.data.get(key) is None else self.whole(key)

    def mapping(self, key: str, default: Document | None = None) -> Document:
        value = self.data.get(key, default)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return value

    def tree(self, key: str, default: Document | None = None) -> Document:
        """An object of anything that is not nested so deeply that recursion over it would fail."""
        value = self.mapping(key, default)
        level: list[Json] = [value]
        for _ in range(LIMIT_DEPTH):
            level = [
                item
                for part in level
                for item in (part.values() if isinstance(part, dict) else part)
                if isinstance(item, (dict, list))
            ]
            if not level:
                return value
        raise self.fail(key, f"at most {LIMIT_DEPTH} lists and objects in each other")

    def file(self, key: str, value: str) -> str:
        """`value` when it names a file inside the receipt: others send receipts, and may name any file of the host."""
        parts = value.split("/")
        if value and ("\0" in value or not all(parts) or ".." in parts):
            raise self.fail(key, "files inside the receipt, by paths without '..' that do not begin with '/'")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "a list of texts")
        return list(value)

    def text_map(self, key: str) -> dict[str, str]:
        value = self.mapping(key, {})
        if not all(isinstance(item, str) for item in value.values()):
            raise self.fail(key, "an object of texts")
        return dict(value)

    def choice(self, key: str, kind: type[E]) -> E:
        value = self.text(key)
        try:
            return kind(value)
        except ValueError:
            raise self.fail(key, "one of " + ", ".join(kind)) from None

    def one_of(self, key: str, *known: str) -> Any:
        value = self.text(key)
        if value not in known:
            raise self.fail(key, "one of " + ", ".join(known))
        return value

    def at(self, key: str) -> Fields:
        return Fields(self.path, self.data.get(key), self.key(key))

    def each(self, key: str) -> list[Fields]:
        value = self.data.get(key, [])
        if not isinstance(value, list):
            raise self.fail(key, "a list")
        return [Fields(self.path, item, f"{self.key(key)}[{index}]") for index, item in enumerate(value)]


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _kind(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, (str, list, dict)) and len(value) > 1_000:
        return f"{type(value).__name__} of {len(value):,} items or characters"
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= 80 else text[:77] + "..."


# --------------------------------------------------------------------------------------------------------------------
# files


def parse(path: Path) -> Document:
    """The JSON object in `path`; raises `ReceiptError` for one that is missing, truncated, enormous or not JSON."""
    return parsed(read_bytes(path), path)


def parsed(data: bytes, path: Path) -> Document:
    """The JSON object that `data`, the content of `path`, is; raises `ReceiptError` for anything else."""
    import orjson

    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:  # says little, and does not know all that Python's has written
        try:
            document = json.loads(data, parse_constant=_no_number, parse_float=_finite)
        except RecursionError:
            raise ReceiptError(f"{path}: its JSON is nested too deeply to be a record") from None
        except UnicodeDecodeError as error:
            raise ReceiptError(f"{path}: cannot be read: {error}") from error
        except ValueError as error:
            raise ReceiptError(
                f"{path}: expected a JSON document, found something truncated or damaged: {error}"
            ) from error
    return Fields(path, document).data


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON; a missing number is null")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text[:40])


def read_bytes(path: Path) -> bytes:
    """The content of a record's file. Raises `ReceiptError` for what is no plain file, or too large to be a record.

    A receipt is a folder that others may send: its record may be a pipe, which waits for ever, or a link to a device.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb", buffering=0) as file:
            found = os.fstat(handle)
            if not modes.S_ISREG(found.st_mode):
                raise ReceiptError(f"{path}: expected a file, found something else (a folder, a pipe or a device)")
            if found.st_size > LIMIT_BYTES:
                raise ReceiptError(f"{path}: expected a record of some kilobytes, found {found.st_size >> 20} MiB")
            return file.readall()
    except FileNotFoundError:
        raise ReceiptError(f"{path}: expected a file with a record, found none") from None
    except OSError as error:
        raise ReceiptError(f"{path}: cannot be read: {error}") from error
