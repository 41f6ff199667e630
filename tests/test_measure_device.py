"""What loops mean: percentiles and rates against a plain calculation, and every gate by a model that deserves it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench import measure_device, measure_gates, processes
from neuronbench.model import Gate
from neuronbench.protocols import Floor
from neuronbench.testing import toy_model
from neuronbench.worker.compiled import WorkerModel
from neuronbench.worker.runs import Loop, Run


def loop(
    durations_ms: list[float], *, worker: int = 0, late_ms: float = 0.0, begun_ms: float = 0.0, **more: Any
) -> Loop:
    """A loop of these calls without pauses, whose last output came `late_ms` after the timers had stopped."""
    durations = np.array([round(each * 1e6) for each in durations_ms])
    begun = round(begun_ms * 1e6)
    ends = begun + np.cumsum(durations)
    return Loop(
        worker=worker, begun_ns=begun, stopped_ns=int(ends[-1]), ended_ns=int(ends[-1]) + round(late_ms * 1e6) + 500,
        transfer_ns=500, bookkeeping_ns=0, durations_ns=durations, ends_ns=ends, **more,
    )  # fmt: skip


def run(*loops: Loop, window_ms: tuple[float, float] | None = None, batch: int = 4) -> Run:
    window = None if window_ms is None else (round(window_ms[0] * 1e6), round(window_ms[1] * 1e6))
    return Run(loops=loops, batch_size=batch, batch_digest="d", window_ns=window)


def values(metrics: list[Any]) -> dict[str, Any]:
    return {metric.key: metric.value for metric in metrics}


def test_percentiles_are_nearest_ranks_of_all_calls_with_bounds() -> None:
    durations = [1 + (index * 37 % 400) / 100 for index in range(400)]
    found = {metric.key: metric for metric in measure_device.latency_metrics(run(loop(durations)))}
    ordered = sorted(durations)
    assert found["latency_p50_ms"].value == pytest.approx(ordered[199])
    assert found["latency_p90_ms"].value == pytest.approx(ordered[359])
    assert found["latency_p99_ms"].value == pytest.approx(ordered[395])
    assert found["latency_mean_ms"].value == pytest.approx(statistics.mean(durations))
    p99 = found["latency_p99_ms"]
    assert p99.n == 400
    assert p99.low < p99.value < p99.high
    assert p99.definition == "latency@1"


def test_a_percentile_without_enough_calls_is_missing_and_says_what_it_takes() -> None:
    found = {metric.key: metric for metric in measure_device.latency_metrics(run(loop([1.0] * 50)))}
    assert found["latency_p99_ms"].value is None
    assert "needs 100" in found["latency_p99_ms"].note
    assert found["latency_p90_ms"].value == 1.0


def test_the_rate_counts_calls_that_ended_inside_the_window_over_all_workers() -> None:
    one, other = loop([10.0] * 12, worker=0), loop([20.0] * 6, worker=1)
    found = values(measure_device._windowed(run(one, other, window_ms=(15, 95)), None))  # type: ignore[arg-type]
    # ends of the first in (15, 95]: 20..90 → 8; of the second: 20, 40, 60, 80 → 4
    assert found["throughput_items_s"] == pytest.approx(4 * 12 / 0.08)
    assert found["throughput_wall_items_s"] == pytest.approx(4 * 100 + 4 * 50)
    assert found["latency_p50_ms"] == 10.0


def test_an_empty_window_has_no_rate_and_says_why() -> None:
    metrics = measure_device._windowed(run(loop([100.0]), window_ms=(10, 90)), None)  # type: ignore[arg-type]
    rate = next(metric for metric in metrics if metric.id == "throughput")
    assert rate.value is None
    assert "longer" in rate.note


@pytest.mark.parametrize(("late_ms", "passed"), [(0.0, True), (4.9, True), (5.6, False), (500.0, False)])
def test_five_percent_of_the_wall_may_escape_the_timers(late_ms: float, passed: bool) -> None:
    gate = measure_gates.escape_gate(run(loop([1.0] * 100, late_ms=late_ms)))
    assert (gate.id, gate.passed, gate.limit) == ("timer_escapes_device", passed, 0.05)
    assert gate.observed == pytest.approx(late_ms / (100 + late_ms), abs=1e-5)
    assert bool(gate.message) is not passed


def test_one_worker_that_escapes_is_enough() -> None:
    assert measure_gates.escape_gate(run(loop([1.0] * 9), loop([1.0] * 9, worker=1, late_ms=9))).passed is False


def test_short_loops_tell_of_a_queue_that_a_long_loop_hides() -> None:
    gate = measure_gates.escape_gate(run(loop([1.0] * 1000, late_ms=4, probe_escape=0.5)))
    assert gate.passed is False
    assert gate.limit == measure_gates.PROBE_LIMIT
    assert measure_gates.escape_gate(run(loop([1.0] * 1000, late_ms=4, probe_escape=0.1))).passed is True


def test_the_floor_is_the_launch_or_the_operations_at_the_peak() -> None:
    assert Floor(launch_us=20).seconds == 20e-6
    assert Floor(launch_us=20, flops_per_call=1e9, peak_flops=1e12).seconds == 1e-3
    assert Floor(flops_per_call=1e9).seconds == 0  # no peak, no bound
    floor = Floor(flops_per_call=1e9, peak_flops=1e12, source="a data sheet of 2026")
    gate = measure_gates.floor_gate(0.99, floor)
    assert (gate.id, gate.passed, gate.limit) == ("implausible", False, 1.0)
    assert "a data sheet of 2026" in gate.message
    assert measure_gates.floor_gate(1.0, floor).passed is True
    assert measure_gates.floor_gate(1.0, Floor()).passed is None


def test_a_worker_that_began_after_the_window_opened_is_marked() -> None:
    late = run(loop([1.0] * 9), loop([1.0] * 9, worker=1, begun_ms=3), window_ms=(2, 8))
    assert measure_gates.cover_gate(late).passed is False
    assert measure_gates.cover_gate(run(loop([1.0] * 9), window_ms=(2, 12))).passed is False
    assert measure_gates.cover_gate(run(loop([1.0] * 9), window_ms=(2, 8))).passed is True


def test_copies_that_did_not_have_their_cores_are_marked() -> None:
    two = dataclasses.replace(run(loop([1.0] * 9), loop([1.0] * 9, worker=1)), cores={0: [0], 1: [1]})
    gate = measure_gates.contention_gate(150.0, two)
    assert gate is not None
    assert (gate.passed, gate.severity, gate.observed) == (False, "provisional", 0.75)
    assert "75%" in gate.message
    for busy_pct, passed in ((199.0, True), (None, None)):
        gate = measure_gates.contention_gate(busy_pct, two)
        assert gate is not None
        assert gate.passed is passed
    assert measure_gates.contention_gate(10.0, dataclasses.replace(two, cores={0: [0, 1]})) is None
    assert measure_gates.contention_gate(10.0, dataclasses.replace(two, cores={0: None})) is None


# -- models that deserve it, in real workers --------------------------------------------------------------------------


OWN_TIME = Path(__file__).parent / "worker" / "own_time"
"""Handlers on a clock of their own: what a busy host takes from a worker is in no number."""


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Callable[..., WorkerModel]]:
    models: list[WorkerModel] = []

    def loaded(behaviour: str, **settings: Any) -> WorkerModel:
        spec = toy_model.toy_spec(behaviour=behaviour, **settings)
        start = toy_model.launch(behaviour, spec.settings["work_us"], handlers=OWN_TIME)
        models.append(toy_model.load(spec, tmp_path, partial(processes.spawn, pid_dir=tmp_path / "pids"), start))
        return models[-1]

    yield loaded
    for model in models:
        model.stop()


def gates_of(model: WorkerModel, how: str) -> dict[str, Gate]:
    first = model.outputs()
    result = model.latency(calls=100) if how == "latency" else model.throughput(seconds=0.3, workers=1)
    gates = [
        *measure_gates.run_gates(result, model),
        measure_gates.finite_gate([first, model.last_outputs()]),
        measure_gates.mask_gate(model),
    ]
    return {gate.id: gate for gate in gates}


@pytest.mark.parametrize("how", ["latency", "throughput"])
@pytest.mark.parametrize(
    ("behaviour", "gate"),
    [
        ("asynchronous", "timer_escapes_device"),
        ("nan", "non_finite_output"),
        ("turns_nan", "non_finite_output"),
        ("too_fast", "implausible"),
        ("ignores_mask", "mask_ignored"),
    ],
)
def test_each_trap_fails_its_gate(toy, behaviour: str, gate: str, how: str) -> None:
    found = gates_of(toy(behaviour, work_us=2000), how)
    assert found[gate].passed is False
    assert found[gate].severity == "invalid"
    assert found[gate].message


def test_a_queue_of_a_few_calls_is_found_by_short_loops(toy) -> None:
    model = toy("queued", work_us=20_000)
    long = model.latency(calls=120)
    assert long.escape < 0.05  # the whole loop looks right
    gate = measure_gates.escape_gate(long)
    assert gate.passed is False
    assert "a few calls" in gate.message


@pytest.mark.parametrize("behaviour", ["plain", "barrier"])
def test_an_honest_model_passes_every_gate(toy, behaviour: str) -> None:
    found = gates_of(toy(behaviour, work_us=5000), "latency")
    assert {id: gate.passed for id, gate in found.items()} == {
        "timer_escapes_device": True,
        "implausible": True,
        "non_finite_output": True,
        "mask_ignored": True,
    }
