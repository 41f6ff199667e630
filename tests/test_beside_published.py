"""What a finished record says of published figures and of random weights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuronbench import beside_published
from neuronbench.definitions import metric
from neuronbench.model import Environment, FrozenMap, Metric, Point, Provenance, Record, ResourceRef
from neuronbench.plugins import Plugins

PARAMS = {
    "model": "hub:bert-base-cased", "batch_size": 16, "sequence_length": 128, "dtype": "float32",
    "run_mode": "data_parallel", "instance_type": "trn1.2xlarge", "task": "raw_output", "edition": "trn1-2024-04",
}  # fmt: skip


def record(instance: str | None, *, weights: str = "real", params: Any = PARAMS, **changes: Any) -> Record:
    made = Record(
        session="s",
        point=Point(benchmark="b.py::f", lane="encoder", backend="trn1", params=FrozenMap(params), id="p"),
        resource=ResourceRef(id="r", kind="compiled_model", spec=FrozenMap(), facts=FrozenMap(weights=weights)),
        environment=Environment(facts=FrozenMap({"backend.instance_type": instance}), key="k"),
        **changes,
    )
    made.add(metric("throughput", 3500.0, n=1000), metric("latency", 9.0, stat="p50", n=1000))
    return made


def ratios(metrics: list[Metric]) -> dict[str, float | None]:
    return {each.key: each.value for each in metrics}


def test_on_the_same_type_of_instance_there_is_a_ratio() -> None:
    found = beside_published.add(record("trn1.2xlarge"))
    assert ratios(found) == {
        "measured_over_published_throughput": pytest.approx(3500 / 3176.04),
        "measured_over_published_latency_p50": pytest.approx(9.0 / 10.07),
    }  # no P99 was measured, and none is made up
    assert all(each.better is None for each in found)
    assert "SDK 2.18.0" in found[0].note


@pytest.mark.parametrize("instance", [None, "trn1.32xlarge", "inf2.xlarge"])
def test_on_other_hardware_the_figures_are_shown_and_not_compared(instance: str | None) -> None:
    made = record(instance)
    found = beside_published.add(made)
    assert set(ratios(found).values()) == {None}
    assert all("not compared" in each.note for each in found)
    told = made.workload["published"]
    assert (told["throughput"], told["latency_p99_ms"], told["instance_type"]) == (3176.04, 10.13, "trn1.2xlarge")
    assert told["source"].startswith("aws-neuron-sdk@")
    assert any("not compared" in note for note in made.notes)
    json.dumps(made.to_json(), allow_nan=False)


def test_simulated_numbers_are_not_compared_either() -> None:
    found = beside_published.add(record("trn1.2xlarge", provenance=Provenance.SIMULATED))
    assert set(ratios(found).values()) == {None}


@pytest.mark.parametrize(("workers", "compared"), [(1, False), (2, True), (4, False)])
def test_only_as_many_copies_as_there_are_compared(workers: int, compared: bool) -> None:
    made = record("trn1.2xlarge", workload={"loops": [{"workers": workers}]})
    found = beside_published.add(made)
    assert all((value is not None) == compared for value in ratios(found).values())
    if not compared:
        assert f"2 copies were busy there by throughput × P50 / batch, {workers} here" in found[0].note


def test_a_row_that_is_odd_brings_its_findings_along() -> None:
    odd = {**PARAMS, "model": "xlm-roberta-base", "batch_size": 8, "instance_type": "trn1.32xlarge"}
    made = record("trn1.32xlarge", params=odd)
    beside_published.add(made)
    assert [finding["id"] for finding in made.workload["published"]["findings"]] == ["part_billed_as_whole"]


def test_other_points_and_other_records_stay_as_they_are() -> None:
    plain = record("trn1.2xlarge", params={"model": "m", "batch_size": 1})
    compiled = record("trn1.2xlarge", kind="compile")
    for made in (plain, compiled):
        assert beside_published.add(made) == []
        assert made.workload == {}
        assert made.notes == []


def test_random_weights_are_said_so_by_every_record_of_them() -> None:
    made = record(None, weights="random (seed 3)", params={"model": None})
    beside_published.add(made)
    (note,) = made.notes
    assert "random weights" in note
    assert "seed 3" in note
    assert "nothing of quality" in note


def test_it_happens_when_a_record_is_finished() -> None:
    made = record("trn1.2xlarge")
    Plugins(entry_points=False).finish_record(made, made.point)
    assert made.metrics["measured_over_published_throughput"].value is not None
