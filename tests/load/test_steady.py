"""Steady or not: noise is, warm-up, drift and overload are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from load_helpers import Run
from load_records import CLOSED, CLOSED_LOOP, MS, OPENED, reduced, regular

from neuronbench.load import arrivals as at
from neuronbench.load.series import BINS, BinnedSeries, joined, parts
from neuronbench.load.steady import judge, mser, over_lives, surges
from neuronbench.load.stream import Stream
from neuronbench.load.workload import synthetic
from neuronbench.stats import mean_interval

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
    assert judge(noise(9), "x").steady is None
    assert judge(np.zeros(100), "x").steady is None


def test_noise_that_would_hide_a_drift_is_no_verdict() -> None:
    found = judge(noise(20, 0.4), "throughput")
    assert found.steady is None
    assert "noise would hide a change of 20%" in found.why
    assert found.visible > 0.2
    assert judge(noise(200, 0.05), "throughput").visible < 0.1


def test_bins_count_tokens_ends_and_requests_in_flight() -> None:
    start, end = 10_000_000_000, 12_400_000_000  # bins of 2 ms
    series = BinnedSeries(start, end)
    at_ns = np.array([start, start + 1_000_000, end - 1])
    series.add_tokens(at_ns, np.array([1.0, 2.0, 5.0]))
    assert (series.tokens[0], series.tokens[-1], series.tokens.sum()) == (3, 5, 8)
    series.add_ends(at_ns)
    assert (series.ended[0], series.ended[-1]) == (2, 1)
    series.add_intervals(np.array([9_000_000_000, 10_600_000_000]), np.array([11_200_000_000, 20_000_000_000]))
    assert joined(series.in_flight, 12).tolist() == [1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1]


def test_typical_requests_are_means_and_of_an_end_where_they_get_longer() -> None:
    series = BinnedSeries(0, 3_000_000_000)
    assert series.lives() is None
    series.add_lives(np.array([0, 1_500_000_000, 2_900_000_000]), np.array([100.0, np.nan, 300.0]))
    assert series.lives() == pytest.approx(15)
    assert series.lives(shortest=True) == pytest.approx(30)


def test_parts_divide_the_bins() -> None:
    assert (parts(9.9), parts(10), parts(19.9), parts(1e9), parts(1e9, 20)) == (None, 10, 16, 40, 20)


# --------------------------------------------------------------------------------------------------------------------
# simulated loads: false alarms and what is found


def closed(slots: int, lives: int, spread: float, rng: np.random.Generator, *, drift: float = 0.0) -> np.ndarray:
    """Tokens per bin of a closed loop whose requests take 1 on average, a fifth of it until the first token."""
    times = []
    for _ in range(slots):
        at = -3 - float(rng.random())
        while at < lives:
            took = float(rng.gamma(spread**-2, spread**2)) / (1 + drift * min(max(at / lives, 0), 1))
            times.append(at + took * np.linspace(0.2, 1, 16))
            at += took
    counted: np.ndarray = np.histogram(np.concatenate(times), BINS, (0, lives))[0].astype(float)
    return counted


def poisson_queue(mean: float, lives: int, rng: np.random.Generator) -> np.ndarray:
    """Requests in flight of Poisson arrivals that do not wait for each other, at the middle of each bin."""
    begun = np.sort(rng.random(rng.poisson(mean * (lives + 8))) * (lives + 8) - 8)
    ended = np.sort(begun + rng.exponential(1, len(begun)))
    middles = (np.arange(BINS) + 0.5) * lives / BINS
    flying: np.ndarray = np.searchsorted(begun, middles) - np.searchsorted(ended, middles)
    return flying


@pytest.mark.parametrize("slots", [1, 8, 64])
@pytest.mark.parametrize("spread", [0.03, 0.3, 0.8])
def test_stationary_closed_loops_raise_few_false_alarms(slots: int, spread: float) -> None:
    rng = np.random.default_rng(slots)
    tries = 120 if slots < 64 else 30
    for lives in (12, 40):
        verdicts = [over_lives(closed(slots, lives, spread, rng), lives, "x", 60).steady for _ in range(tries)]
        # 5 % of the tries, and three standard deviations of that count
        assert verdicts.count(False) <= 0.05 * tries + 3 * (0.0475 * tries) ** 0.5


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_a_true_drift_of_a_fifth_is_found(slots: int) -> None:
    rng = np.random.default_rng(slots)
    looks = [over_lives(closed(slots, 40, 0.05, rng, drift=0.2), 40, "throughput", 60) for _ in range(30)]
    assert sum(look.steady is False for look in looks) >= 27
    assert "grows" in looks[0].why


def test_few_requests_one_after_the_other_are_no_verdict() -> None:
    look = over_lives(closed(1, 6, 0.3, np.random.default_rng(1)), 6, "throughput", 3)
    assert look.steady is None
    assert "6.0 typical requests one after the other, 10 needed (5 s)" in look.why


def test_much_noise_says_how_long_a_window_would_do() -> None:
    look = over_lives(closed(1, 40, 0.8, np.random.default_rng(2)), 40, "throughput", 60)
    assert look.steady is None
    assert "a window of about" in look.why


@pytest.mark.parametrize("mean", [2, 8, 64])
def test_queues_of_poisson_arrivals_raise_few_false_alarms(mean: int) -> None:
    rng = np.random.default_rng(mean)
    queues = [poisson_queue(mean, lives, rng) for lives in (12, 40) for _ in range(100)]
    verdicts = [over_lives(queue, 40 if k >= 100 else 12, "x", 60, limit=0.5).steady for k, queue in enumerate(queues)]
    assert verdicts.count(False) <= 10 + 9
    assert sum(surges(queue) for queue in queues) == 0


def test_a_queue_that_is_not_worked_off_surges_however_short_the_window() -> None:
    rng = np.random.default_rng(5)
    growing = rng.poisson(np.linspace(2, 60, BINS))
    assert surges(growing)
    assert not surges(rng.poisson(np.full(BINS, 30.0)))


@pytest.mark.parametrize("slots", [1, 8])
def test_bounds_of_a_rate_hold_the_truth(slots: int) -> None:
    """A nominal 95 % interval has to hold it nearly as often: batches of two requests are not quite independent."""
    rng = np.random.default_rng(slots)
    held = 0
    for _ in range(150):
        tokens = closed(slots, 40, 0.3, rng)
        low, high = mean_interval(joined(tokens, 20))
        held += low <= slots * 16 * 40 / BINS <= high
    assert held >= 132


def test_bounds_of_a_rate_widen_with_what_neighbours_have_in_common() -> None:
    rng = np.random.default_rng(3)
    white = rng.standard_normal(20)
    slow = np.repeat(rng.standard_normal(5), 4)
    narrow, wide = (mean_interval(series / series.std()) for series in (white, slow))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])
    assert mean_interval([5.0, 5.0, 5.0]) == (5, 5)
    with pytest.raises(ValueError, match="at least 2"):
        mean_interval([5.0])


# --------------------------------------------------------------------------------------------------------------------
# whole loads on servers that have no host


def kept_busy(slots: int, gap_at: Callable[[float], float], *, chunks: int, ttft_ms: float) -> list[Stream]:
    """A closed loop from half a second before the window on: `gap_at(s)` ms between chunks, s from the opening."""
    streams: list[Stream] = []
    for slot in range(slots):
        at_ns = OPENED - 500 * MS + slot * 7 * MS
        while at_ns < CLOSED + 100 * MS:
            gap = gap_at((at_ns - OPENED) / 1e9)
            streams.append(
                regular(
                    len(streams), at_ns, wait=MS // 10, ttft=round(ttft_ms * MS), gap=round(gap * MS), chunks=chunks
                )
            )
            at_ns = streams[-1].e
    return streams


def queued(rate: float, service_ms: float, seed: int) -> list[Stream]:
    """Poisson arrivals at a server that answers one request after the other."""
    rng = np.random.default_rng(seed)
    streams: list[Stream] = []
    free = at_ns = OPENED - 200 * MS
    while at_ns < CLOSED + 200 * MS:
        at_ns += round(rng.exponential(1e9 / rate))
        free = max(free, at_ns) + round(service_ms * MS)
        streams.append(regular(len(streams), at_ns, wait=1000, ttft=free - at_ns - 11 * MS, gap=5 * MS, chunks=3))
    return streams


def test_a_steady_server_is_found_steady_and_every_gate_of_the_load_passes(tmp_path: Path) -> None:
    ran = reduced(tmp_path, kept_busy(4, lambda s: 1.0, chunks=20, ttft_ms=5))
    gates = {gate.id: gate for gate in ran.gates}
    for name in ("steady_state", "in_flight", "send_lag", "client_lag", "window_complete", "input_length", "errors",
                 "errors_classified", "clock_order", "load_kept_up", "samples"):  # fmt: skip
        assert gates[name].passed is True, gates[name]


def test_a_drifting_server_has_no_steady_state(tmp_path: Path) -> None:
    gate = reduced(tmp_path, kept_busy(4, lambda s: 1 + 0.1 * s, chunks=40, ttft_ms=5)).gate("steady_state")
    assert gate.passed is False
    assert "falls" in gate.message


OPEN_LOOP = {
    **CLOSED_LOOP, "kind": "open", "law": "poisson", "rate": 45.0, "requests": None, "duration_s": 10.0,
    "profile": [{"seconds": 10.0, "start": 45.0, "end": 45.0}],
}  # fmt: skip


def test_an_overloaded_server_has_no_steady_state(tmp_path: Path) -> None:
    gate = reduced(tmp_path, queued(45, 30, 2), arrivals=OPEN_LOOP).gate("steady_state")
    assert gate.passed is False
    assert "requests in flight grows" in gate.message
    gate = reduced(tmp_path / "enough", queued(45, 15, 2), arrivals=OPEN_LOOP).gate("steady_state")
    assert gate.passed is not False


def test_one_at_a_time_and_a_dozen_requests_is_no_verdict(tmp_path: Path) -> None:
    """What was called a trend was the rhythm of requests."""
    streams = kept_busy(1, lambda s: 4.0, chunks=6, ttft_ms=40)
    gate = reduced(tmp_path, streams, closed=OPENED + 400 * MS).gate("steady_state")
    assert gate.passed is None
    assert "typical requests one after the other, 10 needed" in gate.message


# --------------------------------------------------------------------------------------------------------------------
# real loads


def test_rates_have_bounds_where_the_window_is_long_enough(run: Run) -> None:
    ran = run(at.closed_loop(2, requests=200), workload=synthetic(input_tokens=4, output_tokens=10))
    metrics = {metric.id: metric for metric in ran.reduction.metrics if not metric.stat}
    for name in ("output_throughput", "request_throughput"):
        found = metrics[name]
        assert (found.n, found.confidence) == (20, 0.95)
        assert found.low < found.value < found.high
        assert "20 batch means" in found.note
    short = run(
        at.closed_loop(2, requests=6), workload=synthetic(input_tokens=4, output_tokens=10), model="truth:ttft=100"
    )
    for found in short.reduction.metrics:
        if found.id in ("output_throughput", "request_throughput"):
            assert (found.low, found.high, found.n) == (None, None, 1)
            assert "typical requests, 20 needed" in found.note
    rising = run(at.ramp(20, 60, duration_s=1.2, lead_s=0.1, tail_s=0.2))
    assert "changes over the window" in next(m for m in rising.reduction.metrics if m.id == "request_throughput").note


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
