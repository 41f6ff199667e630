"""What the answer of a search stands on: the loads of its bracket, the host while they ran, how many requests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from neuronbench.load.search import Counts, SearchResult, Step
from neuronbench.measure_search import LEAST_SECONDS, Found, Load, Search
from neuronbench.measure_search_gates import host_gates, samplers
from neuronbench.model import Gate
from neuronbench.telemetry.summary import telemetry_gate
from neuronbench.telemetry.table import Telemetry

S = 1_000_000_000


def load(rate: float, at_s: int, **changes: Any) -> Load:
    """800 requests at `rate`, in a window of 80 s that opens at `at_s`."""
    given: dict[str, Any] = {
        "rate": rate, "requests": 800, "seconds": 80.0, "achieved": rate, "goodput": rate, "within": {"ttft": 800},
        "beyond": {"ttft": 0}, "failures": 0, "lives": 80.0,
        "window": {"start_ns": at_s * S, "end_ns": (at_s + 80) * S, "client_cpu_pct": 5.0},
    }  # fmt: skip
    return Load(**{**given, **changes})


def step(rate: float, verdict: str, within: int = 800, beyond: int = 0) -> Step:
    counts = Counts(within={"ttft": within}, beyond={"ttft": beyond})
    return Step(rate=rate, requests=within + beyond, verdict=verdict, counts=counts)


def found(*loads: Load, steps: list[Step] | None = None, rate: float | None = 10.0, **search: Any) -> Found:
    """Met at 10 req/s, missed at 11 and, before that, at 20."""
    steps = steps or [step(10.0, "met"), step(20.0, "missed", 0, 800), step(11.0, "missed", 700, 100)]
    return Found(
        search=Search(**{"slo": {"ttft": 500.0}, "start": 10.0, "tolerance": 0.1, **search}),
        result=SearchResult(rate=rate, missed_at=11.0, percentile=0.99, confidence=0.99, steps=tuple(steps)),
        loads=loads or (load(10.0, 0), load(20.0, 100), load(11.0, 200)),
    )


def sampled(others: dict[int, float], *, host_from_s: int = 0) -> Telemetry:
    """A server with half a core, sampled each second; `others` have so many % of a core in the window from then on."""
    telemetry = Telemetry()
    for begin, percent in others.items():
        for second in range(max(begin, host_from_s), begin + 81):
            telemetry.add(0, second * S, "host", {"cpu_percent": (55.0 + percent) / CORES})
            telemetry.add(0, second * S, "server", {"cpu_percent": 50.0})
    return telemetry


CORES = 4


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: CORES)


def marks(gates: list[Gate]) -> dict[str, Gate]:
    return {gate.id: gate for gate in gates if gate.passed is False and gate.severity != "info"}


def test_an_answer_of_a_quiet_host_and_enough_requests_is_not_marked() -> None:
    quiet = found()
    whole = replace(quiet, evidence=host_gates(quiet, sampled({0: 2.0, 100: 2.0, 200: 2.0})))
    assert marks(whole.gates()) == {}
    ids = {gate.id for gate in whole.gates() if gate.passed is True}
    assert {
        "search_on_time", "search_asked_rate", "search_samples", "search_window", "host_contended", "telemetry",
    } <= ids  # fmt: skip


@pytest.mark.parametrize(("busy", "said"), [(0, "at 10 req/s"), (200, "at 11 req/s")])
def test_other_work_on_the_host_during_either_rate_of_the_bracket_marks_the_answer(busy: int, said: str) -> None:
    gate = marks(host_gates(found(), sampled({at: 150.0 if at == busy else 0.0 for at in (0, 100, 200)})))
    assert gate["host_contended"].severity == "provisional"
    assert gate["host_contended"].observed == 150.0
    assert said in gate["host_contended"].message
    assert list(gate) == ["host_contended"]


def test_other_work_during_a_rate_that_decided_nothing_in_the_end_does_not() -> None:
    assert marks(host_gates(found(), sampled({0: 0.0, 100: 300.0, 200: 0.0}))) == {}


def test_windows_that_were_not_sampled_are_no_headline() -> None:
    gates = {gate.id: gate for gate in host_gates(found(), sampled({0: 0.0}, host_from_s=200))}
    assert (gates["telemetry"].passed, gates["telemetry"].observed) == (False, 0)
    gates = {gate.id: gate for gate in host_gates(found(), sampled({0: 0.0, 100: 0.0}))}
    assert gates["telemetry"].passed is False  # nothing of the rate that was missed
    assert gates["host_contended"].passed is None


def test_the_shortest_window_is_long_enough_for_the_samples_that_it_has_to_have() -> None:
    endpoint = SimpleNamespace(pids=lambda: [1], metrics_url="http://127.0.0.1:9/metrics")
    limit = telemetry_gate(Telemetry(), 0, S).limit
    asked = samplers(endpoint)  # type: ignore[arg-type]
    assert [sampler.name for sampler in asked] == ["host", "server", "metrics"]
    assert all(LEAST_SECONDS / sampler.period_s >= limit + 1 for sampler in asked)


def test_what_was_sent_late_marks_the_answer_where_it_was_of_the_bracket() -> None:
    gate = marks(found(load(10.0, 0), load(11.0, 200, late=True)).gates())["search_on_time"]
    assert gate.severity == "provisional"
    assert "11 req/s sent late" in gate.message
    assert "search_on_time" not in marks(found(load(10.0, 0), load(20.0, 100, late=True), load(11.0, 200)).gates())


@pytest.mark.parametrize(
    ("met", "missed", "marked"),
    [(10.0, 11.0, False), (9.2, 12.0, False), (8.9, 11.0, True), (10.0, 12.3, True), (14.0, 8.0, False)],
)
def test_a_rate_that_was_not_sent_was_neither_met_nor_missed(met: float, missed: float, marked: bool) -> None:
    """Higher ones that were met and lower ones that were missed only say more."""
    gates = marks(found(load(10.0, 0, achieved=met), load(11.0, 200, achieved=missed)).gates())
    assert ("search_asked_rate" in gates) is marked


def test_what_arrived_counts_over_all_loads_of_a_rate() -> None:
    few = load(10.0, 0, achieved=4.0, seconds=2.0, lives=2.0)
    assert marks(found(few, load(10.0, 100), load(11.0, 200)).gates()) == {}


def test_nine_requests_of_fourteen_are_too_few_for_a_median() -> None:
    loads = (
        load(5.657, 0, requests=9, seconds=2.47, achieved=3.64, within={"ttft": 9}, lives=3.8),
        load(11.0, 200, seconds=2.0),
    )
    steps = [step(5.657, "met", 9), step(11.0, "missed", 2, 20)]
    gates = marks(found(*loads, steps=steps, rate=5.657, percentile=0.5, start=4.0, tolerance=0.5).gates())
    assert gates.keys() == {"search_asked_rate", "search_samples", "search_window"}
    assert (gates["search_samples"].observed, gates["search_samples"].limit) == (9, 11)
    assert gates["search_asked_rate"].observed == 3.64
    assert gates["search_window"].observed == 3.8
    assert "6.5 s or more" in gates["search_window"].message
    assert all(gate.severity == "provisional" for gate in gates.values())


def test_a_rate_that_too_few_requests_left_undecided_was_not_found_to_be_missed() -> None:
    steps = [step(10.0, "met"), step(11.0, "undecided", 49, 1)]
    gates = found(steps=steps, most_requests=50).gates()
    assert marks(gates)["search_samples"].observed == 50
    steps[1] = step(11.0, "undecided", 6300, 60)
    assert "search_samples" not in marks(found(steps=steps).gates())


def test_what_a_load_was_of_is_said_as_by_any_load() -> None:
    wrong = Gate(id="output_length", passed=False, observed=0.2, limit=0.01, message="not the length asked for")
    gates = marks(found(load(10.0, 0, failed=[wrong]), load(11.0, 200)).gates())
    assert gates["output_length"].severity == "invalid"
    assert gates["output_length"].message.startswith("at 10 req/s")


def test_a_search_that_found_no_rate_is_judged_by_what_was_missed() -> None:
    none = found(load(11.0, 200), steps=[step(11.0, "missed", 0, 800)], rate=None)
    assert marks([*none.gates(), *host_gates(none, sampled({200: 0.0}))]) == {}
    assert marks(host_gates(none, sampled({200: 200.0}))).keys() == {"host_contended"}
