"""What compiling cost, for a terminal: cold, or nothing because the artifact was there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuronbench.model import Outcome, Record
from neuronbench.receipts.evidence import PART
from neuronbench.report.tables import add, number, plain_table, verdict

if TYPE_CHECKING:
    from rich.table import Table


def artifact_of(record: Record) -> Mapping[str, Any]:
    """What the record says of the artifact; empty when there is none."""
    found = record.resource.facts.get("artifact") if record.resource else None
    return found or {}


def reference_line(records: Sequence[Record]) -> str:
    """`references: 2 computed, 5 from the cache`; empty when no record rests on one that is kept."""
    parts = [part for record in records for part in record.workload.get(PART, ()) if isinstance(part, Mapping)]
    kept = [part["kept"] for part in parts if isinstance(part.get("kept"), Mapping)]
    if not kept:
        return ""
    hits = sum(each.get("cache") == "hit" for each in kept)
    notes = [f"\n  {note}" for each in kept for note in each.get("notes", ())]
    computed = f"{len(kept) - hits} computed" if len(kept) > hits else "nothing was computed"
    return f"references: {computed}, {hits} from the cache" + "".join(notes)


def compile_table(records: Sequence[Record]) -> Table:
    """A row per compiled model that was made ready."""
    from rich.text import Text

    table = plain_table("compiles")
    words = [word for record in records for word in _name(record).split()]
    table.add_column("model", overflow="fold", min_width=min(24, max(map(len, words), default=0)))
    for heading in ("shape", "result", "cache"):
        table.add_column(heading, no_wrap=True)
    for heading in ("compile\ns", "load\ns", "size\nMB", "graphs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        spec: Mapping[str, Any] = record.resource.spec if record.resource else record.point.params
        size = record.metrics.get("artifact_size_bytes")
        style = "green" if record.outcome == Outcome.OK else "red"
        inputs = list((artifact_of(record).get("inputs") or {}).values())
        asked = [spec.get(name) for name in ("batch_size", "sequence_length")]
        shape = "×".join(str(size) for size in (inputs[0] if inputs else asked) if size)
        add(
            table,
            _name(record),
            f"{shape} {spec.get('dtype', '')}".strip(),
            Text(verdict(record), style=style),
            str(artifact_of(record).get("cache", "–")),
            number(record.metrics.get("compile_time_cold_s")),
            number(record.metrics.get("load_time_s")),
            "–" if size is None or size.value is None else f"{size.value / 1e6:.1f}",
            number(record.metrics.get("graphs_graphs")).partition(".")[0],
        )
    return table


def _name(record: Record) -> str:
    """Model and what it is for: `all-MiniLM-L6-v2 embed`."""
    spec: Mapping[str, Any] = record.resource.spec if record.resource else record.point.params
    name = str(spec.get("model") or (spec.get("architecture") or {}).get("model_type") or "")
    return f"{name.removeprefix('packaged:').removeprefix('hub:')} {spec.get('task') or ''}".strip()


def compile_line(records: Sequence[Record]) -> str:
    """`compiled 1 model, 2 came from the cache`; says so when nothing was compiled."""
    hits = sum(artifact_of(record).get("cache") == "hit" for record in records)
    misses = sum(artifact_of(record).get("cache") == "miss" for record in records)
    failed = len(records) - hits - misses
    parts = [f"{misses} compiled" if misses else "nothing was compiled", f"{hits} from the cache"]
    if failed:
        parts.append(f"{failed} without an artifact")
    notes = [f"\n  {note}" for record in records for note in artifact_of(record).get("notes", ())]
    return "compiles: " + ", ".join(parts) + "".join(notes)
