"""A real model served by a real vLLM on this CPU: measured, recorded, in MLflow."""

from __future__ import annotations

import math
import warnings

import psutil
import pyarrow.parquet as parquet
import pytest

CLOSED_LOOP = ("serving.closed_loop-cpu-c1-in64-out32--r1", "serving.closed_loop-cpu-c4-in64-out32--r1")


@pytest.fixture(scope="module")
def points(real):
    found = real.records("point")
    assert set(CLOSED_LOOP) <= set(found), real.output
    return found


def test_the_points_have_finite_numbers_and_a_table(real, points) -> None:
    for name in CLOSED_LOOP:
        record = points[name]
        assert record["outcome"] == "ok", real.output
        assert record["provenance"] == "measured"
        metrics = record["metrics"]
        for key in (
            "ttft_p50_ms",
            "tpot_p50_ms",
            "output_throughput_tok_s",
            "server_cpu_mean_pct",
            "server_rss_max_MiB",
        ):
            assert math.isfinite(metrics[key]["value"]), key
            assert metrics[key]["value"] > 0, key
        assert metrics["error_rate_share"]["value"] == 0
        assert metrics["input_tokens_mean_tokens"]["value"] == 64
        assert metrics["output_tokens_mean_tokens"]["value"] == 32
        gates = {gate["id"]: gate["passed"] for gate in record["gates"]}
        assert gates["input_length"] is True
        assert gates["output_length"] is True
        assert gates["token_conservation"] is True
        assert gates["telemetry"] is True
    assert "c1-in64-out32" in real.output
    assert "TTFT" in real.output


def test_speed_stands_on_the_accuracy_of_the_same_server(real, points) -> None:
    judged = points["serving.accuracy-cpu--r1"]
    assert judged["outcome"] == "ok", real.output
    gates = {gate["id"]: gate["passed"] for gate in judged["gates"]}
    assert (gates["accuracy"], gates["accuracy_samples"]) == (True, True)
    (part,) = judged["workload"]["accuracy"]
    assert part["passed"] is True
    assert part["weight"] == 128
    assert 0.8 < judged["metrics"]["agreement_share"]["value"] <= 1  # bfloat16 is not fp32
    assert judged["metrics"]["token_gap_max_nats"]["value"] < 0.25
    for name in CLOSED_LOOP:
        assert points[name]["resource"]["facts"]["artifact"]["key"] == part["artifact"]
        (gate,) = (gate for gate in points[name]["gates"] if gate["id"] == "accuracy_evidence")
        assert (gate["passed"], gate["observed"]) == (True, f"{judged['session']}/{judged['name']}")
    assert "references: " in real.output


def test_every_request_is_in_the_table(real, points) -> None:
    for name in CLOSED_LOOP:
        record = points[name]
        rows = parquet.read_table(real.receipts / record["session"] / name / "requests.parquet").to_pylist()
        window = [row for row in rows if row["in_window"]]
        assert len(window) == record["metrics"]["ttft_p50_ms"]["n"] > 0
        for row in window:
            assert (
                row["scheduled_ns"] <= row["sent_ns"] < row["first_output_ns"] <= row["last_output_ns"] <= row["end_ns"]
            )
            assert row["output_tokens"] == 32


def test_one_boot_served_all_points_and_names_its_weights(real, points) -> None:
    boots = [record for record in real.records("boot").values() if record["outcome"] == "ok"]
    assert len(boots) == 1
    (boot,) = boots
    cited = {points[name]["resource"]["boot_receipt"] for name in CLOSED_LOOP}
    assert cited == {f"{boot['session']}/{boot['name']}"}
    metrics = {key: metric["value"] for key, metric in boot["metrics"].items()}
    assert all(value is not None and value > 0 for value in metrics.values()), "the log words its stages otherwise"
    parts = sum(value for key, value in metrics.items() if key != "boot_time_s")
    assert parts < metrics["boot_time_s"] + 1
    facts = boot["resource"]["facts"]
    assert "Paris" in facts["first_generation"]["text"]
    assert facts["model"]["architecture"] == "LlamaForCausalLM"
    assert [len(digest) for digest in facts["model"]["files"].values()] == [64]
    assert "not the original weights" in facts["model"]["note"]
    assert "server.log" in boot["attachments"]


def test_a_server_killed_in_the_window_is_an_error_with_its_class(points) -> None:
    record = points["serving.killed-cpu-c1-in64-out32--r1"]
    assert record["outcome"] == "error"
    assert record["error"]["kind"] == "killed"
    assert record["error"]["phase"] == "window"
    assert record["error"]["exit_status"] == -9
    assert record["validity"] == "invalid"


def test_weights_that_cannot_load_are_an_error_with_class_cause_and_remedy(real, points) -> None:
    record = points["serving.corrupt-cpu--r1"]
    assert record["outcome"] == "error"
    assert record["error"]["kind"] == "weights_corrupt"
    assert record["error"]["causal_line"]
    assert record["error"]["remedy"]
    assert record["error"]["remedy"] in real.output


def test_nothing_is_left_running(real) -> None:
    assert list(real.receipts.glob("*/pids/*.json")) == []
    for process in psutil.process_iter(["cmdline"]):
        assert str(real.data_root.parent) not in " ".join(process.info["cmdline"] or [])


def test_mlflow_has_the_same_numbers(real, points) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{real.data_root / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("neuronbench/serving")
        runs = client.search_runs([experiment.experiment_id])
        parents = {run.info.run_id for run in runs if run.data.tags.get("nb.kind") == "session"}
        children = {run.data.tags["nb.receipt"]: run for run in runs if run.info.run_id not in parents}
        assert len(parents) == 1
        for name in CLOSED_LOOP:
            record = points[name]
            run = children[f"{record['session']}/{name}"]
            assert run.info.status == "FINISHED"
            assert run.data.tags["mlflow.parentRunId"] in parents
            for key, metric in record["metrics"].items():
                path = metric["definition"].partition("@")[0] + "/" + key.removeprefix(metric["definition"][:-2] + "_")
                if metric["value"] is not None and path in run.data.metrics:
                    assert run.data.metrics[path] == metric["value"], path
            assert run.data.metrics["ttft/p50_ms"] == record["metrics"]["ttft_p50_ms"]["value"]
            names = {item.path for item in client.list_artifacts(run.info.run_id)}
            assert {"requests.parquet", "telemetry.parquet", "record.json", "figures"} <= names
        killed = points["serving.killed-cpu-c1-in64-out32--r1"]
        assert children[f"{killed['session']}/{killed['name']}"].info.status == "FAILED"
