"""Quantities per request, from its instants: the definitions of `neuronbench.definitions`, vectorised.

Missing is NaN here and null in tables; nothing is ever filled in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neuronbench.load import layout
from neuronbench.load.outcomes import NOT_FAILURES, Kind, Phase
from neuronbench.load.records import Batch

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_PLANNED = int(Kind.CLIENT_CANCEL)


class Derived(NamedTuple):
    """Columns of a batch; times in ms."""

    ok: Bools
    failed: Bools
    in_window: Bools
    warmup: Bools
    ttft: Floats
    ttft_due: Floats
    ttfat: Floats
    tpot: Floats
    e2e: Floats
    e2e_due: Floats
    send_lag: Floats
    max_stall: Floats
    tokens_per_chunk: Floats
    gaps: npt.NDArray[np.float32]
    """Gaps between the output chunks of each request, request after request, ms."""
    gap_counts: npt.NDArray[np.int64]
    single: Bools
    """Every chunk carried exactly one token."""
    weights: Floats
    """Tokens per chunk; NaN where unknown."""
    weight_known: Bools


def _span(later: npt.NDArray[Any], earlier: npt.NDArray[Any]) -> Floats:
    known = (later != 0) & (earlier != 0)
    return np.where(known, (later - earlier) / 1e6, np.nan)


def owners(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Index of the request of each chunk."""
    return np.repeat(np.arange(len(counts)), counts)


def derive(batch: Batch, opened: int | None, closed: int | None) -> Derived:
    """All quantities of a batch; `opened` and `closed` are the window's edges."""
    rows, counts, times = batch.rows, batch.counts, batch.times
    kind = rows["kind"]
    ok = np.isin(kind, [int(k) for k in NOT_FAILURES])
    warmup = rows["phase"] == int(Phase.WARMUP)
    in_window = np.zeros(len(rows), dtype=bool)
    if opened is not None and closed is not None:
        in_window = ~warmup & (rows["s"] >= opened) & (rows["s"] < closed)
    n = rows["n_out"].astype(np.float64)
    n[n < 0] = np.nan
    counted = counts.astype(np.float64)
    first = np.where(rows["m"] > 0, rows["m"], 1).astype(np.float64)
    complete = (kind == int(Kind.OK)) & (rows["f"] != 0)
    span = _span(rows["l"], rows["f"])
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(complete & (n > first), span / (n - first), np.nan)
        per_chunk = np.where(complete & (counted > 0), n / counted, np.nan)
    whole = kind == int(Kind.OK)
    owner = owners(counts)
    same = owner[1:] == owner[:-1]
    gaps = (np.diff(times)[same] / 1e6).astype(np.float32)
    gap_counts = np.maximum(counts - 1, 0)
    stall = np.full(len(rows), np.nan)
    has = gap_counts > 0
    if has.any():
        starts = (np.cumsum(gap_counts) - gap_counts)[has]
        stall[has] = np.maximum.reduceat(gaps, starts)
    weights, known = _weights(batch, n, counted, owner)
    single = np.ones(len(rows), dtype=bool)
    if len(owner):
        single[owner[weights != 1.0]] = False
    single &= known & (counts > 0)
    return Derived(
        ok=ok,
        failed=~ok,
        in_window=in_window,
        warmup=warmup,
        ttft=_span(rows["f"], rows["w"]),
        ttft_due=_span(rows["f"], rows["s"]),
        ttfat=_span(rows["c"], rows["w"]),
        tpot=tpot,
        e2e=np.where(whole, _span(rows["l"], rows["w"]), np.nan),
        e2e_due=np.where(whole, _span(rows["l"], rows["s"]), np.nan),
        send_lag=_span(rows["w"], rows["s"]),
        max_stall=np.where(whole, stall, np.nan),
        tokens_per_chunk=per_chunk,
        gaps=gaps,
        gap_counts=gap_counts,
        single=single,
        weights=weights,
        weight_known=known,
    )


def _weights(batch: Batch, n: Floats, counted: Floats, owner: npt.NDArray[np.int64]) -> tuple[Floats, Bools]:
    """Tokens of each chunk: as the server said where it did, else its total spread evenly over the chunks."""
    rows = batch.rows
    said = (rows["flags"] & layout.CHUNK_TOKENS) != 0
    tokens = batch.tokens.astype(np.float64)
    if said.any():
        total = np.bincount(owner, weights=tokens, minlength=len(rows))
        said &= (total == n) | np.isnan(n)
    with np.errstate(invalid="ignore", divide="ignore"):
        even = n / counted
    weights = np.where(said[owner], tokens, even[owner]) if len(owner) else np.empty(0)
    return weights, said | ~np.isnan(n)
