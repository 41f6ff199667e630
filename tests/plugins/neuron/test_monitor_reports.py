"""Lines of `neuron-monitor`: documented and published ones, and every way in which one can be spoilt."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuronbench_neuron.monitor.config import LONGEST_S, PER_PERIOD, configuration, period_for
from neuronbench_neuron.monitor.report import Core, Report, ReportError, parse

SAMPLES = Path(__file__).parents[2] / "data" / "neuron_monitor"
NAMES = sorted(path.name for path in SAMPLES.glob("*.json"))


def sample(name: str) -> dict[str, Any]:
    return dict(json.loads((SAMPLES / name).read_text(encoding="utf-8")))


def read(document: Any) -> Report:
    return parse(json.dumps(document))


def test_all_samples_are_here() -> None:
    assert NAMES == ["inf2_load.json", "no_driver.json", "trn1_idle.json", "trn1n_runtime_errors.json", "trn2.json"]


def test_a_loaded_inf2() -> None:
    report = read(sample("inf2_load.json"))
    (runtime,) = report.runtimes
    assert runtime.pid == 2199
    assert runtime.cores[0] == Core(utilization_pct=89.40087251059674, flops=875590474948.0)
    assert runtime.cores[1].utilization_pct == 0.0  # attached and idle: a real zero
    assert runtime.outcomes["completed"] == 816.0
    assert runtime.device_latency_s["p50"] == pytest.approx(1.1217e-3, rel=1e-3)
    assert runtime.total_latency_s == {}
    assert runtime.longest_s == pytest.approx(1.2009e-3, rel=1e-3)
    assert report.core_version == "v2"
    assert not report.odd


def test_logical_cores_of_trn2_and_the_documented_spelling() -> None:
    report = read(sample("trn2.json"))
    core = report.runtimes[0].cores[1]
    assert core.flops == 1234567891021.0
    assert core.physical == {"nc_v3.2": 21.02, "nc_v3.3": 63.02}
    assert core.memory_bytes == 193986816 + 176285056 + 20971520
    assert (report.core_version, report.logical_core_config) == ("v3d", 2.0)
    assert report.ecc[0]["mem_ecc_uncorrected"] == 0.0


def test_errors_of_a_runtime_without_latencies() -> None:
    (runtime,) = read(sample("trn1n_runtime_errors.json")).runtimes
    assert runtime.errors["generic"] == 2.0
    assert runtime.device_latency_s == {}
    assert runtime.longest_s is None
    assert runtime.cores[0].flops is None


@pytest.mark.parametrize("name", ["trn1_idle.json", "no_driver.json"])
def test_nothing_attached_is_nothing_and_not_zero(name: str) -> None:
    assert read(sample(name)).runtimes == ()


def test_without_a_driver_the_tool_says_so() -> None:
    report = read(sample("no_driver.json"))
    assert report.problems == ("neuron_hardware_info: Unable to read device information from the driver",)
    assert report.ecc == {}


def test_identifiers_are_not_read() -> None:
    for name in NAMES:
        said = repr(read(sample(name)))
        assert not any(word in said for word in ("i-00", "ami-", "subnet-", "us-west", "My_Instance"))


def test_a_group_that_failed_has_no_values() -> None:
    document = sample("inf2_load.json")
    document["neuron_runtime_data"][0]["report"]["neuroncore_counters"]["error"] = "cannot read counters"
    report = read(document)
    assert report.runtimes[0].cores == {}
    assert report.problems == ("neuroncore_counters: cannot read counters",)


def test_a_core_whose_memory_is_known_in_part_has_none() -> None:
    document = sample("trn2.json")
    used = document["neuron_runtime_data"][0]["report"]["memory_used"]["neuron_runtime_used_bytes"]
    used["usage_breakdown"]["neuroncore_memory_usage"]["0"]["tensors"] = None
    assert read(document).runtimes[0].cores[0].memory_bytes is None


@pytest.mark.parametrize("value", ["89.4", -1.0, 250.0, True, [], {}, 10**400])
def test_a_utilisation_that_cannot_be_is_missing_and_named(value: Any) -> None:
    document = sample("inf2_load.json")
    cores = document["neuron_runtime_data"][0]["report"]["neuroncore_counters"]["neuroncores_in_use"]
    cores["0"]["neuroncore_utilization"] = value
    report = read(document)
    assert report.runtimes[0].cores[0].utilization_pct is None
    assert report.odd == ("neuroncores_in_use.neuroncore_utilization",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "expected a line of JSON, found ''"),
        ('{"neuron_runtime_data": [', "expected a line of JSON"),
        ("[1]", "expected an object, found list"),
        ("null", "expected an object, found NoneType"),
        ('{"level": "error"}', "no report, only level"),
        ("[" * 100_000, "expected a line of JSON"),
    ],
)
def test_what_is_no_report(line: str, said: str) -> None:
    with pytest.raises(ReportError, match=said.replace("[", r"\[")):
        parse(line)


def test_not_a_number_is_missing() -> None:
    text = json.dumps(sample("inf2_load.json")).replace("89.40087251059674", "NaN")
    assert parse(text).runtimes[0].cores[0].utilization_pct is None


# -- property: whatever is done to a sample, what is read was there


def paths(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a document."""
    found = [at] if at else []
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        found += paths(node[key], (*at, key))
    return found


PLACES = [(name, path) for name in NAMES for path in paths(sample(name))]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True, allow_infinity=True), st.text(max_size=8),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=4), st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
)  # fmt: skip


def numbers(node: Any) -> set[float]:
    if isinstance(node, dict):
        return set().union(*(numbers(each) for each in node.values()), set())
    if isinstance(node, list):
        return set().union(*(numbers(each) for each in node), set())
    return (
        {float(node)} if isinstance(node, (int, float)) and not isinstance(node, bool) and abs(node) < 1e300 else set()
    )


def measured(report: Report) -> set[float]:
    """Every number of a report that stands for something sampled."""
    found: set[float | None] = set()
    for runtime in report.runtimes:
        found |= {runtime.host_bytes, runtime.device_bytes, *runtime.errors.values(), *runtime.outcomes.values()}
        found |= {*runtime.device_latency_s.values(), *runtime.total_latency_s.values()}
        for core in runtime.cores.values():
            found |= {core.utilization_pct, core.flops, *core.physical.values()}
    for events in report.ecc.values():
        found |= set(events.values())
    return {value for value in found if value is not None}


@given(place=st.sampled_from(PLACES), change=st.sampled_from(["delete", "replace", "add"]), value=ODD)
def test_a_spoilt_sample_is_read_or_refused_and_no_number_is_made_up(
    place: tuple[str, tuple[Any, ...]], change: str, value: Any
) -> None:
    name, path = place
    document = copy.deepcopy(sample(name))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if change == "delete":
        del parent[path[-1]]
    elif change == "replace":
        parent[path[-1]] = value
    elif isinstance(parent, dict):
        parent["brand_new_field"] = value
    text = json.dumps(document)
    try:
        report = parse(text)
    except ReportError:
        return
    there = numbers(json.loads(text, parse_constant=lambda _: None))
    assert measured(report) <= there | {100.0}  # a utilisation of 100.3 is one of 100
    for runtime in report.runtimes:
        for core in runtime.cores.values():
            assert core.utilization_pct is None or 0 <= core.utilization_pct <= 100


@given(name=st.sampled_from(NAMES), share=st.floats(0, 1))
def test_a_line_that_was_cut_off_is_refused(name: str, share: float) -> None:
    text = json.dumps(sample(name))
    cut = text[: min(int(share * len(text)), len(text) - 1)]
    with pytest.raises(ReportError):
        parse(cut)


# -- what is asked for


def test_a_period_holds_ten_executions() -> None:
    assert period_for(None) == 1.0
    assert period_for(0.001) == 1.0
    assert period_for(1.416) == 15.0
    assert period_for(500.0) == LONGEST_S
    assert period_for(0.0) == 1.0


@given(st.floats(1e-6, 1e4))
def test_a_period_is_long_enough_or_the_longest(execution_s: float) -> None:
    period_s = period_for(execution_s)
    assert period_s == LONGEST_S or period_s >= PER_PERIOD * execution_s
    assert period_s == int(period_s)


def test_the_configuration_asks_for_executions_too() -> None:
    asked = json.loads(configuration(2.0))
    assert asked["period"] == "2s"
    (runtimes,) = asked["neuron_runtimes"]
    assert {"neuroncore_counters", "execution_stats", "memory_used"} <= {one["type"] for one in runtimes["metrics"]}
    assert {"type": "neuron_hw_counters", "period": "5s"} in asked["system_metrics"]
