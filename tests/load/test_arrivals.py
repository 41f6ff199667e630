"""Arrivals are what they say: instants, rates, laws, and tests that would notice if they were not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench.load import arrivals, schedule
from neuronbench.load.arrivals import OpenLoop

LAWS: dict[str, OpenLoop] = {
    "constant": arrivals.constant(50, duration_s=60),
    "poisson": arrivals.poisson(50, duration_s=60),
    "bursty gamma": arrivals.gamma(50, shape=0.5, duration_s=60),
    "smooth gamma": arrivals.gamma(50, shape=4, duration_s=60),
    "burst": arrivals.burst(50, size=10, duration_s=60),
    "ramp": arrivals.ramp(0, 100, duration_s=60),
    "ramp down": arrivals.ramp(100, 0, duration_s=60),
    "steps": arrivals.steps([10, 40, 100], seconds=20),
    "constant ramp": arrivals.ramp(10, 90, duration_s=60, law="constant"),
}


def realised(law: OpenLoop, at: Any) -> dict[str, Any]:
    return schedule.realised(at, law, law.lead_s, law.duration_s)


@pytest.mark.parametrize("name", LAWS)
def test_every_law_has_its_rate_and_passes_its_own_test(name: str) -> None:
    law = LAWS[name]
    found = [realised(law, schedule.instants(law, seed)) for seed in range(40)]
    assert sum(result["passed"] is False for result in found) <= 1  # the test's own error is 1 in 1,000
    mean = np.mean([result["rate"] for result in found])
    assert mean == pytest.approx(law.rate, rel=0.03)
    if law.law in ("constant", "burst"):
        assert {result["count"] for result in found} <= {round(law.rate * 60) + k for k in (-10, -1, 0, 1, 10)}


@pytest.mark.parametrize("name", LAWS)
def test_instants_are_sorted_absolute_and_the_same_for_the_same_seed(name: str) -> None:
    law = LAWS[name]
    at = schedule.instants(law, 5)
    assert bool((np.diff(at) >= 0).all())
    assert at[0] >= 0
    assert at[-1] <= law.lead_s + law.duration_s + law.tail_s
    assert np.array_equal(at, schedule.instants(law, 5))
    if law.law in ("poisson", "gamma"):
        assert not np.array_equal(at, schedule.instants(law, 6))


def test_poisson_gaps_are_exponential() -> None:
    from scipy import stats

    gaps = np.diff(schedule.instants(arrivals.poisson(100, duration_s=200), 3))
    assert stats.kstest(gaps, "expon", args=(0, 1 / 100)).pvalue > 0.001


def test_a_ramp_has_the_rate_of_its_moment() -> None:
    law = arrivals.ramp(0, 200, duration_s=100, lead_s=0, tail_s=0)
    at = schedule.instants(law, 1)
    quarters = np.histogram(at, bins=4, range=(0, 100))[0] / 25
    assert quarters == pytest.approx([25, 75, 125, 175], rel=0.1)


def test_shared_draws_of_several_workers_would_be_noticed() -> None:
    """Ten generators of one seed advancing together: right mean rate, wrong process."""
    law = arrivals.poisson(50, duration_s=60)
    rng = np.random.default_rng(1)
    shared = np.repeat(np.cumsum(rng.exponential(10 / 50, 400)), 10) + rng.uniform(0, 1e-3, 4000)
    found = realised(law, np.sort(shared))
    assert found["rate"] == pytest.approx(50, rel=0.15)
    assert found["passed"] is False
    assert found["dispersion"] > found["dispersion_interval"][1]


def test_gap_after_gap_with_a_slow_client_would_be_noticed() -> None:
    law = arrivals.constant(50, duration_s=60)
    late = np.cumsum(np.full(4000, 0.02) + np.random.default_rng(2).exponential(0.001, 4000))
    assert realised(law, late)["passed"] is False


def test_constant_is_not_exponential() -> None:
    law = arrivals.constant(50, duration_s=60)
    assert realised(law, schedule.instants(arrivals.poisson(50, duration_s=60), 1))["passed"] is False


@given(
    st.lists(st.tuples(st.floats(0.5, 20), st.floats(0.1, 50), st.floats(0.1, 50)), min_size=1, max_size=4),
    st.sampled_from(["constant", "poisson"]),
    st.integers(0, 3),
)
@settings(max_examples=40)
def test_any_profile_gives_about_its_area(segments: list[tuple[float, float, float]], law: Any, seed: int) -> None:
    profile = tuple(arrivals.Segment(seconds=s, start=a, end=b) for s, a, b in segments)
    loop = OpenLoop(law=law, profile=profile, lead_s=0, tail_s=0)
    at = schedule.instants(loop, seed)
    area = loop.rate * loop.duration_s
    tolerance = 1.0 if law == "constant" else 6 * math.sqrt(area) + 1
    assert abs(len(at) - area) <= tolerance
    assert len(at) == 0 or at[-1] <= loop.duration_s + 1e-9


def test_too_few_arrivals_prove_nothing() -> None:
    law = arrivals.poisson(1, duration_s=10)
    assert realised(law, schedule.instants(law, 1))["passed"] is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: arrivals.poisson(0, duration_s=1), "rate"),
        (lambda: arrivals.poisson(5, duration_s=0), "duration_s"),
        (lambda: arrivals.poisson(5, duration_s=1, lead_s=-1), "lead_s"),
        (lambda: arrivals.gamma(5, shape=0, duration_s=1), "shape"),
        (lambda: arrivals.burst(5, size=0, duration_s=1), "size"),
        (lambda: arrivals.steps([], seconds=1), "at least one"),
        (lambda: arrivals.ramp(-1, 5, duration_s=1), "rate: expected"),
        (lambda: arrivals.sessions(1, turns=0, think_s=1, duration_s=1), "turns"),
        (lambda: arrivals.closed_loop(0), "concurrency"),
        (lambda: arrivals.closed_loop(1, requests=1, duration_s=1), "not both"),
        (lambda: arrivals.trace("x", format="azure", speed=0), "speed"),
    ],
)
def test_nonsense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_of_millions_is_refused_before_it_is_made() -> None:
    with pytest.raises(ValueError, match="lower rate or less time"):
        schedule.instants(arrivals.poisson(1e6, duration_s=1e4), 0)
