"""The columns of `requests.parquet` as arrays; copes with columns that are not there and says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_INSTANTS: Final = ("scheduled_ns", "sent_ns", "first_output_ns", "last_output_ns", "end_ns")
COLUMNS: Final = (
    "ok", "in_window", "warmup", "failure", *_INSTANTS, "output_tokens", "first_chunk_tokens", "icl_ms", "ttft_ms",
    "tpot_ms", "e2e_ms",
)  # fmt: skip
"""What is looked at, of all the columns there may be."""

COUNTED: Final = 5_000_000
"""Above this many chunk gaps a curve is drawn from each request's ends instead of from its chunks."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """One row per request. Times in seconds since `origin_ns`; NaN where a request never got there."""

    rows: int
    origin_ns: int
    missing: tuple[str, ...]
    """Columns that were asked for and are not in the table."""
    ok: Bools
    counted: Bools
    """Scheduled inside the measuring window, warm-up excluded."""
    failure: tuple[str, ...]
    """Class of the failure; empty for none."""
    scheduled_s: Floats
    sent_s: Floats
    first_s: Floats
    last_s: Floats
    end_s: Floats
    output_tokens: Floats
    first_chunk_tokens: Floats
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    icl_ms: Floats
    """All gaps, request after request."""
    icl_start: NDArray[np.int64]
    """`icl_ms[icl_start[i]:icl_start[i + 1]]` are the gaps of request i; empty when there are none at all."""


def requests_of(table: pyarrow.Table) -> Requests:
    """Arrays of a table of requests, whatever of the agreed columns it has."""
    names, rows = set(table.column_names), table.num_rows
    missing: list[str] = []

    def floats(name: str) -> Floats:
        if name not in names:
            missing.append(name)
            return np.full(rows, np.nan)
        column: Any = table.column(name).combine_chunks().cast("float64")
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)

    def bools(name: str, default: bool) -> Bools:
        if name not in names:
            missing.append(name)
            return np.full(rows, default)
        return np.array([bool(value) for value in table.column(name).to_pylist()], dtype=np.bool_)

    instants = {name: _instants(table, name) for name in _INSTANTS if name in names}
    missing += [name for name in _INSTANTS if name not in names]
    origin_ns = min((int(values[there].min()) for values, there in instants.values() if there.any()), default=0)

    def seconds(name: str) -> Floats:
        if name not in instants:
            return np.full(rows, np.nan)
        values, there = instants[name]
        return np.where(there, (values - origin_ns) / 1e9, np.nan)

    if "failure" in names:
        failure = tuple(value or "" for value in table.column("failure").to_pylist())
    else:
        missing.append("failure")
        failure = ("",) * rows
    icl, start = _gaps(table) if "icl_ms" in names else (np.empty(0), np.zeros(0, dtype=np.int64))
    if "icl_ms" not in names:
        missing.append("icl_ms")
    return Requests(
        rows=rows,
        origin_ns=origin_ns,
        ok=bools("ok", True),
        counted=bools("in_window", True) & ~bools("warmup", False),
        failure=failure,
        scheduled_s=seconds("scheduled_ns"),
        sent_s=seconds("sent_ns"),
        first_s=seconds("first_output_ns"),
        last_s=seconds("last_output_ns"),
        end_s=seconds("end_ns"),
        output_tokens=floats("output_tokens"),
        first_chunk_tokens=floats("first_chunk_tokens"),
        ttft_ms=floats("ttft_ms"),
        tpot_ms=floats("tpot_ms"),
        e2e_ms=floats("e2e_ms"),
        icl_ms=icl,
        icl_start=start,
        missing=tuple(missing),
    )


def _instants(table: pyarrow.Table, name: str) -> tuple[NDArray[np.int64], Bools]:
    """Nanoseconds as whole numbers (a double would lose some), and which of them are there."""
    column: Any = table.column(name).combine_chunks()
    there = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    values = np.asarray(column.cast("int64").fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    return values, there


def _gaps(table: pyarrow.Table) -> tuple[Floats, NDArray[np.int64]]:
    import pyarrow.compute as pc

    column: Any = table.column("icl_ms").combine_chunks()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.float64)
    return values, np.concatenate(([0], np.cumsum(lengths)))


def token_instants(requests: Requests) -> tuple[Floats, Floats]:
    """When output tokens arrived (seconds) and how many at each instant, over all requests, by chunk time.

    A chunk's share is (n − m)/(chunks − 1) of its request, the first chunk's m. Requests without a token count or
    without gaps count at their first and last output. Source: the definition of `output_throughput`.
    """
    known = np.isfinite(requests.output_tokens) & np.isfinite(requests.first_s)
    first_tokens = np.where(np.isfinite(requests.first_chunk_tokens), requests.first_chunk_tokens, 1.0)
    first_tokens = np.minimum(first_tokens, np.where(known, requests.output_tokens, 0.0))
    rest = np.where(known, requests.output_tokens - first_tokens, 0.0)
    times, weights = [requests.first_s[known]], [first_tokens[known]]
    gaps = np.diff(requests.icl_start) if requests.icl_start.size else np.zeros(requests.rows, dtype=np.int64)
    chunked = known & (gaps > 0) if requests.icl_ms.size <= COUNTED else np.zeros(requests.rows, dtype=np.bool_)
    if chunked.any():
        total = np.cumsum(requests.icl_ms) / 1e3
        before = np.concatenate(([0.0], total))[requests.icl_start[:-1]]
        owner = np.repeat(np.arange(requests.rows), gaps)
        keep = chunked[owner]
        times.append((requests.first_s[owner] + total - before[owner])[keep])
        weights.append((rest / np.maximum(gaps, 1))[owner][keep])
    ends = known & ~chunked & np.isfinite(requests.last_s)
    times.append(requests.last_s[ends])
    weights.append(rest[ends])
    return np.concatenate(times), np.concatenate(weights)
