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


SERVED = {"model": "hub:meta-llama/Meta-Llama-3-8B", "concurrency": 8, "input_tokens": 128, "output_tokens": 8064,
          "dtype": "float16", "weight_dtype": "int8", "tp_degree": 32, "edition": "trn1-2024-04"}  # fmt: skip
TRAINED = {"model": "hub:meta-llama/Llama-3.1-8B", "method": "pretrain", "sequence_length": 8192, "batch_size": 1,
           "accumulation": 32, "world_size": 1024, "tp_degree": 32, "nodes": 32}  # fmt: skip


def finished(instance: str | None, lane: str, params: Any, *metrics: Metric, **changes: Any) -> Record:
    made = Record(
        session="s",
        point=Point(benchmark="b.py::f", lane=lane, backend="trn1", params=FrozenMap(params), id="p"),
        environment=Environment(facts=FrozenMap({"backend.instance_type": instance}), key="k"),
        **changes,
    )
    made.add(*metrics)
    return made


def served(instance: str | None, **params: Any) -> Record:
    return finished(
        instance, "serving", {**SERVED, **params}, metric("output_throughput", 900.0, n=100),
        metric("ttft", 60.0, stat="p50", n=100), metric("tpot", 10.0, stat="p50", n=100),
        metric("tpot", None, stat="p99", n=100, note="few"),
    )  # fmt: skip


def test_a_served_model_stands_beside_the_decoder_tables() -> None:
    made = served("trn1.32xlarge")
    found = beside_published.add(made)
    assert ratios(found) == {
        "measured_over_published_throughput": pytest.approx(900 / 933.5),
        "measured_over_published_ttft_p50": pytest.approx(60 / 55.16),
        "measured_over_published_tpot_p50": pytest.approx(10.0 / 9.95),
        "measured_over_published_tpot_p99": None,
    }
    told = made.workload["published"]
    assert (told["group"], told["table"], told["row"], told["throughput_of"]) == (
        "decoder", "throughput", 1, "output_tokens",
    )  # fmt: skip
    compared = {one["stat"]: one for one in told["compared"]}
    assert compared["ttft_p99"]["published"] == 61.47  # shown, though nothing here was measured of it
    assert compared["ttft_p99"]["why"] == "not measured here"
    assert any("measured / published: throughput 0.964" in note for note in made.notes)
    json.dumps(made.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"instance": "inf2.48xlarge"}, "the figures are of trn1.32xlarge"),
        ({"tp_degree": None}, "not said"),
        ({"weight_dtype": None}, "weights are stored as int8 there, as float16 here"),
    ],
    ids=str,
)
def test_another_deployment_is_shown_and_not_compared(changes: dict[str, Any], reason: str) -> None:
    instance = changes.pop("instance", "trn1.32xlarge")
    made = served(instance, instance_type="trn1.32xlarge", **changes)
    assert set(ratios(beside_published.add(made)).values()) == {None}
    assert made.workload["published"]["throughput"] == 933.5
    assert any(reason in note for note in made.notes), made.notes


def test_what_the_resource_says_counts_where_the_point_is_silent() -> None:
    made = finished(
        "trn1.32xlarge", "serving", {**SERVED, "tp_degree": None, "dtype": None, "weight_dtype": None},
        metric("tpot", 10.0, stat="p50", n=100),
        resource=ResourceRef(id="r", kind="endpoint", spec=FrozenMap(dtype="int8"),
                             facts=FrozenMap(tensor_parallel_size=32)),
    )  # fmt: skip
    assert ratios(beside_published.add(made))["measured_over_published_tpot_p50"] is not None
    other = finished(
        "trn1.32xlarge", "serving", {**SERVED, "tp_degree": None},
        resource=ResourceRef(id="r", kind="endpoint", spec=FrozenMap(tensor_parallel_size=8)),
    )  # fmt: skip
    assert beside_published.add(other) == []  # spread otherwise: another deployment, which no row is of


def test_the_batch_of_a_training_is_that_of_its_shards() -> None:
    """1,024 ranks that share 32 shards: what the ranks logged, whatever the point leaves open."""
    job = {"batch_size": 1, "accumulation": 32}
    runs = [{"job": job, "shards": {str(rank): [rank % 32, 32] for rank in range(3)}}]
    params = {**TRAINED, "tp_degree": None}
    made = finished("trn1.32xlarge", "pretrain", params, workload={"training": runs})
    beside_published.add(made)
    assert made.workload["published"]["global_batch_size"] == 1024
    runs[0]["shards"] = {"0": [0, 1024]}
    wide = finished("trn1.32xlarge", "pretrain", params, workload={"training": runs})
    assert beside_published.add(wide) == []


@pytest.mark.parametrize("changes", [{"concurrency": 4}, {"input_tokens": 64}, {"tp_degree": 8}, {"model": "x/Llama"}])
def test_another_load_has_no_published_row(changes: dict[str, Any]) -> None:
    made = served("trn1.32xlarge", **changes)
    assert beside_published.add(made) == []
    assert "published" not in made.workload


def test_figures_that_contradict_each_other_give_no_ratio() -> None:
    swapped = {**SERVED, "model": "Llama-3-70B", "concurrency": 1, "output_tokens": 128, "weight_dtype": "bfloat16"}
    made = served("trn1.32xlarge", **swapped, application="real_time")
    found = ratios(beside_published.add(made))
    assert found["measured_over_published_tpot_p50"] is None  # P50 is above P99 there
    assert found["measured_over_published_ttft_p50"] is not None
    assert any("p50_above_p99" in note for note in made.notes)
    slow = {**SERVED, "model": "Llama-2-13b", "concurrency": 1, "input_tokens": 4096, "output_tokens": 4096,
            "weight_dtype": "bfloat16", "application": "real_time"}  # fmt: skip
    made = served("trn1.32xlarge", **slow)
    found = ratios(beside_published.add(made))
    assert found["measured_over_published_throughput"] is None
    assert found["measured_over_published_tpot_p50"] is not None


def test_a_rate_of_another_definition_gives_no_ratio_and_waits_give_none_of_ttft() -> None:
    params = {"model": "Llama-3.3-70B-Instruct", "concurrency": 1, "input_tokens": 10000, "output_tokens": 1500,
              "tp_degree": 64, "dtype": "bfloat16", "weight_dtype": None}  # fmt: skip
    made = served("trn2.48xlarge", **params, edition="trn2-tutorials-2026-08")
    found = ratios(beside_published.add(made))
    assert made.workload["published"]["group"] == "llmperf"
    assert made.workload["published"]["speculation"] == "none"
    assert found["measured_over_published_throughput"] is None
    assert found["measured_over_published_ttft_p50"] is None
    assert found["measured_over_published_tpot_p50"] == pytest.approx(10 / 19.6594, rel=1e-3)
    reasons = "\n".join(made.notes)
    assert "ramp and drain included" in reasons
    assert "requests waited for others" in reasons


def test_rows_that_do_not_say_their_load_are_shown_and_not_compared() -> None:
    params = {"model": "hub:Qwen/Qwen3-30B-A3B-Instruct-2507", "concurrency": 8, "input_tokens": 512,
              "output_tokens": 128, "edition": None, "weight_dtype": None, "dtype": "bfloat16"}  # fmt: skip
    made = served("trn1.32xlarge", **params)
    assert set(ratios(beside_published.add(made)).values()) == {None}
    told = made.workload["published"]
    assert (told["tool"], told["load"], told["batch_size"]) == ("guidellm", "throughput", 8)
    assert any("does not name the instance type" in note for note in made.notes)


def test_speculation_is_only_beside_speculation() -> None:
    params = {"model": "Llama-3.3-70B-Instruct", "concurrency": 1, "input_tokens": 10000, "output_tokens": 1500,
              "tp_degree": 64, "dtype": "bfloat16", "weight_dtype": None, "edition": "trn2-tutorials-2026-08",
              "speculation": "fused speculation, draft Llama-3.2-1B, length 7"}  # fmt: skip
    made = served("trn2.48xlarge", **params)
    beside_published.add(made)
    assert made.workload["published"]["tpot_p50_ms"] == pytest.approx(5.386, abs=1e-3)
    draft = finished("trn2.48xlarge", "spec_decode", {**params, "speculation": None})
    assert beside_published.add(draft) == []


def test_a_rate_of_training_is_compared_in_sequences_where_the_instances_are_known() -> None:
    rate = metric("train_throughput_padded", 400_000.0, n=100)
    cluster = finished("trn1.32xlarge", "pretrain", TRAINED, rate)
    (ratio,) = beside_published.add(cluster)
    assert ratio.value is None
    assert "32 nodes of trn1.32xlarge/trn1n.32xlarge" in ratio.note
    told = cluster.workload["published"]
    assert (told["throughput"], told["throughput_of"], told["global_batch_size"]) == (47.95, "sequences", 1024)
    one = {"model": "hub:google-bert/bert-large-uncased", "method": "pretrain", "sequence_length": 128,
           "global_batch_size": 16384, "nodes": 1}  # fmt: skip
    single = finished("trn1.32xlarge", "pretrain", one, metric("train_throughput_padded", 128 * 3000.0, n=100))
    (ratio,) = beside_published.add(single)
    assert ratio.value == pytest.approx(3000 / 3826.6103)
    assert "/ 128 /" in ratio.note
    older = finished("trn1.32xlarge", "pretrain", {**one, "global_batch_size": 65536}, rate)
    (ratio,) = beside_published.add(older)
    assert ratio.value is None
    assert "how long a sequence is" in ratio.note


@pytest.mark.parametrize(
    "changes", [{"accumulation": 16}, {"sequence_length": 4096}, {"method": "lora_sft"}, {"nodes": 1}]
)
def test_another_training_has_no_published_row(changes: dict[str, Any]) -> None:
    made = finished("trn1.32xlarge", "pretrain", {**TRAINED, **changes})
    assert beside_published.add(made) == []


def test_images_have_their_tables_too() -> None:
    params = {"model": "hub:google/vit-base-patch16-224", "batch_size": 2, "image_size": 224, "dtype": "float32",
              "run_mode": "data_parallel", "instance_type": "inf2.xlarge"}  # fmt: skip
    made = finished("inf2.xlarge", "vision", params, metric("throughput", 1600.0, n=100))
    (ratio,) = beside_published.add(made)
    told = made.workload["published"]
    assert told["image_size"] == "224x224"
    assert told["on_page"] is True
    assert ratio.value == pytest.approx(1600 / told["throughput"])
    assert "more_in_flight_than_cores" in [finding["id"] for finding in told["findings"]]


def test_it_happens_when_a_record_is_finished() -> None:
    made = record("trn1.2xlarge")
    Plugins(entry_points=False).finish_record(made, made.point)
    assert made.metrics["measured_over_published_throughput"].value is not None
