"""How exactly the client keeps a schedule of 500 requests a second."""

from __future__ import annotations

import statistics
from pathlib import Path

from clients import bare, nearest_rank, ours

from neuronbench.load.arrivals import constant
from neuronbench.testing.truth_server import TruthServer

RATE, SECONDS, TOKENS, TURNS = 500.0, 4.0, 4, 3


def bench_open_loop(board, tmp_path: Path) -> None:
    """Equal gaps; each request's instant of writing against the instant it was due."""
    count = round(RATE * SECONDS)
    mine, reference = [], []
    with TruthServer(ttft_ms=50, tpot_ms=10) as server:
        for turn in range(TURNS):
            arrivals = constant(RATE, duration_s=SECONDS, lead_s=0.5, tail_s=5)
            mine.append(ours(server, tmp_path / str(turn), arrivals, count + round(8 * RATE), TOKENS))
            reference.append(bare(server, streams=200, requests=count, tokens=TOKENS, rate=RATE))
    for p, budget in ((0.5, None), (0.99, 1.0), (1.0, None)):
        values = [nearest_rank(turn.lag, p) for turn in mine]
        board.report(
            what="send error " + (f"p{100 * p:g}" if p < 1 else "max") + ", 500 req/s", unit="ms",
            value=statistics.median(values), turns=values, budget=budget,
            bare=statistics.median(nearest_rank(turn.lag, p) for turn in reference),
        )  # fmt: skip
    off = [100 * abs((turn.rate or 0) / RATE - 1) for turn in mine]
    board.report(
        what="achieved rate off by, 500 req/s", unit="%", value=statistics.median(off), turns=off, budget=0.5,
        bare=statistics.median(100 * abs((turn.rate or 0) / RATE - 1) for turn in reference),
    )  # fmt: skip
