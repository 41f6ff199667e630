"""`requests.parquet`: every request, warm-up and failures included, with its instants and chunk gaps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from neuronbench.load import layout
from neuronbench.load.derive import Derived
from neuronbench.load.outcomes import PHASE_NAMES, Phase, failure_name
from neuronbench.load.records import Batch

_INSTANTS: Final = {
    "scheduled": "s",
    "sent": "w",
    "sent_last": "w_end",
    "response": "r",
    "first_event": "o",
    "first_output": "f",
    "first_answer": "c",
    "last_output": "l",
    "end": "e",
}
"""Column → field of the record; with `_ms` and `_ns` appended."""
_SPANS: Final = ("ttft", "ttft_due", "ttfat", "tpot", "e2e", "e2e_due", "send_lag", "max_stall")
_COUNTS: Final = (
    ("output_tokens", "n_out"),
    ("input_tokens", "n_in"),
    ("reasoning_tokens", "n_reason"),
    ("cached_tokens", "n_cached"),
)

SCHEMA: Final = pa.schema(
    [
        pa.field("worker", pa.int32(), nullable=False),
        pa.field("request_id", pa.int64(), nullable=False),
        pa.field("body", pa.int64(), nullable=False),
        pa.field("session", pa.int64()),
        pa.field("phase", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("warmup", pa.bool_(), nullable=False),
        pa.field("in_window", pa.bool_(), nullable=False),
        pa.field("ok", pa.bool_(), nullable=False),
        pa.field("failure", pa.dictionary(pa.int16(), pa.string())),
        pa.field("http_status", pa.int32()),
        pa.field("error", pa.string()),
        pa.field("finish_reason", pa.dictionary(pa.int8(), pa.string())),
        *(pa.field(f"{name}_ms", pa.float64()) for name in _INSTANTS),
        *(pa.field(f"{name}_ns", pa.int64()) for name in _INSTANTS),
        *(pa.field(f"{name}_ms", pa.float64()) for name in _SPANS),
        *(pa.field(name, pa.int64()) for name, _ in _COUNTS),
        pa.field("asked_input_tokens", pa.int64()),
        pa.field("asked_output_tokens", pa.int64()),
        pa.field("chunks", pa.int64(), nullable=False),
        pa.field("first_chunk_tokens", pa.int64()),
        pa.field("empty_chunks", pa.int64(), nullable=False),
        pa.field("response_bytes", pa.int64(), nullable=False),
        pa.field("client_lag_ms", pa.float64()),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("reused_connection", pa.bool_(), nullable=False),
        pa.field("kernel_stamped", pa.bool_(), nullable=False),
        pa.field("icl_ms", pa.list_(pa.float32()), nullable=False),
        pa.field("chunk_tokens", pa.list_(pa.uint16())),
    ],
    metadata={
        "neuronbench.schema": "1",
        "neuronbench.instants": "`*_ms` relative to the opening of the window, `*_ns` CLOCK_MONOTONIC",
    },
)


class RequestTable:
    """Writes the table batch by batch, so that memory does not grow with it."""

    def __init__(
        self, path: Path, origin_ns: int, columns: dict[str, Any], errors: Mapping[tuple[int, int], str]
    ) -> None:
        """`errors`: what a server said, by worker and sequence number, for the few failures that were kept."""
        self._errors = errors
        self._origin = origin_ns
        self._plan = columns
        self._path = path
        self._temporary = path.with_name(path.name + ".tmp")
        self._writer = pq.ParquetWriter(self._temporary, SCHEMA, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        if kind is None:
            self._temporary.replace(self._path)

    def write(self, batch: Batch, derived: Derived) -> None:
        rows = batch.rows
        body = rows["body"].astype(np.int64)
        data: dict[str, Any] = {
            "worker": np.full(len(rows), batch.worker, np.int32),
            "request_id": rows["seq"].astype(np.int64) + (batch.worker << 32),
            "body": body,
            "session": _known(self._plan["session"][body], -1),
            "phase": _names(rows["phase"], [PHASE_NAMES[phase] for phase in Phase]),
            "warmup": derived.warmup,
            "in_window": derived.in_window,
            "ok": derived.ok,
            "failure": _failures(rows),
            "http_status": _known(rows["status"].astype(np.int32), 0),
            "error": [self._errors.get((batch.worker, seq)) for seq in rows["seq"].tolist()]
            if self._errors
            else pa.nulls(len(rows), pa.string()),
            "finish_reason": _finish(rows["flags"]),
            "asked_input_tokens": _known(self._plan["input_tokens"][body], -1),
            "asked_output_tokens": _known(self._plan["output_tokens"][body], -1),
            "chunks": batch.counts,
            "first_chunk_tokens": _known(rows["m"].astype(np.int64), 0),
            "empty_chunks": rows["empties"].astype(np.int64),
            "response_bytes": rows["bytes"].astype(np.int64),
            "client_lag_ms": pa.array(rows["f_lag"] / 1e6, mask=rows["f"] == 0),
            "attempts": rows["attempts"].astype(np.int32),
            "reused_connection": (rows["flags"] & layout.REUSED) != 0,
            "kernel_stamped": (rows["flags"] & layout.KERNEL_STAMPED) != 0,
            "icl_ms": pa.ListArray.from_arrays(_offsets(derived.gap_counts), pa.array(derived.gaps)),
            "chunk_tokens": _tokens(batch),
        }
        for name, field in _INSTANTS.items():
            absent = rows[field] == 0
            data[f"{name}_ns"] = pa.array(rows[field], mask=absent)
            data[f"{name}_ms"] = pa.array((rows[field] - self._origin) / 1e6, mask=absent)
        for name in _SPANS:
            values = getattr(derived, name)
            data[f"{name}_ms"] = pa.array(values, mask=np.isnan(values))
        for name, field in _COUNTS:
            data[name] = _known(rows[field].astype(np.int64), -1)
        arrays = [pa.array(data[field.name], type=field.type) for field in SCHEMA]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


def _known(values: Any, missing: int) -> Any:
    return pa.array(values, mask=values == missing)


def _names(codes: Any, names: list[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(names))


def _failures(rows: Any) -> Any:
    pairs = rows["kind"].astype(np.int64) << 16 | rows["status"]
    unique, inverse = np.unique(pairs, return_inverse=True)
    names = [failure_name(int(pair) >> 16, int(pair) & 0xFFFF) for pair in unique]
    codes = pa.array(inverse.astype(np.int16), mask=np.array([not name for name in names], dtype=bool)[inverse])
    return pa.DictionaryArray.from_arrays(codes, pa.array(names))


def _finish(flags: Any) -> Any:
    codes = np.select(
        [(flags & layout.FINISH_STOP) != 0, (flags & layout.FINISH_LENGTH) != 0, (flags & layout.FINISH_OTHER) != 0],
        [0, 1, 2],
        -1,
    )
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int8), mask=codes < 0), pa.array(["stop", "length", "other"])
    )


def _offsets(counts: Any, mask: Any = None) -> Any:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.array(offsets, mask=mask)


def _tokens(batch: Batch) -> Any:
    said = (batch.rows["flags"] & layout.CHUNK_TOKENS) != 0
    counts = np.where(said, batch.counts, 0)
    keep = np.repeat(said, batch.counts)
    return pa.ListArray.from_arrays(
        _offsets(counts, mask=np.append(~said, False)), pa.array(batch.tokens[keep], type=pa.uint16())
    )
