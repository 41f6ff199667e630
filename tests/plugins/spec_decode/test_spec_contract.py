"""What neuronbench relies on in a lane, of the lane `spec_decode`. Its run is on the truth server."""

from __future__ import annotations

import pytest

from neuronbench.testing.contracts import LaneContract

pytest.importorskip("neuronbench_spec_decode", reason="plugins/spec_decode is not installed: make harness")

import neuronbench_spec_decode
from spec_truth import CONFTEST


class TestLane(LaneContract):
    plugin = neuronbench_spec_decode
    lane = "spec_decode"
    conftest = CONFTEST
    runs = (
        "-m",
        "fake and spec_decode",
        "--nb-set",
        "model=truth",
        "--nb-set",
        "output_tokens=16",
        "--nb-set",
        "judged=0",
    )
