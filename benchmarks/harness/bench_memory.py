"""Memory and time of reducing a million requests, whose records a driver is only said to have written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SIMULATED = Path(__file__).with_name("simulated.py")
ROOT = Path(__file__).resolve().parents[2]
REQUESTS, CHUNKS = 1_000_000, 8


def call(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SIMULATED), str(folder), *words], capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def bench_reduction(board, tmp_path: Path) -> None:
    """Peak resident memory of the process that reduces, interpreter and libraries included."""
    found = {}
    for requests in (REQUESTS // 10, REQUESTS):
        folder = tmp_path / str(requests)
        folder.mkdir()
        call(folder, str(requests), str(CHUNKS))
        found[requests] = json.loads(call(folder, "reduce"))
        assert found[requests]["n"] == requests
        assert found[requests]["ttft_p50_ms"] == pytest.approx(51.4, abs=0.2)
    bare = json.loads(call(tmp_path / str(REQUESTS), "bare"))
    assert bare["ttft_p50_ms"] == pytest.approx(found[REQUESTS]["ttft_p50_ms"], rel=1e-3)
    large, small = found[REQUESTS], found[REQUESTS // 10]
    board.report(
        what="memory, 1 million requests reduced", unit="MiB", value=large["peak_mib"], budget=300.0,
        bare=bare["peak_mib"], note=f"{CHUNKS} tokens each; bare: one pass for one latency",
    )  # fmt: skip
    board.report(
        what="memory, 10 × the requests", unit="×", value=large["peak_mib"] / small["peak_mib"],
        note=f"{small['peak_mib']:.0f} MiB for {REQUESTS // 10:,}",
    )  # fmt: skip
    board.report(
        what="time to reduce 1 million requests", unit="s", value=large["seconds"], budget=60.0, bare=bare["seconds"]
    )
