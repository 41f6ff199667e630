"""The drivers' records, read back: one row per request, and their chunks in batches of bounded size."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neuronbench.load import layout
from neuronbench.load.window import workers_of

BATCH_CHUNKS = 1 << 18
BATCH_REQUESTS = 1 << 14


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
        self._mapped = rows = _map(out / f"requests-{worker}.bin", layout.request_dtype())
        seq = np.array(rows["seq"])
        if len(seq) and (seq[0] != 0 or not bool((seq[1:] - seq[:-1] == 1).all())):
            # snapshots of requests in flight, ends out of order: the last record of each is the one that counts
            _, last = np.unique(seq[::-1], return_index=True)
            rows = rows[len(seq) - 1 - last]
        del seq
        self.rows = rows
        segments = _map(out / f"segments-{worker}.bin", layout.segment_dtype())
        order = np.argsort(np.array(segments["seq"]), kind="stable")
        self._seq = segments["seq"][order]
        self._count = segments["count"][order]
        self._start = segments["start"][order]
        del order
        _forget(segments)
        _forget(self._mapped)
        self._chunks = _map(out / f"chunks-{worker}.bin", np.dtype("<i8"))
        self._tokens = _map(out / f"tokens-{worker}.bin", np.dtype("<u2"))

    def batches(self) -> Iterator[Batch]:
        at = 0
        while at < len(self.rows):
            rows = np.array(self.rows[at : at + BATCH_REQUESTS])
            low = np.searchsorted(self._seq, rows["seq"], side="left")
            high = np.searchsorted(self._seq, rows["seq"], side="right")
            begin, end = int(low[0]), int(high.max())
            done = np.concatenate([[0], np.cumsum(self._count[begin:end], dtype=np.int64)])
            counts = done[high - begin] - done[low - begin]
            fit = max(int(np.searchsorted(np.cumsum(counts), BATCH_CHUNKS, side="right")), 1)
            yield self._batch(rows[:fit], begin, int(high[:fit].max()), counts[:fit])
            at += fit
            for mapped in (self._chunks, self._tokens, self._mapped):
                _forget(mapped)

    def _batch(self, rows: Any, low: int, high: int, counts: Any) -> Batch:
        many, start = self._count[low:high].astype(np.int64), self._start[low:high]
        # requests without chunks have no segments, and segments without a request record (cut off) are skipped
        known = np.isin(self._seq[low:high], rows["seq"])
        many, start = many[known], start[known]
        begins = np.cumsum(many) - many
        index = np.repeat(start - begins, many) + np.arange(int(many.sum()))
        return Batch(
            rows=rows,
            worker=self.worker,
            counts=counts,
            times=np.array(self._chunks[index]) if len(index) else np.empty(0, np.int64),
            tokens=np.array(self._tokens[index]) if len(index) else np.empty(0, np.uint16),
        )


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The file as an array, without a last record that was cut off."""
    count = path.stat().st_size // dtype.itemsize if path.exists() else 0
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype=dtype)


def _forget(mapped: npt.NDArray[Any]) -> None:
    """Let go of the pages read so far: the files may be larger than the memory this is to run in."""
    if isinstance(mapped, np.memmap):
        mapped._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def read(out: Path) -> list[Worker]:
    return [Worker(out, worker) for worker in workers_of(out)]


def read_lags(out: Path, slices: dict[int, tuple[int, int]]) -> npt.NDArray[np.int32]:
    """Read lags noted inside the window, ns."""
    parts = []
    for worker, (start, stop) in slices.items():
        lags = _map(out / f"lags-{worker}.bin", np.dtype("<i4"))
        parts.append(np.asarray(lags[start : stop if stop >= 0 else None]))
    return np.concatenate(parts) if parts else np.empty(0, np.int32)
