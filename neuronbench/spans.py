"""Spans: the parts of a piece of work and when they were at it, for lanes whose work has stages.

`measure.spans` writes them beside the record, all of them, as `spans.parquet`; a sink may make traces of a sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuronbench.model import Json

TABLE: Final = "spans"
FILE: Final = "spans.parquet"
ROOT: Final = 0
"""Parent of a span that has none."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """One part, between two instants of CLOCK_MONOTONIC in ns. `details` are values of JSON.

    Of a trace's first span (its whole) the details `input` and `output` are what was asked and what came of it.
    """

    trace: int
    """Which piece of work, from 0."""
    number: int
    """Within its trace, from 1."""
    name: str
    start_ns: int
    end_ns: int
    parent: int = ROOT
    kind: str = "TASK"
    """As MLflow names kinds: `CHAIN`, `LLM`, `RETRIEVER`, `EMBEDDING`, `RERANKER`, `TOOL`, `TASK`, ..."""
    details: Mapping[str, Json] = field(default_factory=dict)
    failure: str = ""
    """Class of the failure; empty when it went well."""

    def __post_init__(self) -> None:
        if self.number < 1 or self.end_ns < self.start_ns:
            raise ValueError(
                f"span {self.name!r} of trace {self.trace}: expected a number from 1 and an end that is not before its "
                f"start, found number {self.number} and {self.end_ns - self.start_ns} ns"
            )


def write(path: Path, spans: Sequence[Span]) -> None:
    """As a table, in order. Raises `ValueError` for a trace that does not have exactly one whole, as its first span."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    wholes: dict[int, int] = {}
    for span in spans:
        if span.parent == ROOT:
            wholes[span.trace] = wholes.get(span.trace, 0) + 1
        elif span.trace not in wholes:
            raise ValueError(f"trace {span.trace}: expected the whole first (no parent), found {span.name!r}")
    several = [trace for trace, count in wholes.items() if count > 1]
    if several:
        raise ValueError(f"trace {several[0]}: expected one span without a parent, found {wholes[several[0]]}")
    columns: dict[str, Any] = {
        name: arrow.array([getattr(span, name) for span in spans], kind)
        for name, kind in (
            ("trace", arrow.int64()), ("number", arrow.int32()), ("parent", arrow.int32()), ("name", arrow.string()),
            ("kind", arrow.string()), ("start_ns", arrow.int64()), ("end_ns", arrow.int64()),
            ("failure", arrow.string()),
        )
    }  # fmt: skip
    columns["details"] = arrow.array([json.dumps(dict(span.details), ensure_ascii=False) for span in spans])
    parquet.write_table(arrow.table(columns), path, compression="zstd")


def traces(table: Any) -> list[list[Span]]:
    """The traces in a table that `write` made, each with its whole first."""
    found: dict[int, list[Span]] = {}
    for row in table.to_pylist():
        details = json.loads(row.pop("details") or "{}")
        found.setdefault(row["trace"], []).append(Span(**row, details=details))
    return list(found.values())
