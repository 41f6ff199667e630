"""Steady or not: noise is, warm-up, drift and overload are not."""

from __future__ import annotations

import numpy as np
import pytest
from load_helpers import Run

from neuronbench.load import arrivals as at
from neuronbench.load.series import BinnedSeries
from neuronbench.load.steady import judge, mser
from neuronbench.load.workload import synthetic, warm_up
from neuronbench.testing.truth_server import TruthServer

RNG = np.random.default_rng(11)


def noise(n: int, spread: float = 0.05) -> np.ndarray:
    return 100 * (1 + spread * RNG.standard_normal(n))


@pytest.mark.parametrize("n", [20, 60, 240])
def test_noise_is_steady(n: int) -> None:
    verdicts = [judge(noise(n), "x").steady for _ in range(300)]
    assert verdicts.count(False) <= 3


def test_correlated_noise_and_cycles_are_steady() -> None:
    wrong = 0
    for _ in range(200):
        series = noise(120)
        for k in range(1, 120):
            series[k] = 0.6 * series[k - 1] + 0.4 * series[k]
        wrong += judge(series, "x").steady is False
    assert wrong <= 4
    assert judge(100 + 30 * np.sin(np.arange(120) * 2.2), "x").steady is True


@pytest.mark.parametrize("growth", [0.2, -0.2, 1.0])
def test_a_drift_is_not_steady_and_said_to_grow_or_fall(growth: float) -> None:
    found = judge(noise(120) * np.linspace(1, 1 + growth, 120), "throughput")
    assert found.steady is False
    assert ("grows" if growth > 0 else "falls") in found.why


def test_a_long_warm_up_inside_the_window_is_found_with_its_length() -> None:
    series = noise(200)
    series[:80] *= 0.6
    found = judge(series, "throughput")
    assert found.steady is False
    assert mser(series) == pytest.approx(0.4, abs=0.05)


def test_a_short_warm_up_is_cut_but_tolerated() -> None:
    series = noise(200)
    series[:10] *= 0.5
    assert mser(series) == pytest.approx(0.05, abs=0.05)
    assert judge(series, "x").steady is True


def test_too_short_is_no_verdict() -> None:
    assert judge(noise(19), "x").steady is None
    assert judge(np.zeros(100), "x").steady is None


def test_bins_count_tokens_and_requests_in_flight() -> None:
    series = BinnedSeries(10_000_000_000, 12_000_000_000)
    assert series.bins == 8
    at_ns = np.array([10_000_000_000, 10_240_000_000, 11_990_000_000])
    series.add_tokens(at_ns, np.array([1.0, 2.0, 5.0]))
    assert series.tokens.tolist() == [3, 0, 0, 0, 0, 0, 0, 5]
    series.add_intervals(np.array([9_000_000_000, 10_500_000_000]), np.array([10_600_000_000, 20_000_000_000]))
    assert series.in_flight.tolist() == [1, 1, 1, 1, 1, 1, 1, 1]


def test_a_drifting_server_has_no_steady_state(run: Run) -> None:
    drifting = run(
        at.closed_loop(4, duration_s=5.2),
        workload=synthetic(input_tokens=4, output_tokens=40),
        model="truth:drift,percent_per_s=10",
    )
    gate = drifting.reduction.gate("steady_state")
    assert gate.passed is False
    assert "falls" in gate.message


def test_an_overloaded_server_has_no_steady_state(run: Run) -> None:
    with TruthServer(ttft_ms=20, tpot_ms=5, max_concurrency=1) as server:
        ran = run(
            at.poisson(45, duration_s=5.2, lead_s=0.2, tail_s=0.2),
            workload=synthetic(input_tokens=4, output_tokens=3),
            url=server.url,
            warmup=warm_up(1),
            timeouts=None,
        )
    gate = ran.reduction.gate("steady_state")
    assert gate.passed is False
    assert "requests in flight grows" in gate.message


def test_the_tests_of_trend_and_difference_agree_with_scipys() -> None:
    from scipy import stats

    from neuronbench.load import steady

    for _ in range(20):
        series = noise(20) + np.arange(20) * RNG.uniform(-1, 1)
        expected = stats.kendalltau(np.arange(20), series, method="asymptotic").pvalue
        assert steady.trend(series) == pytest.approx(expected, rel=0.35, abs=0.05)  # continuity corrected
        begin, rest = series[:6], series[6:]
        p = stats.ttest_ind(begin, rest, equal_var=False).pvalue
        assert steady.differ(begin, rest) == (p < steady.CUT_P)
