"""Every answer of a ladder as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from neuronbench_spec_decode.ladder import Row

NAME: Final = "speculation.parquet"


def write(folder: Path, rows: Sequence[Row]) -> str:
    """A row for each answer in the order they were asked: instants (monotonic ns), tokens, counters. Its file name."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    ints, int32, int64 = arrow.list_(arrow.int32()), arrow.int32(), arrow.int64()
    columns = {
        "round": arrow.array([row.turn + 1 for row in rows], int32),
        "k": arrow.array([row.k for row in rows], int32),
        "category": arrow.array([row.prompt.category for row in rows], arrow.string()),
        "prompt": arrow.array([row.prompt.number for row in rows], int32),
        "sent_ns": arrow.array([row.answer.sent_ns for row in rows], int64),
        "chunks_ns": arrow.array([row.answer.chunks_ns for row in rows], arrow.list_(int64)),
        "chunk_tokens": arrow.array([row.answer.sizes for row in rows], ints),
        "tokens": arrow.array([row.answer.tokens for row in rows], ints),
        "usage_tokens": arrow.array([row.answer.counted for row in rows], int32),
        "generated": arrow.array([row.counted.generated for row in rows], int32),
        "engine_steps": arrow.array([row.counted.engine_steps for row in rows], int32),
        "drafts": arrow.array([row.counted.drafts for row in rows], int32),
        "drafted": arrow.array([row.counted.drafted for row in rows], int32),
        "kept": arrow.array([row.counted.kept for row in rows], int32),
        "kept_at": arrow.array([row.counted.kept_at for row in rows], ints),
    }
    parquet.write_table(arrow.table(columns), folder / NAME, compression="zstd")
    return NAME
