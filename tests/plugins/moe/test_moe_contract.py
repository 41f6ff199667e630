"""What neuronbench relies on in a lane, of the lane `moe`. Its run is without a model: on the truth server."""

from __future__ import annotations

import pytest

from neuronbench.testing.contracts import LaneContract

pytest.importorskip("neuronbench_moe", reason="plugins/moe is not installed: make harness")

import neuronbench_moe


class TestLane(LaneContract):
    plugin = neuronbench_moe
    lane = "moe"
    conftest = (
        "import neuronbench\nfrom neuronbench.testing.fake_backend import register_backends, register_resources\n"
    )
    runs = (
        "-m", "fake and moe", "-k", "bench_serving", "--nb-set", "weights=dummy", "--nb-set", "tokenizer=''",
        "--nb-set", "window_s=1.5", "--nb-set", "concurrency=1",
    )  # fmt: skip
