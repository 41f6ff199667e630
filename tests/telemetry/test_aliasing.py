"""Which executions a sampling period can show: simulated samplers, beside what the rule says of them."""

from __future__ import annotations

import pytest

from neuronbench.telemetry.aliasing import aliased, aliasing_gate


def credited(execution_s: float, busy: float, period_s: float = 1.0, seconds: int = 600) -> float:
    """Mean of a sampler that credits every execution to the period in which it ends, 100 % at most; the device is busy
    for that share of the time."""
    every, samples = execution_s / busy, [0.0] * seconds
    end = execution_s
    while end < seconds:
        index = int(end / period_s)
        samples[index] = min(samples[index] + execution_s / period_s, 1.0)
        end += every
    return sum(samples) / seconds


@pytest.mark.parametrize("execution_s", [0.01, 0.063, 0.2, 0.33])
@pytest.mark.parametrize("busy", [0.5, 0.9])
def test_short_executions_add_up(execution_s: float, busy: float) -> None:
    assert not aliased(1.0, execution_s)
    assert credited(execution_s, busy) == pytest.approx(busy, abs=0.07)


@pytest.mark.parametrize("execution_s", [1.416, 1.948, 2.915, 5.2])
def test_long_executions_show_the_period_over_their_length_whatever_the_device_does(execution_s: float) -> None:
    assert aliased(1.0, execution_s)
    assert credited(execution_s, 1.0) == pytest.approx(1.0 / execution_s, abs=0.01)
    gate = aliasing_gate(1.0, execution_s, busy_pct=70.0)
    assert gate.passed is False
    assert f"it shows {100 / execution_s:.1f} %, here 70.0 %" in gate.message


def test_a_sampler_of_states_sees_long_executions_again() -> None:
    assert aliased(1.0, 5.0)
    assert not aliased(1.0, 5.0, credited_at_end=False)
    assert aliased(1.0, 2.0, credited_at_end=False)
    assert not aliased(1.0, 0.1, credited_at_end=False)


@pytest.mark.parametrize(("period_s", "execution_s"), [(None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0)])
def test_without_a_period_or_an_execution_nothing_is_said(period_s: float | None, execution_s: float | None) -> None:
    assert aliasing_gate(period_s, execution_s).passed is None
