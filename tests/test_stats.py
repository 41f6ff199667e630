from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from neuronbench import stats

SHARES = st.integers(1, 999).map(lambda k: k / 1000)


@given(st.lists(st.floats(0, 1e6), max_size=60), st.integers(0, 20), SHARES)
def test_percentile_is_the_nearest_rank_of_the_whole_population(values: list[float], infinite: int, p: float) -> None:
    everyone = sorted([*values, *[math.inf] * infinite])
    found = stats.percentile(values, p, infinite)
    if not everyone:
        assert found is None
    else:
        rank = max(math.ceil(Fraction(repr(p)) * len(everyone)), 1)
        assert found == everyone[rank - 1]


def test_rank_takes_the_share_as_it_is_written() -> None:
    assert 100 * 0.07 > 7  # in floats
    assert stats.rank(100, 0.07) == 7
    assert [stats.rank(100, p) for p in (0.01, 0.5, 0.9, 0.99, 0.999)] == [1, 50, 90, 99, 100]


@pytest.mark.parametrize(("p", "n"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000)])
def test_needed_is_where_the_rank_is_no_longer_the_largest(p: float, n: int) -> None:
    assert stats.needed(p) == n
    assert stats.rank(n, p) == n - 1
    assert stats.rank(n - 1, p) == n - 1


@given(st.integers(0, 400), SHARES, st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_bounds_against_scipys_binomial(n: int, p: float, confidence: float) -> None:
    low, high = stats.bounds(n, p, confidence)
    tail = (1 - confidence) / 2
    slack = 1e-9
    binomial = scipy_stats.binom(n, p)
    if low is None:
        assert n == 0 or binomial.cdf(0) > tail - slack
    else:
        assert binomial.cdf(low - 1) <= tail + slack
        assert low == n or binomial.cdf(low) > tail - slack
    if high is None:
        assert n == 0 or binomial.sf(n - 1) > tail - slack
    else:
        assert binomial.sf(high - 1) <= tail + slack
        assert high == 1 or binomial.sf(high - 2) > tail - slack


@given(st.integers(1, 12), st.sampled_from([0.25, 0.5, 0.9]))
def test_bounds_by_counting_every_outcome(n: int, p: float) -> None:
    """P(at most k of n below) by summing over all 2^n outcomes."""
    weight = [0.0] * (n + 1)
    for outcome in range(1 << n):
        below = outcome.bit_count()
        weight[below] += p**below * (1 - p) ** (n - below)
    low, high = stats.bounds(n, p)
    lows = [k for k in range(1, n + 1) if sum(weight[:k]) <= 0.025 + 1e-12]
    highs = [k for k in range(1, n + 1) if sum(weight[k:]) <= 0.025 + 1e-12]
    assert low == (max(lows) if lows else None)
    assert high == (min(highs) if highs else None)


@pytest.mark.parametrize(("p", "n"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_fewest_observations_for_an_upper_bound(p: float, n: int) -> None:
    assert stats.bounded_from(p) == n
    assert stats.bounds(n, p).high == n
    assert stats.bounds(n - 1, p).high is None


def test_the_bounds_cover_the_true_quantile_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    true = -math.log(0.1)  # p90 of the unit exponential
    low, high = stats.bounds(200, 0.9)
    assert low is not None
    assert high is not None
    samples = np.sort(rng.exponential(size=(4000, 200)), axis=1)
    covered = np.mean((samples[:, low - 1] <= true) & (true <= samples[:, high - 1]))
    assert 0.95 - 0.012 <= covered <= 0.985


def test_a_percentile_without_enough_observations_says_how_many_it_needs() -> None:
    found = stats.quantile(np.arange(99.0), 0.99)
    assert found.value is None
    assert found.note == "p99 needs 100 observations, found 99"
    assert stats.quantile(np.arange(100.0), 0.99).value == 98.0


def test_a_p99_below_368_observations_has_no_upper_bound_and_says_so() -> None:
    found = stats.quantile(np.arange(200.0), 0.99)
    assert found.value == 197.0
    assert found.low is not None
    assert found.high is None
    assert "368" in found.note


def test_failures_push_the_rank_upwards_until_it_is_unbounded() -> None:
    values = np.arange(1.0, 91.0)
    assert stats.quantile(values, 0.9, 10).value == 90.0
    found = stats.quantile(values[:-1], 0.9, 11)
    assert found.value is None
    assert found.note.startswith("unbounded: rank 90 of 100 falls on one of 11 failures")


@pytest.mark.parametrize("p", [0.0, 1.0, -1.0, 99.0])
def test_a_share_outside_zero_to_one_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="share between 0 and 1"):
        stats.rank(10, p)


# Published sizes at which MLPerf's rule can state a percentile with one observation beyond it.
@pytest.mark.parametrize(("p", "n"), [(0.9, 64), (0.95, 130), (0.97, 219), (0.99, 662), (0.999, 6636)])
def test_early_stopping_sizes(p: float, n: int) -> None:
    assert stats.under_needed(1, p) + 1 == n


@given(st.integers(0, 30), st.sampled_from([0.5, 0.9, 0.99]), st.sampled_from([0.9, 0.99]))
def test_under_needed_against_the_binomial_tail(over: int, p: float, confidence: float) -> None:
    h = stats.under_needed(over, p, confidence)
    # so few beyond the limit, were the share within it p
    assert scipy_stats.binom.cdf(over, h + over, 1 - p) <= 1 - confidence + 1e-9
    assert h == 1 or scipy_stats.binom.cdf(over, h - 1 + over, 1 - p) > 1 - confidence - 1e-9


def test_the_estimate_is_a_confident_upper_bound() -> None:
    rng = np.random.default_rng(3)
    true = -math.log(0.1)
    below = 0
    for _ in range(600):
        found = stats.early_stopping_estimate(np.sort(rng.exponential(size=300)), 0.9)
        assert found.value is not None
        below += found.value < true
    assert below <= 600 * 0.01 + 8


def test_the_estimate_needs_enough_and_counts_failures() -> None:
    assert "p99 needs 662 observations" in stats.early_stopping_estimate(np.arange(661.0), 0.99).note
    assert stats.early_stopping_estimate(np.arange(662.0), 0.99).value == 660.0
    found = stats.early_stopping_estimate(np.arange(600.0), 0.99, 62)
    assert found.value is None
    assert "failures" in found.note


def test_a_limit_is_met_missed_or_undecided() -> None:
    assert stats.slo_test(661, 1, 0.99) == ("met", 0)
    assert stats.slo_test(600, 1, 0.99) == ("undecided", 61)
    assert stats.slo_test(600, 60, 0.99).verdict == "missed"
    assert stats.slo_test(0, 0, 0.99).verdict == "undecided"


def test_a_limit_test_is_rarely_wrong_either_way() -> None:
    rng = np.random.default_rng(5)
    for share, wrong in ((0.985, "met"), (0.995, "missed")):
        verdicts = [stats.slo_test(int(k), 2000 - int(k), 0.99).verdict for k in rng.binomial(2000, share, 2000)]
        assert verdicts.count(wrong) <= 2000 * 0.01
