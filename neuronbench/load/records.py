"""The drivers' records, read back: one row per request, and their chunks in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neuronbench.load import layout
from neuronbench.load.window import workers_of

BATCH_CHUNKS = 1 << 20
BATCH_REQUESTS = 1 << 16


class Batch(NamedTuple):
    """Some requests and all of their chunks."""

    rows: npt.NDArray[Any]
    """Records, `layout.request_dtype`."""
    worker: int
    counts: npt.NDArray[np.int64]
    """Chunks per request."""
    times: npt.NDArray[np.int64]
    """Instants of the chunks, request after request."""
    tokens: npt.NDArray[np.uint16]
    """Tokens per chunk, 0 unknown."""


class Worker:
    """Records of one worker, last state of each request, in order of sequence number."""

    def __init__(self, out: Path, worker: int) -> None:
        self.worker = worker
        rows = _map(out / f"requests-{worker}.bin", layout.request_dtype())
        if len(rows) and (
            len(rows) != int(rows["seq"].max()) + 1 or bool((np.diff(rows["seq"].astype(np.int64)) != 1).any())
        ):
            _, last = np.unique(rows["seq"][::-1], return_index=True)
            rows = rows[len(rows) - 1 - last]
        self.rows = rows
        segments = _map(out / f"segments-{worker}.bin", layout.segment_dtype())
        order = np.argsort(segments["seq"], kind="stable")
        self._seq = segments["seq"][order]
        self._count = segments["count"][order].astype(np.int64)
        self._start = segments["start"][order]
        self._chunks = _map(out / f"chunks-{worker}.bin", np.dtype("<i8"))
        self._tokens = _map(out / f"tokens-{worker}.bin", np.dtype("<u2"))

    def batches(self) -> Iterator[Batch]:
        first = np.searchsorted(self._seq, self.rows["seq"], side="left")
        last = np.searchsorted(self._seq, self.rows["seq"], side="right")
        done = np.concatenate([[0], np.cumsum(self._count)])
        counts = done[last] - done[first]
        total = np.cumsum(counts)
        at = 0
        while at < len(self.rows):
            before = total[at - 1] if at else 0
            end = int(np.searchsorted(total, before + BATCH_CHUNKS, side="right"))
            end = min(max(end, at + 1), at + BATCH_REQUESTS, len(self.rows))
            yield self._batch(at, end, first, last, counts)
            at = end

    def _batch(self, at: int, end: int, first: Any, last: Any, counts: Any) -> Batch:
        low, high = int(first[at]), int(last[end - 1])
        many, start = self._count[low:high], self._start[low:high]
        # requests without chunks have no segments, and segments without a request record (cut off) are skipped
        known = np.isin(self._seq[low:high], self.rows["seq"][at:end])
        many, start = many[known], start[known]
        begins = np.cumsum(many) - many
        index = np.repeat(start - begins, many) + np.arange(int(many.sum()))
        return Batch(
            rows=np.asarray(self.rows[at:end]),
            worker=self.worker,
            counts=counts[at:end],
            times=np.asarray(self._chunks[index]) if len(index) else np.empty(0, np.int64),
            tokens=np.asarray(self._tokens[index]) if len(index) else np.empty(0, np.uint16),
        )


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The file as an array, without a last record that was cut off."""
    count = path.stat().st_size // dtype.itemsize if path.exists() else 0
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype=dtype)


def read(out: Path) -> list[Worker]:
    return [Worker(out, worker) for worker in workers_of(out)]


def read_lags(out: Path, slices: dict[int, tuple[int, int]]) -> npt.NDArray[np.int32]:
    """Read lags noted inside the window, ns."""
    parts = []
    for worker, (start, stop) in slices.items():
        lags = _map(out / f"lags-{worker}.bin", np.dtype("<i4"))
        parts.append(np.asarray(lags[start : stop if stop >= 0 else None]))
    return np.concatenate(parts) if parts else np.empty(0, np.int32)
