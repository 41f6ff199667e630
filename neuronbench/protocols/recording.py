"""What is sampled, where receipts go, and what is kept between sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable


@runtime_checkable
class Sampler(Protocol):
    """Runs inside the telemetry process."""

    def read(self) -> Mapping[str, float | None]:
        """One sample: series name → value. An absent sensor is None or left out, never 0."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a sink did with a receipt."""

    state: Literal["delivered", "pending"]
    reference: str = ""
    """Where it is now, such as an MLflow run id."""
    reason: str = ""
    """Why it is pending."""


@runtime_checkable
class Sink(Protocol):
    """Forwards receipts. A failure is returned as `pending`, never raised: a sink cannot fail a point."""

    name: str

    def write(self, receipt: Path) -> Delivery:
        """Deliver the receipt in that folder; idempotent."""

    def close(self) -> None:
        """Finish the session (parent runs, reports)."""


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """Something that is kept between sessions, and could be made again."""

    key: str
    title: str
    """What it is, for people: model, shape, type."""
    size_bytes: int
    created_at: float
    """Seconds since the epoch, like `used_at`."""
    used_at: float
    """When it was last used."""
    in_use: bool = False
    """Whether a process that runs has it: it is not to be removed."""


@runtime_checkable
class Cache(Protocol):
    """A place where things are kept that could be made again: `neuronbench cache` shows, checks and prunes it.

    A backend with caches of its own (a compiler's, for one) has a method `caches(settings)` that returns them; it is
    optional, and not part of `Backend`.
    """

    name: str
    title: str
    folder: Path

    def entries(self) -> Sequence[CacheEntry]:
        """All that is there."""

    def damage(self, key: str) -> str:
        """What is wrong with an entry, in a few words; empty when it is what was put there."""

    def remove(self, key: str) -> bool:
        """Remove it, unless somebody uses it: False then."""
