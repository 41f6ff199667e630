"""The rule of ratio and error rate, and the paired bootstrap beside scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from neuronbench.accuracy import rule
from neuronbench.accuracy.rule import judge, resampled


def right(n: int, wrong: int, *, at: int = 0) -> np.ndarray:
    """`n` items of which `wrong` are missed, from index `at` on."""
    found = np.ones(n)
    found[at : at + wrong] = 0
    return found


def verdict(n: int, candidate: int, reference: int, *, by_truth: bool = True) -> rule.Verdict:
    return judge(right(n, candidate), right(n, reference), np.ones(n), by_truth=by_truth, resamples=50)


@pytest.mark.parametrize(
    ("n", "candidate", "reference", "passed"),
    [
        (100, 0, 0, True),
        (1000, 110, 100, False),  # exactly 10 % more errors, but the ratio is 0.989
        (1000, 100, 100, True),
        (1000, 90, 100, True),
        (1000, 111, 100, False),
        (1000, 11, 10, True),
        (1000, 12, 10, False),  # the ratio is 0.998, the errors are 20 % more
        (10_000, 1, 0, False),  # where the reference makes none, one is too many
        (10_000, 9_909, 9_900, False),  # 91 of 100: the error rate is 0.1 % above, the ratio 0.91
        (10_000, 9_901, 9_900, True),
    ],
)
def test_ratio_and_error_rate_decide_together(n: int, candidate: int, reference: int, passed: bool) -> None:
    found = verdict(n, candidate, reference)
    assert found.passed is passed
    assert bool(found.reason) is not passed
    assert found.ratio == pytest.approx((n - candidate) / (n - reference))


def test_a_ratio_of_exactly_99_of_100_holds_where_the_reference_is_the_truth() -> None:
    assert verdict(100, 1, 0, by_truth=False).passed is True
    found = verdict(100, 2, 0, by_truth=False)
    assert found.passed is False
    assert "0.9800 of the reference's accuracy" in found.reason
    assert found.error_increase is None


def test_a_reference_without_errors_has_no_relative_increase() -> None:
    found = verdict(1000, 1, 0)
    assert found.ratio == 0.999
    assert found.error_increase is None
    assert found.passed is False
    assert "where there is none in the reference's" in found.reason
    assert verdict(1000, 0, 0).passed is True


def test_a_reference_that_gets_nothing_right_shows_nothing() -> None:
    found = verdict(200, 200, 200)
    assert found.passed is None
    assert "nothing right" in found.reason
    assert found.ratio is None
    assert found.ratio_bounds is None
    assert verdict(200, 0, 200).passed is None  # nor does it matter what the candidate does


def test_no_items_show_nothing() -> None:
    found = judge([], [], [], by_truth=True)
    assert found.passed is None
    assert found.n == 0
    assert not found.enough


@pytest.mark.parametrize(("n", "enough"), [(1, False), (99, False), (100, True)])
def test_of_few_items_one_miss_is_more_than_the_rule_allows(n: int, enough: bool) -> None:
    assert verdict(n, 0, 0).enough is enough


def test_words_count_by_the_utterance_and_may_be_worse_than_none() -> None:
    found = judge([8.0, -3.0], [9.0, 5.0], [10.0, 5.0], by_truth=True, resamples=100)
    assert found.candidate == pytest.approx(5 / 15)
    assert found.reference == pytest.approx(14 / 15)
    assert found.error_increase == pytest.approx((10 / 15 - 1 / 15) / (1 / 15))
    assert found.passed is False


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="is a miss, 0"):
        judge([1.0, float("nan")], [1.0, 1.0], [1.0, 1.0], by_truth=True)
    with pytest.raises(ValueError, match="one number per item"):
        judge([1.0], [1.0, 1.0], [1.0, 1.0], by_truth=True)


def test_the_interval_is_scipys_with_the_same_draws() -> None:
    draw = np.random.default_rng(5)
    reference = (draw.random(150) < 0.9).astype(float)
    candidate = np.where(draw.random(150) < 0.03, 0.0, reference)

    def ratio(one: np.ndarray, other: np.ndarray) -> float:
        return float(one.sum() / other.sum())

    theirs = stats.bootstrap(
        (candidate, reference), ratio, paired=True, vectorized=False, n_resamples=2000, method="percentile",
        confidence_level=0.95, rng=np.random.Generator(np.random.PCG64(11)),
    )  # fmt: skip
    ours = judge(candidate, reference, np.ones(150), by_truth=True, seed=11)
    assert ours.resamples == 2000
    assert ours.ratio_bounds == pytest.approx(theirs.confidence_interval, abs=1e-12)
    assert np.allclose(np.sort(resampled(candidate, reference, seed=11, resamples=2000)),
                       np.sort(theirs.bootstrap_distribution))  # fmt: skip
    low, high = ours.ratio_bounds or (0, 0)
    assert low < (ours.ratio or 0) < high


def test_items_are_drawn_in_pairs() -> None:
    reference = right(400, 200)
    found = judge(reference, reference, np.ones(400), by_truth=True)
    assert found.ratio_bounds == (1.0, 1.0)  # unpaired, this would spread by a tenth


def test_the_seed_decides_the_interval_and_chunks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = right(300, 9), right(300, 6)
    whole = resampled(one, other, seed=1, resamples=400)
    assert np.array_equal(whole, resampled(one, other, seed=1, resamples=400))
    assert not np.array_equal(whole, resampled(one, other, seed=2, resamples=400))
    monkeypatch.setattr(rule, "_CHUNK", 300 * 7)
    assert np.array_equal(whole, resampled(one, other, seed=1, resamples=400))


def test_resamples_without_anything_right_in_the_reference_are_left_out() -> None:
    found = judge([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0], by_truth=True, resamples=200)
    assert found.ratio_bounds == (1.0, 1.0)
    assert len(resampled(np.array([1.0, 0, 0]), np.array([1.0, 0, 0]), seed=0, resamples=200)) < 200
