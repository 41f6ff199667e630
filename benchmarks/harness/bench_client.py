"""What the client adds to TTFT and what a token costs it, beside a bare client, at 64, 256 and 1,000 streams."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from clients import TPOT_MS, TTFT_MS, bare, ours

from neuronbench.load.arrivals import closed_loop
from neuronbench.testing.truth_server import TruthServer

TOKENS = 64
BUDGETS = {64: (1.0, 2.0), 256: (2.0, 12.0), 1000: (5.0, 30.0)}
"""TTFT added, p50 and p99, ms."""
CPU_BUDGET_US = 10.0


@pytest.mark.parametrize(("streams", "requests", "turns"), [(64, 640, 3), (256, 2560, 3), (1000, 3000, 2)])
def bench_client(board, tmp_path: Path, streams: int, requests: int, turns: int) -> None:
    """The same load in turns: ours, bare, ours, bare, ..."""
    mine, reference = [], []
    with TruthServer(ttft_ms=TTFT_MS, tpot_ms=TPOT_MS) as server:
        for turn in range(turns):
            arrivals = closed_loop(streams, requests=requests)
            mine.append(ours(server, tmp_path / str(turn), arrivals, requests + 6 * streams, TOKENS))
            reference.append(bare(server, streams=streams, requests=requests, tokens=TOKENS))
    for p, budget in zip((0.5, 0.99), BUDGETS[streams], strict=True):
        values = [turn.added(p) for turn in mine]
        board.report(
            what=f"TTFT added p{100 * p:g}, {streams} streams", unit="ms", value=statistics.median(values),
            turns=values, budget=budget, bare=statistics.median(turn.added(p) for turn in reference),
            note="of the client's percentile against the server's own",
        )  # fmt: skip
    values = [sorted(map(abs, turn.errors))[int(0.99 * len(turn.errors))] for turn in mine]
    others = [sorted(map(abs, turn.errors))[int(0.99 * len(turn.errors))] for turn in reference]
    board.report(
        what=f"TTFT error p99, {streams} streams", unit="ms", value=statistics.median(values), turns=values,
        bare=statistics.median(others), note="request by request",
    )  # fmt: skip
    for name, field, budget in (("user", "user_us_per_token", CPU_BUDGET_US), ("all", "cpu_us_per_token", None)):
        values = [getattr(turn, field) for turn in mine]
        board.report(
            what=f"{name} CPU per token, {streams} streams", unit="µs", value=statistics.median(values), turns=values,
            budget=budget, bare=statistics.median(getattr(turn, field) for turn in reference),
        )  # fmt: skip
    starts = [turn.start_cpu_ms for turn in mine if turn.start_cpu_ms is not None]
    board.report(
        what=f"CPU before the load, {streams} streams", unit="ms", value=statistics.median(starts), turns=starts,
        note="start, plan and warm-up; in no figure per token",
    )  # fmt: skip
