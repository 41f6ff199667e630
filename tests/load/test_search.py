"""The search for the highest rate within limits, against servers whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench import stats
from neuronbench.load.search import Counts, highest_rate, requests_needed


class Simulated:
    """Meets the limit for a share of requests that falls with the rate, and crosses p99 at `knee`."""

    def __init__(self, knee: float, seed: int = 0) -> None:
        self.knee, self.rng = knee, np.random.default_rng(seed)
        self.asked: list[tuple[float, int]] = []

    def share(self, rate: float) -> float:
        return 1 - 0.01 * (rate / self.knee) ** 6 if rate < 2 * self.knee else 0.3

    def __call__(self, rate: float, requests: int) -> Counts:
        self.asked.append((rate, requests))
        within = int(self.rng.binomial(requests, self.share(rate)))
        return Counts(within={"ttft": within}, beyond={"ttft": requests - within})


@given(st.floats(0.6, 90), st.floats(0.6, 90), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_the_answer_brackets_the_knee_from_below(knee: float, start: float, seed: int) -> None:
    probe = Simulated(knee, seed)
    found = highest_rate(probe, start=start, lowest=0.5, highest=100, tolerance=0.05, most_requests=20_000)
    assert found.rate is not None
    # rates just below the knee cannot be told from it: the answer is on the low side, never much above
    assert 0.6 * knee <= found.rate <= 1.06 * knee
    if found.missed_at is not None:
        assert found.missed_at / found.rate <= 1.05 + 1e-9


def test_every_step_has_enough_requests() -> None:
    probe = Simulated(10)
    found = highest_rate(probe, start=5, lowest=1, highest=100)
    assert requests_needed(0.99) >= 662
    assert all(step.requests >= 662 for step in found.steps)
    for step in found.steps:
        verdict = stats.slo_test(step.counts.within["ttft"], step.counts.beyond["ttft"], 0.99).verdict
        assert step.verdict == verdict


def test_all_limits_have_to_be_met() -> None:
    def probe(rate: float, requests: int) -> Counts:
        slow = requests if rate > 8 else 0
        return Counts(within={"ttft": requests, "tpot": requests - slow}, beyond={"ttft": 0, "tpot": slow})

    found = highest_rate(probe, start=4, lowest=1, highest=100, tolerance=0.02)
    assert found.rate == pytest.approx(8, rel=0.03)


def test_a_rate_at_which_the_queue_grows_is_not_met_although_its_requests_keep_the_limit() -> None:
    def probe(rate: float, requests: int) -> Counts:
        return Counts(within={"ttft": requests}, beyond={"ttft": 0}, growing=rate > 12)

    found = highest_rate(probe, start=4, lowest=1, highest=100, tolerance=0.05)
    assert found.rate == pytest.approx(12, rel=0.06)
    assert {step.verdict for step in found.steps if step.rate > 12} == {"growing"}


def test_one_growing_window_may_be_chance() -> None:
    windows = iter([True, False])
    found = highest_rate(
        lambda rate, n: Counts(within={"ttft": n}, beyond={"ttft": 0}, growing=next(windows)),
        start=4, lowest=4, highest=4,
    )  # fmt: skip
    assert (found.rate, found.steps[0].verdict) == (4, "met")


def test_a_server_that_never_meets_the_limit() -> None:
    found = highest_rate(lambda rate, n: Counts(within={"ttft": 0}, beyond={"ttft": n}), start=4, lowest=1, highest=8)
    assert found.rate is None
    assert found.missed_at == 1
    assert "not shown to be met at 1 req/s" in found.message


def test_a_server_that_always_meets_it_ends_at_the_upper_end() -> None:
    found = highest_rate(lambda rate, n: Counts(within={"ttft": n}, beyond={"ttft": 0}), start=4, lowest=1, highest=50)
    assert (found.rate, found.missed_at) == (50, None)


def test_what_cannot_be_settled_does_not_count_as_met() -> None:
    """A share exactly at the percentile is never settled: the search must end, on the low side."""
    found = highest_rate(
        lambda rate, n: Counts(within={"ttft": n - math.floor(n / 100)}, beyond={"ttft": math.floor(n / 100)}),
        start=4,
        lowest=2,
        highest=8,
        most_requests=5000,
    )
    assert found.rate is None
    assert {step.verdict for step in found.steps} == {"undecided"}
    assert all(step.requests <= 5000 for step in found.steps)


@pytest.mark.parametrize("bad", [{"start": 0.5}, {"start": 200}, {"lowest": 0}, {"tolerance": 0}])
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        highest_rate(Simulated(10), **{"start": 5, "lowest": 1, "highest": 100} | bad)  # type: ignore[arg-type]
