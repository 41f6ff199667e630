"""What an importer makes of a file, and the words by which importers are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.importers.safe import ImportFailure
from neuronbench.model import Failure, Gate, Json, Metric, RecordKind

if TYPE_CHECKING:
    from neuronbench.telemetry.table import Telemetry

LIMIT_FIGURES: Final = 5_000
"""Of one result under its source's names: no tool has so many, and a record carries them all."""
UNKNOWN: Final = "unknown"
"""Backend of results that do not say what they were measured on."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """One result of a source, in our words, before it becomes a record."""

    source: Path
    name: str
    """Readable and unique within its file."""
    lane: str
    params: Mapping[str, Json]
    metrics: Sequence[Metric]
    backend: str = UNKNOWN
    own: Mapping[str, Json] = field(default_factory=dict)
    """Figures of the source under its own names, kept though nothing of ours has their definition."""
    gates: Sequence[Gate] = ()
    error: Failure | None = None
    """The source says that it has no result, and why."""
    not_run: str = ""
    """Why the source did not try it: the record is skipped, and no failure."""
    measured_at: str = ""
    """UTC, ISO 8601; empty where the source does not say."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Environment as far as the source tells it, names like `stack.vllm`."""
    notes: Sequence[str] = ()
    record: RecordKind = "point"
    """Kind of the record: a boot or a compile is no point."""
    beside: Sequence[Path] = ()
    """Further files that the result was read from; they count in the session's name and are copied with the source."""
    telemetry: Telemetry | None = None
    """Samples of the source, written as the receipt's `telemetry.parquet`."""


Reader = Callable[[Path], Sequence[Imported]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A source that can be imported."""

    name: str
    title: str
    suffixes: tuple[str, ...]
    read: Reader
    """Everything in one file. May raise whatever a file of another form makes it raise; `read` says it in words."""
    files: Callable[[Path, tuple[str, ...]], Iterator[Path]] | None = None
    """Which files below a path are results; by default all with one of `suffixes`."""
    finish: Callable[[Sequence[Imported]], Sequence[Imported]] | None = None
    """What can only be said of all results together: adds gates, changes no figure."""
    check: Callable[[Path, Sequence[Imported]], Checked] | None = None
    """What the source published, computed again from what was read; None where there is nothing to check against."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check of a source against its own publication found: tables to show, and the same as JSON."""

    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]
    """Title, columns, rows."""
    summary: Sequence[str]
    """Lines below them."""
    data: Mapping[str, Json]


def read(kind: Kind, path: Path) -> list[Imported]:
    """All results in the file `path`.

    Raises `ImportFailure` naming the file, whatever is wrong with it: readers are written for files of the right form,
    and one of another form shows as a missing key or a value of another type.
    """
    try:
        found = list(kind.read(path))
    except ImportFailure:
        raise
    except KeyError as error:
        raise ImportFailure(f"{path}: expected {kind.title}, found no {error.args[0]!r} in it") from error
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        what = " ".join(str(error).split())[:300]
        raise ImportFailure(
            f"{path}: expected {kind.title}, found another form ({type(error).__name__}: {what})"
        ) from error
    for item in found:
        if len(item.own) > LIMIT_FIGURES:
            raise ImportFailure(f"{path}: expected {kind.title}, found {len(item.own):,} figures in one result")
    return found


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """`value` as an object; raises `ValueError` saying what it should have been."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}: expected an object, found {type(value).__name__}")
    return value


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        return None
    return int(value)


def text(value: Any, limit: int = 200) -> str:
    """Text of one line and bounded length: names and messages of a source are shown in tables and pages."""
    return " ".join(str(value).split())[:limit]


def instant(value: Any) -> str:
    """A source's instant in UTC, ISO 8601; without a zone it is taken as UTC. Empty for what is none."""
    if not isinstance(value, str):
        return ""
    try:
        found = datetime.fromisoformat(value.replace("-", "T", 1) if _COMPACT.fullmatch(value) else value)
        found = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # 9999-12-31T23:59-14:00 is in no year of UTC
        return ""
    return found.isoformat(timespec="microseconds")


_COMPACT: Final = re.compile(r"\d{8}-\d{6}")


def plain(value: Any) -> Json:
    """Numbers and short text as they are, anything else left out (None)."""
    if isinstance(value, str):
        return text(value)
    return value if isinstance(value, (bool, int, float)) else None
