"""What an adapter of another tool does, and how its figures become ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from neuronbench.definitions import metric
from neuronbench.engines.job import Job
from neuronbench.model import Json, Metric


class EngineError(Exception):
    """The tool was not found, cannot do what is asked, or did not end well. `remedy` says what to do."""

    def __init__(self, message: str, *, remedy: str = "", usage: bool = False) -> None:
        super().__init__(message)
        self.remedy, self.usage = remedy, usage


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option on the tool's command line. Unless `required` it is left out where the tool does not have it."""

    name: str
    value: str | None = None
    """None for a switch."""
    required: bool = True

    @property
    def words(self) -> list[str]:
        return [self.name] if self.value is None else [self.name, self.value]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the tool's output says."""

    metrics: Sequence[Metric]
    """In our ids; None where the tool has no figure of that definition."""
    own: Mapping[str, Json]
    """The tool's figures under its own names."""
    succeeded: int
    failed: int
    errors: Sequence[str] = ()
    """A few failures in words."""
    notes: Sequence[str] = ()


class Adapter(Protocol):
    """One tool."""

    name: str
    distributions: tuple[str, ...]
    """Distributions any of which is the tool; the first that is there gives its version."""
    private: tuple[str, ...]
    """Files of the run's folder that may hold the key: taken away when it is over, however it ends."""

    def program(self, python: Path) -> list[str]:
        """How it is started in that environment."""

    def flags(self, job: Job, folder: Path) -> list[Flag]:
        """The command line for a job; files it needs may be written to `folder`. Raises `EngineError`."""

    def environment(self, job: Job) -> dict[str, str | None]:
        """Variables to set, or (None) to take away. The key goes here and never on a command line."""

    def read(self, job: Job, folder: Path) -> Reading:
        """Read what it left in `folder`. Raises `EngineError` for output that is missing or of another form."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A latency of the tool that has our definition."""

    id: str
    values: Mapping[str, float | None]
    """Statistic (`p50`, ..., `mean`, `max`) → value in ms."""
    n: int
    note: str = ""


STATS: Final = ("p50", "p90", "p99", "mean", "max")
LATENCIES: Final = ("ttft", "tpot", "icl", "e2e")
OTHERS: Final = (
    "output_throughput", "request_throughput", "achieved_rate", "in_flight", "goodput", "send_lag", "client_lag",
)  # fmt: skip
"""No tool has a figure of these definitions: a window of steady load, instants of the schedule, kernel stamps."""
WHOLE_RUN: Final = "over the whole run, ramp and drain included; ours is over a window of steady load"


def mapped(
    columns: Sequence[Column], *, failed: int, succeeded: int, extra: Sequence[Metric] = (), absent: Mapping[str, str]
) -> list[Metric]:
    """Metrics in our ids, in one order for all tools.

    Tools leave failures out of their percentiles, so theirs are our `ok_` statistics; without a failure the two are
    one. `absent` says for each of our latencies that the tool does not have what it has instead.
    """
    found: list[Metric] = []
    by_id = {column.id: column for column in columns}
    for id_ in LATENCIES:
        column = by_id.get(id_)
        for stat in STATS:
            value = column.values.get(stat) if column else None
            note = column.note if column else absent.get(id_, "not measured by this tool")
            n = column.n if column else 0
            if column is not None and value is None:
                note = "not among the tool's figures"
            mixed = bool(failed) and value is not None
            unknown = "the tool leaves failures out of the population; see the ok_ statistic"
            found.append(metric(id_, None if mixed else value, stat=stat, n=n, note=unknown if mixed else note))
            if stat != "max" and column is not None:
                found.append(metric(id_, value, stat=f"ok_{stat}", n=n, note=note))
    found += [metric(id_, None, note=absent.get(id_, "no figure of this definition")) for id_ in OTHERS]
    total = failed + succeeded
    found.append(metric("error_rate", failed / total if total else None, n=total, note="of the whole run"))
    given = {one.key for one in found}
    return found + [one for one in extra if one.key not in given]


def read_json(path: Path, tool: str) -> Any:
    """The tool's JSON file. Raises `EngineError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{tool} ended well but left no {path.name}") from None
    except ValueError as error:
        raise EngineError(f"{tool}: {path.name} is not JSON: {error}") from error


def finite(value: Any) -> Json:
    """`value` as JSON can hold it: what is not finite in words."""
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < float("inf") else None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What is known of an installed tool."""

    version: str
    flags: frozenset[str] = field(default_factory=frozenset)
