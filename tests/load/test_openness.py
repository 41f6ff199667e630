"""Whether an open load was open, and tokens were hidden, from totals alone."""

from __future__ import annotations

import pytest

from neuronbench.load.hidden import hidden_tokens_gate
from neuronbench.load.openness import achieved_rate_gate, in_flight_gate


@pytest.mark.parametrize(
    ("requests", "seconds", "rate", "passed"),
    [
        (1000, 100.0, 10.0, True), (1090, 100.0, 10.0, True), (880, 100.0, 10.0, False), (919, 342.0, 8.0, False),
        (66, 119.0, 0.5, True), (1_000_000, 98_500.0, 10.0, False), (0, 100.0, 1.0, None), (10, 0.0, 1.0, None),
        (10, 10.0, 0.0, None),
    ],
)  # fmt: skip
def test_the_rate_is_that_declared_within_what_poisson_arrivals_are_off_by(
    requests: int, seconds: float, rate: float, passed: bool | None
) -> None:
    gate = achieved_rate_gate(requests, seconds, rate)
    assert gate.passed is passed
    if passed is not None:
        assert gate.observed == pytest.approx(requests / seconds)
        assert gate.limit == rate


def test_poisson_arrivals_pass_nearly_always() -> None:
    """Three sigma: of a thousand true schedules a few may fail."""
    import numpy as np

    counts = np.random.default_rng(7).poisson(10.0 * 60.0, size=1000)
    assert sum(achieved_rate_gate(int(count), 60.0, 10.0).passed is False for count in counts) <= 12


@pytest.mark.parametrize(
    ("highest", "cap", "passed"), [(13, 64, True), (64, 64, False), (65, 64, False), (None, 64, None), (3, None, None)]
)
def test_a_cap_that_is_reached_closes_the_loop(highest: int | None, cap: int | None, passed: bool | None) -> None:
    assert in_flight_gate(highest, cap).passed is passed


@pytest.mark.parametrize(
    ("counted", "asked", "e2e_ms", "passed"),
    [
        (1000, 100, 1090.0, True),  # all of them
        (900, 100, 1090.0, False),  # a tenth is missing, and the time is that of all
        (900, 100, 990.0, True),  # a tenth shorter in time as well
        (900, None, 1090.0, False),  # nobody says how many were asked for
        (990, 100, 1090.0, True),  # within what a median is off by
        (0, 100, 1090.0, None),
        (900, 100, None, None),
    ],
)
def test_tokens_are_hidden_when_there_was_time_for_more(
    counted: int, asked: int | None, e2e_ms: float | None, passed: bool | None
) -> None:
    """Ten requests: 100 ms to the first token and 10 ms to each further one."""
    gate = hidden_tokens_gate(counted, 10, asked, e2e_ms=e2e_ms, ttft_ms=100.0, tpot_ms=10.0)
    assert gate.passed is passed
