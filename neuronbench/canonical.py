"""Canonical JSON, fingerprints and frozen mappings: identity is a property of the data, not of who writes it.

Standard library only, no I/O; what `neuronbench.model` is built from.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A value that `json` can write: None, bool, int, float, str, list, or a dict with string keys."""


_AS_IT_IS = frozenset({type(None), bool, int, str})


def jsonable(value: object) -> Json:
    """Reduce `value` to plain JSON types; raise `TypeError`/`ValueError` for what JSON cannot hold.

    Not-a-number and infinities are refused rather than written as the non-standard literals `NaN`/`Infinity`: a
    missing number is None everywhere in neuronbench.
    """
    if type(value) in _AS_IT_IS:  # most values, and much the cheapest question
        return value
    if isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is not a JSON number; a missing value is None")
        return value
    if isinstance(value, PurePath):
        return str(value)
    to_json = getattr(value, "to_json", None)
    if callable(to_json):
        return to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        out: dict[str, Json] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"JSON keys are strings; found {key!r} ({type(key).__name__})")
            out[key] = item if type(item) in _AS_IT_IS else jsonable(item)
        return out
    if isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order, so it has no canonical JSON; use a sorted list")
    if isinstance(value, Iterator):
        raise TypeError("an iterator can be read once, and that is for whoever it was made for; use a list")
    if isinstance(value, Iterable):
        return [jsonable(item) for item in value]
    item_method = getattr(value, "item", None)  # numpy scalars, without importing numpy
    if callable(item_method):
        return jsonable(item_method())
    raise TypeError(f"{type(value).__name__} is not JSON-serialisable: {value!r}")


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no white space: equal data gives equal text, whatever the order it was built in."""
    return _dumps(jsonable(value))


_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _utf8(text: str) -> bytes:
    """UTF-8, also of a lone surrogate (file names that are not UTF-8 come as such)."""
    return text.encode("utf-8", errors="surrogatepass")


def fingerprint(value: object, *, digest_bytes: int = 8) -> str:
    """BLAKE2b of the canonical JSON of `value`, as lower-case hex (`2 * digest_bytes` characters)."""
    return hashlib.blake2b(_utf8(canonical_json(value)), digest_size=digest_bytes).hexdigest()


_UNSAFE = re.compile(r"[^A-Za-z0-9._=+@-]+")


@functools.lru_cache(maxsize=4096)  # a grid has few values, and each of them in many points
def slug(text: str, *, limit: int = 120) -> str:
    """`text` as a file name that is safe on every platform; shortened with a digest when longer than `limit`."""
    clean = _UNSAFE.sub("-", text).strip("-.") or "x"
    if len(clean) > limit:
        clean = clean[: limit - 9] + "-" + hashlib.blake2b(_utf8(text), digest_size=4).hexdigest()
    return clean


_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` without what a terminal or a page would obey instead of showing it; each such character becomes `\ufffd`.

    Escape sequences, carriage returns, the controls that turn the direction of writing around, and halves of
    characters, which cannot be written at all. Tabs and line feeds stay.
    """
    return _OBEYED.sub("\ufffd", text)


def printable_json(text: str) -> str:
    """JSON text with the same characters as escapes: for a parser it says the same."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class FrozenMap(Mapping[str, Json]):
    """A read-only, hashable mapping of JSON values; equality and hash follow the canonical JSON."""

    __slots__ = ("_data", "_key")

    def __init__(self, data: Mapping[str, Json] | None = None, /, **kwargs: Json) -> None:
        self._data: dict[str, Json] = jsonable({**(data or {}), **kwargs})
        self._key: str | None = None

    def __getitem__(self, key: str) -> Json:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def _canonical(self) -> str:
        if self._key is None:
            self._key = _dumps(self._data)  # plain since it was made
        return self._key

    def __hash__(self) -> int:
        return hash(self._canonical())

    def __eq__(self, other: object) -> bool:
        # Not by Python's equality, for which 1, 1.0 and True are the same although their canonical JSON differs.
        if isinstance(other, FrozenMap):
            return self._canonical() == other._canonical()
        if isinstance(other, Mapping):
            try:
                return self._canonical() == canonical_json(other)
            except (TypeError, ValueError):
                return False
        return NotImplemented

    def __repr__(self) -> str:
        return f"FrozenMap({self._data!r})"

    def to_json(self) -> dict[str, Json]:
        return dict(self._data)


def closest(name: str, known: Sequence[str]) -> str:
    """` (did you mean 'x'?)` or an empty string: for error messages about unknown names."""
    import difflib

    match = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
