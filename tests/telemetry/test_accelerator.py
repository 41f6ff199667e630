"""Utilisation, latency, memory and errors of an accelerator, from the series of its monitor."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from neuronbench.model import Gate, Metric
from neuronbench.telemetry.accelerator import accelerator
from neuronbench.telemetry.table import SamplerErrors, Telemetry

S = 10**9


def sampled(rows: Iterable[dict[str, float | None]], period_s: float = 1.0) -> Telemetry:
    """A row a period, the first at the end of the first."""
    telemetry = Telemetry()
    for number, row in enumerate(rows, 1):
        at = round(number * period_s * S)
        telemetry.add(at, at, "accelerator", {"period_s": period_s, "covered_s": period_s, **row})
    return telemetry


def judged(
    telemetry: Telemetry, seconds: float, *, execution_s: float | None = None
) -> tuple[dict[str, Metric], dict[str, Gate]]:
    metrics, gates = accelerator(telemetry, 0, round(seconds * S), execution_s=execution_s)
    return {one.key: one for one in metrics}, {one.id: one for one in gates}


def test_a_backend_without_a_monitor_has_nothing() -> None:
    telemetry = Telemetry()
    telemetry.add(1, 1, "host", {"cpu_percent": 5.0})
    assert accelerator(telemetry, 0, S) == ([], [])


def test_many_short_executions_in_a_period_average_out() -> None:
    rows = [{"utilization_percent": value, "execution_s": 0.01} for value in (80.0, 90.0, 100.0, 70.0)]
    metrics, gates = judged(sampled(rows), 4)
    assert metrics["accelerator_utilization_mean_pct"].value == 85.0
    assert metrics["accelerator_utilization_min_pct"].value == 70.0
    assert metrics["accelerator_utilization_mean_pct"].n == 4
    assert gates["aliased"].passed is True
    assert gates["accelerator_monitored"].passed is True


def test_executions_of_about_a_period_are_no_utilisation() -> None:
    # one core that never rests, executions of 1.4 s, each credited to the second in which it ends
    rows = [{"utilization_percent": 100.0 if n % 7 in (1, 2, 4, 5, 6) else 0.0, "execution_s": 1.4} for n in range(14)]
    metrics, gates = judged(sampled(rows), 14)
    mean = metrics["accelerator_utilization_mean_pct"]
    assert mean.value is None
    assert "aliased" in mean.note
    gate = gates["aliased"]
    assert gate.passed is False
    assert gate.observed == 1.4
    assert gate.limit == pytest.approx(1 / 3)
    assert gate.severity == "info"  # of the record's other numbers it says nothing


def test_samples_before_the_period_was_long_enough_are_left_out() -> None:
    telemetry = Telemetry()
    for at, period_s, value in ((1, 1.0, 100.0), (2, 1.0, 0.0), (12, 10.0, 90.0), (22, 10.0, 92.0)):
        row = {"period_s": period_s, "covered_s": period_s, "utilization_percent": value, "execution_s": 1.0}
        telemetry.add(at * S, at * S, "accelerator", row)
    metrics, gates = judged(telemetry, 22)
    mean = metrics["accelerator_utilization_mean_pct"]
    assert (mean.value, mean.n) == (91.0, 2)
    assert "2 of 4 samples left out" in mean.note
    assert gates["aliased"].passed is True


def test_an_idle_period_is_judged_by_the_executions_around_it() -> None:
    rows: list[dict[str, float | None]] = [
        {"utilization_percent": 50.0, "execution_s": 0.01},
        {"utilization_percent": 0.0, "execution_s": None},
    ]
    metrics, _ = judged(sampled(rows), 2)
    assert metrics["accelerator_utilization_mean_pct"].value == 25.0


def test_unknown_executions_make_no_number_but_another_source_of_them_does() -> None:
    rows = [{"utilization_percent": 60.0} for _ in range(3)]
    metrics, gates = judged(sampled(rows), 3)
    assert metrics["accelerator_utilization_mean_pct"].value is None
    assert gates["aliased"].passed is None
    metrics, gates = judged(sampled(rows), 3, execution_s=0.02)
    assert metrics["accelerator_utilization_mean_pct"].value == pytest.approx(60.0)
    assert gates["aliased"].passed is True


def test_nothing_in_use_is_null_and_not_zero() -> None:
    metrics, gates = judged(sampled([{"runtimes": 0.0}] * 3), 3)
    assert all(one.value is None for one in metrics.values())
    assert "none of the cores in use" in metrics["accelerator_utilization_mean_pct"].note
    assert gates["device_errors"].passed is None


def test_counters_and_latencies_of_the_window() -> None:
    rows: list[dict[str, float | None]] = [
        {
            "outcome/completed": 10.0 * n,
            "outcome/timed_out": 0.0,
            "device_latency_p50_s": 0.001 * n,
            "device_bytes": 5.0 + n,
        }
        for n in range(1, 6)
    ]
    metrics, gates = judged(sampled(rows), 5)
    assert metrics["executions_executions"].value == 50.0  # the counter began before its first sample, at 0
    assert metrics["execution_latency_p50_ms"].value == 3.0
    assert metrics["execution_latency_p99_ms"].value is None
    assert metrics["device_memory_max_bytes"].value == 10.0
    assert gates["device_errors"].passed is True
    assert metrics["execution_errors_errors"].value == 0.0


@pytest.mark.parametrize("name", ["error/numerical", "outcome/timed_out", "ecc/0/mem_ecc_uncorrected"])
def test_a_failure_inside_the_window_makes_it_invalid(name: str) -> None:
    rows: list[dict[str, float | None]] = [{name: 0.0}, {name: 0.0}, {name: 2.0}]
    _, gates = judged(sampled(rows), 3)
    gate = gates["device_errors"]
    assert (gate.passed, gate.observed, gate.severity) == (False, 2.0, "invalid")
    assert f"{name} 2" in gate.message


def test_errors_of_before_the_window_are_not_its_own() -> None:
    rows: list[dict[str, float | None]] = [{"error/generic": 7.0}] * 4
    metrics, gates = accelerator(sampled(rows), 2 * S, 4 * S)
    assert {one.id: one for one in gates}["device_errors"].passed is True
    assert {one.key: one for one in metrics}["execution_errors_errors"].value == 0.0


def test_corrected_memory_errors_are_no_failure() -> None:
    rows: list[dict[str, float | None]] = [
        {"ecc/0/mem_ecc_corrected": float(n), "ecc/0/mem_ecc_uncorrected": 1.0, "error/generic": 0.0} for n in range(3)
    ]
    assert judged(sampled(rows), 3)[1]["device_errors"].passed is True


def test_memory_without_errors_does_not_vouch_for_executions_that_nobody_saw() -> None:
    rows: list[dict[str, float | None]] = [{"ecc/0/mem_ecc_uncorrected": 1.0}] * 3
    metrics, gates = judged(sampled(rows), 3)
    assert metrics["execution_errors_errors"].value is None
    assert gates["device_errors"].passed is None
    assert gates["device_errors"].message == "the runtime reported no counts of errors"


def test_a_monitor_that_died_is_told() -> None:
    telemetry = sampled([{"utilization_percent": 50.0, "execution_s": 0.01}] * 2)
    telemetry.errors["accelerator"] = SamplerErrors(count=3, last="neuron-monitor ended with status 1")
    gate = judged(telemetry, 10)[1]["accelerator_monitored"]
    assert (gate.passed, gate.observed, gate.severity) == (False, 0.222, "provisional")
    assert gate.message == "neuron-monitor ended with status 1 (3 times)"


def test_a_monitor_that_never_said_anything_is_told() -> None:
    telemetry = Telemetry()
    telemetry.errors["accelerator"] = SamplerErrors(count=9, last="cannot be run")
    metrics, gates = judged(telemetry, 10)
    assert gates["accelerator_monitored"].passed is False
    assert all(one.value is None for one in metrics.values())


def test_power_is_for_windows_of_minutes() -> None:
    telemetry = sampled([{"utilization_percent": 1.0, "execution_s": 0.01}] * 2)
    for minute in range(5):
        telemetry.add(60 * minute * S, 60 * minute * S, "accelerator_power", {"0/power_percent": 40.0})
    short, _ = judged(telemetry, 60)
    assert short["device_power_mean_pct"].value is None
    assert "needs a window of 3 minutes" in short["device_power_mean_pct"].note
    long, _ = judged(telemetry, 240)
    assert long["device_power_mean_pct"].value == 40.0
