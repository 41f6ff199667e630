"""Bringing the records of another host's driver onto this host's clock: one constant added to every instant.

The constant is the same for all instants of a node, so differences between them, which is what latencies are, stay as
they were measured, to the nanosecond.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np

from neuronbench.load import layout

INSTANTS: Final = ("s", "w", "w_end", "r", "o", "f", "c", "l", "e")
"""Fields of a request's record; 0 stands for what did not happen."""
_BATCH: Final = 1 << 18


def shift(out: Path, worker: int, by_ns: int, *, wall_ns: int | None = None) -> None:
    """Add `by_ns` to all instants in the files of `worker` in `out`, in place.

    `wall_ns`: CLOCK_REALTIME − CLOCK_MONOTONIC of this host; the wall clock noted at edges becomes this host's too.
    """
    requests = _open(out / f"requests-{worker}.bin", layout.request_dtype())
    for batch in _batches(requests):
        for name in INSTANTS:
            column = batch[name]
            batch[name] = np.where(column != 0, column + by_ns, 0)
    for batch in _batches(_open(out / f"chunks-{worker}.bin", np.dtype("<i8"))):
        batch += by_ns
    events = out / f"events-{worker}.jsonl"
    if events.exists():
        lines = []
        for line in events.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):  # one that was cut off by a kill is left out, as it is in reading
                lines.append(_event(json.loads(line), by_ns, wall_ns))
        events.write_text("".join(lines), encoding="utf-8")
    result = out / f"driver-{worker}.json"
    if result.exists():
        known = json.loads(result.read_text(encoding="utf-8"))
        known["ended"] += by_ns
        result.write_text(json.dumps(known), encoding="utf-8")


def _event(event: dict[str, Any], by_ns: int, wall_ns: int | None) -> str:
    for name in ("t", "noted"):
        if name in event:
            event[name] += by_ns
    if "utc_ns" in event and wall_ns is not None:
        event["utc_ns"] = event["t"] + wall_ns
    return json.dumps(event, separators=(",", ":")) + "\n"


def _open(path: Path, dtype: np.dtype[Any]) -> Any:
    """The file as an array that can be written to, without a last record that was cut off."""
    count = path.stat().st_size // dtype.itemsize if path.exists() else 0
    return np.memmap(path, dtype=dtype, mode="r+", shape=(count,)) if count else np.empty(0, dtype=dtype)


def _batches(array: Any) -> Any:
    """Stretches of it, each forgotten when it is done: the files may be larger than the memory."""
    for at in range(0, len(array), _BATCH):
        yield array[at : at + _BATCH]
        if isinstance(array, np.memmap):
            array.flush()
            array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
