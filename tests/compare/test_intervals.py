"""The arithmetic against scipy's, and against what is simulated."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from neuronbench.compare import intervals

numbers = st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=2, max_size=9)


def varied(values: list[float]) -> bool:
    return float(np.ptp(values)) > 1e-3


@given(base=numbers.filter(varied), head=numbers.filter(varied))
def test_interval_and_p_are_those_of_welch_in_scipy(base: list[float], head: list[float]) -> None:
    spread = intervals.of_repeats(base, head)
    assert spread is not None
    found = intervals.contrast(base, head, spread)
    theirs = stats.ttest_ind(head, base, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    assert found.df == pytest.approx(theirs.df)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


@given(one=st.floats(-5, 5), many=numbers.filter(varied))
def test_a_single_repeat_is_taken_to_vary_like_the_other_side(one: float, many: list[float]) -> None:
    for base, head in (([one], many), (many, [one])):
        spread = intervals.of_repeats(base, head)
        assert spread is not None
        assert spread.source == ("repeats of B" if len(base) == 1 else "repeats of A")
        found = intervals.contrast(base, head, spread)
        assert found.p == pytest.approx(stats.ttest_ind(head, base, equal_var=True).pvalue, rel=1e-6, abs=1e-12)


def test_two_single_repeats_have_no_spread() -> None:
    assert intervals.of_repeats([1.0], [2.0]) is None


def test_repeats_that_agree_to_the_digit() -> None:
    for head, p in (([2.0, 2.0], 1.0), ([3.0, 3.0], 0.0)):
        spread = intervals.of_repeats([2.0, 2.0], head)
        assert spread is not None
        found = intervals.contrast([2.0, 2.0], head, spread)
        assert (found.p, found.low, found.high) == (p, head[0] - 2.0, head[0] - 2.0)


@given(p=st.lists(st.floats(0, 1), max_size=40))
def test_benjamini_hochberg_is_scipys(p: list[float]) -> None:
    theirs = stats.false_discovery_control(p) if p else []
    assert intervals.benjamini_hochberg(p) == pytest.approx(list(theirs))


def simulated(true: float, sd: float, n: int, band: float, turns: int = 2000) -> tuple[float, float]:
    """Shares of simulated comparisons that end as a change and as an equivalence."""
    draw = random.Random(7)
    changed = same = 0
    for _ in range(turns):
        base = [draw.gauss(0, sd) for _ in range(n)]
        head = [draw.gauss(true, sd) for _ in range(n)]
        spread = intervals.of_repeats(base, head)
        assert spread is not None
        found = intervals.contrast(base, head, spread)
        changed += found.p <= intervals.ALPHA and abs(found.difference) > band
        same += -band <= found.low and found.high <= band
    return changed / turns, same / turns


@pytest.mark.parametrize(("n", "true"), [(3, 0.05), (4, 0.05), (5, 0.05), (8, 0.03), (12, 0.02)])
def test_the_stated_power_is_the_simulated_one(n: int, true: float) -> None:
    stated = intervals.chance_of_change(true, 0.02, n, n, 0.01)
    seen, _ = simulated(true, 0.02, n, 0.01)
    assert stated - 0.03 <= seen <= stated + 0.08  # a lower bound, up to the simulation's own noise


def test_the_chance_of_equivalence_is_the_simulated_one() -> None:
    stated = intervals.chance_of_equivalence(0.0, 0.02, 20, 20, 0.02)
    _, seen = simulated(0.0, 0.02, 20, 0.02)
    assert seen == pytest.approx(stated, abs=0.05)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_the_detectable_change_is_found_with_the_stated_chance(n: int) -> None:
    change = intervals.detectable(0.02, n, n, 0.02)
    assert change is not None
    assert intervals.chance_of_change(change, 0.02, n, n, 0.02) == pytest.approx(intervals.POWER, abs=1e-3)
    assert intervals.detectable(0.02, 1, n, 0.02) is None
    assert intervals.detectable(0.0, n, n, 0.02) == 0.02


@given(true=st.floats(-0.2, 0.2), sd=st.floats(1e-4, 0.1), band=st.floats(1e-3, 0.1))
def test_the_repeats_said_to_be_needed_settle_it(true: float, sd: float, band: float) -> None:
    needed = intervals.repeats_needed(true, sd, band)

    def settled(n: int) -> float:
        return intervals.chance_of_change(true, sd, n, n, band) + intervals.chance_of_equivalence(true, sd, n, n, band)

    if needed is None:
        assert settled(intervals.REPEATS_LIMIT) < intervals.POWER
    else:
        assert settled(needed) >= intervals.POWER
        assert needed == 2 or settled(needed - 1) < intervals.POWER


def test_a_change_as_large_as_the_band_is_settled_by_nothing() -> None:
    assert intervals.repeats_needed(0.02, 0.02, 0.02) is None
    assert intervals.repeats_needed(0.10, 0.02, 0.02) == 3
    assert math.isfinite(intervals.chance_of_change(10.0, 1e-9, 2, 2, 0.02))
