"""Tokens and seconds of sound from what the loops gave, against a plain calculation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neuronbench import measure_items
from neuronbench.definitions import metric
from neuronbench.model import Metric
from neuronbench.worker.runs import Loop, Run

WINDOW_NS = (0, 1_000_000_000)


def run(*, windowed: bool, batch: int = 2) -> Run:
    durations = np.array([100_000_000] * 4)
    loop = Loop(
        worker=0, begun_ns=0, stopped_ns=400_000_000, ended_ns=400_000_000, transfer_ns=0, bookkeeping_ns=0,
        durations_ns=durations, ends_ns=np.cumsum(durations),
    )  # fmt: skip
    return Run(loops=[loop], batch_size=batch, batch_digest="d", window_ns=WINDOW_NS if windowed else None)


MEASURED = [
    metric("latency", 100.0, stat="p50", n=400, low=99.0, high=102.0, confidence=0.95),
    metric("latency", None, stat="p99", n=400, note="needs more"),
    metric("throughput", 20.0, n=400),
]


def derived(per_item: dict[str, Any] | None, *, windowed: bool = True) -> dict[str, Metric]:
    model: Any = SimpleNamespace(facts={} if per_item is None else {"per_item": per_item})
    return {each.key: each for each in measure_items.derived(run(windowed=windowed), model, MEASURED)}


def test_a_generation_has_tokens_both_ways_and_alone() -> None:
    found = derived({"input_tokens": 128, "output_tokens": 32})
    assert found["total_token_throughput_tok_s"].value == pytest.approx(20 * 160)
    assert found["output_token_throughput_tok_s"].value == pytest.approx(20 * 32)
    p50 = found["latency_per_token_p50_ms"]
    assert (p50.value, p50.low, p50.high) == pytest.approx((100 / 160, 99 / 160, 102 / 160))
    assert (p50.n, p50.confidence) == (400, 0.95)
    assert found["latency_per_output_token_p50_ms"].value == pytest.approx(100 / 32)
    missing = found["latency_per_token_p99_ms"]
    assert missing.value is None
    assert "needs more" in missing.note


def test_a_loop_without_a_window_has_no_rate() -> None:
    found = derived({"input_tokens": 128, "output_tokens": 32}, windowed=False)
    assert sorted(key for key in found if "throughput" in key) == []
    assert "latency_per_token_p50_ms" in found


def test_sound_has_its_real_time_factor() -> None:
    found = derived({"audio_s": 30.0, "output_tokens": 8})
    assert found["rtf_p50"].value == pytest.approx(0.1 / (30 * 2))  # a batch of two windows in 0.1 s
    assert found["rtf"].value == pytest.approx(1 / (20 * 30))
    assert "total_token_throughput_tok_s" not in found  # sound is not tokens
    assert "latency_per_token_p50_ms" not in found


def test_an_embedding_has_input_tokens_and_others_nothing() -> None:
    assert set(derived({"input_tokens": 32})) == {"input_token_throughput_tok_s"}
    assert derived({"input_tokens": 32})["input_token_throughput_tok_s"].value == pytest.approx(640)
    assert derived({}) == derived(None) == {}
