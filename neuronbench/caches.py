"""What caches have in common: which entries go when space is to be had, locks nobody holds, sharing them.

`protocols.Cache` is what every cache has. One whose entries have states, locks, or can be shared between hosts has the
methods of `Stateful`, `Locked`, `Shared` as well; `neuronbench cache` asks whether they are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, runtime_checkable

from neuronbench.keylocks import Lock
from neuronbench.protocols import Cache, CacheEntry

_AGES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, kw_only=True)
class CacheLock:
    """A lock file of a cache, and whether anybody holds it."""

    path: Path
    key: str
    """The entry it is of."""
    state: Literal["held", "stale", "unknown"]
    """`stale`: certainly nobody's; `unknown`: that cannot be told from here."""
    why: str
    age_s: float


@runtime_checkable
class Stateful(Protocol):
    """A cache whose entries are not all whole: some failed, some were begun."""

    notes: Sequence[str]
    """What a user should know of it."""

    def states(self) -> Mapping[str, int]:
        """State → number of entries."""


@runtime_checkable
class Locked(Protocol):
    """A cache whose programs leave lock files."""

    def locks(self) -> Sequence[CacheLock]:
        """All of them."""

    def unlock(self, lock: CacheLock) -> bool:
        """Take away one that nobody holds; False when somebody does by now."""


@runtime_checkable
class Shared(Cache, Protocol):
    """A cache whose entries are of use on other hosts: those of the same scope."""

    def scope(self, key: str) -> str:
        """Where an entry is of use, cache/compiler/cores: `neuron-xla/neuronxcc-2.21/v2`. Raises `ValueError` with the
        reason where that is nowhere: it failed, is damaged or unfinished, or nobody knows what it was made for."""

    def scopes(self) -> Sequence[str]:
        """Those of use on this host."""

    def files(self, key: str) -> Mapping[str, Path]:
        """All files of an entry by relative name."""

    def reserve(self, key: str) -> Lock | None:
        """Nobody else makes that entry until the lock is closed; None when somebody is at it."""

    def workshop(self, key: str) -> Path:
        """A folder on the same file system for what `install` is given: of one entry always the same, so that what was
        cut off goes on. For whoever has reserved the entry."""

    def install(self, key: str, folder: Path) -> bool:
        """Make the contents of `folder` that entry; False when there is one.

        Raises `ValueError` with the reason when what is there says by itself that it is not that entry.
        """


@dataclass(frozen=True, kw_only=True)
class Doomed:
    """An entry that is to go, and why."""

    cache: Cache
    entry: CacheEntry
    why: str


def age_s(text: str) -> float:
    """`30d`, `12h`, `90m` → seconds. Raises `ValueError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if not found:
        raise ValueError(f"expected a time such as 30d, 12h or 90m; found {text!r}")
    return float(found[1]) * _AGES[found[2]]


def size_bytes(text: str) -> int:
    """`20GB`, `500MB`, `0` → bytes, by powers of ten. Raises `ValueError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"expected a size such as 20GB or 500MB; found {text!r}")
    return int(float(found[1]) * _SIZES[found[2].upper()])


def said_size(count: float) -> str:
    """`812.4 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit in ("B", "KB") else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def said_age(seconds: float) -> str:
    """`3 d`: in the largest unit that it has one of."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def doomed(
    caches: Sequence[Cache], *, now: float, older_than_s: float | None = None, max_bytes: int | None = None
) -> list[Doomed]:
    """What was not used for `older_than_s`; then, the longest unused first, what all of them are above `max_bytes`.

    What is in use stays, whatever it is, and counts in the sum. Instants are seconds since the epoch.
    """
    everything = [(cache, entry) for cache in caches for entry in cache.entries()]
    everything.sort(key=lambda pair: pair[1].used_at)
    left = sum(entry.size_bytes for _, entry in everything)
    found = []
    for old in (True, False):  # age first: what goes for its age makes room
        for cache, entry in list(everything):
            if entry.in_use:
                continue
            unused_s = now - entry.used_at
            if old and older_than_s is not None and unused_s > older_than_s:
                why = f"not used for {said_age(unused_s)}"
            elif not old and max_bytes is not None and left > max_bytes:
                why = f"all together are above {said_size(max_bytes)}"
            else:
                continue
            left -= entry.size_bytes
            everything.remove((cache, entry))
            found.append(Doomed(cache=cache, entry=entry, why=why))
    return found
