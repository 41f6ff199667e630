"""The client's records beside what the server says of the same requests: the difference is the client's error.

Requests are told apart by their model name, which is the one thing of a request that stands in the server's record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronbench.calibration.points import Spread
from neuronbench.load import records
from neuronbench.load.outcomes import Kind, Phase

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Signed errors in ms, over the requests of the window."""

    ttft: Floats
    chunk: Floats
    tpot: Floats
    failed: int
    """Requests of the window that failed, or whose chunks are not those the server sent."""


def compare(out: Path, names: Sequence[str], truth: Sequence[Mapping[str, Any]]) -> Errors:
    """Errors of the drive whose spill is in `out`.

    `names`: the model name of each body of the plan. `truth`: the server's records, with chunks. A request that went
    out twice (its first connection had been closed) is left out: the server knows one of the two.
    """
    by_name = {record["model"]: record for record in truth}
    ttft: list[float] = []
    tpot: list[float] = []
    chunks: list[npt.NDArray[np.int64]] = []
    failed = 0
    for worker in records.read(out):
        for batch in worker.batches():
            ends = np.cumsum(batch.counts)
            for row, end, count in zip(batch.rows, ends, batch.counts, strict=True):
                if row["phase"] != int(Phase.WINDOW) or row["attempts"] > 1:
                    continue
                record = by_name.get(names[row["body"]])
                if row["kind"] != int(Kind.OK) or record is None or len(record["sent_ns"]) != count or not count:
                    failed += 1
                    continue
                times, sent = batch.times[end - count : end], np.array(record["sent_ns"], dtype=np.int64)
                chunks.append(times - sent)
                ttft.append(int(row["f"] - row["w"]) - int(sent[0] - record["received_ns"]))
                if count > 1:
                    tpot.append((int(times[-1] - times[0]) - int(sent[-1] - sent[0])) / (count - 1))
    return Errors(
        ttft=np.array(ttft) / 1e6,
        chunk=np.concatenate(chunks) / 1e6 if chunks else np.empty(0),
        tpot=np.array(tpot) / 1e6,
        failed=failed,
    )


def spread(errors: Floats) -> Spread:
    """Percentiles of the absolute errors."""
    from neuronbench import stats

    values = np.sort(np.abs(errors))

    def at(p: float) -> float | None:
        return stats.quantile(values, p, independent=False).value

    return Spread(p50=at(0.5), p90=at(0.9), p99=at(0.99), max=float(values[-1]) if len(values) else None, n=len(values))
