"""Training benchmarks as people run them, on made-up hosts: real processes, real arithmetic, a device that is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as parquet
from training_boxes import bench, furnish, gates, records, value

from neuronbench.testing.neuron import FakeBox, neuron_profiler

SMALL = {"steps": "6", "warmup_steps": "1", "sequence_length": "64"}
SECOND = ("-k", "second")


def test_lora_on_a_trn1(tmp_path: Path) -> None:
    """Compiled beforehand, timed with the device's barrier, watched by its monitor, evaluated on what was held out."""
    with FakeBox("trn1.2xlarge", tmp_path / "box") as box:
        furnish(box)
        done = bench(box, tmp_path / "data", "lora_sft", *SECOND, settings={**SMALL, "steps": "12", "holdout": "0.1"},
                     NEURONBENCH_FAKE_EXECUTION_MS="150")  # fmt: skip
        assert done.returncode == 0, done.stdout
        record = records(tmp_path / "data")[-1]
    assert record["outcome"] == "ok"
    assert record["provenance"] == "simulated"
    assert value(record, "loss_last") < value(record, "loss_first")
    assert value(record, "holdout_loss_after") < value(record, "holdout_loss_before")
    assert 3.0 < value(record, "holdout_loss_before") < 8.0  # a mean per token, near ln 512 for weights from a seed
    found = gates(record)
    assert found["timer_escapes_device"]["passed"] is True
    assert found["compiled_in_window"]["passed"] is True
    assert found["parameters_consistent"]["passed"] is True
    assert found["tokens_counted"]["passed"] is True
    assert found["device_errors"]["passed"] is True
    assert found["accelerator_monitored"]["passed"] is True

    # the device is busy for most of a step, and the monitor says so of the one core that was taken
    busy = value(record, "accelerator_utilization_mean_pct")
    assert busy is not None
    assert 15.0 < busy <= 100.0
    assert value(record, "executions_executions") >= 10.0  # those of whole periods inside the window
    steps = parquet.read_table(next((tmp_path / "data").glob("receipts/*/lora*/steps.parquet"))).to_pylist()
    assert len(steps) == 12
    for row in steps[1:]:  # where a timer without a barrier would have stopped, and where the device had finished
        assert row["end_ns"] - row["begin_ns"] >= 150e6
    waited = sorted((row["end_ns"] - row["returned_ns"]) / 1e6 for row in steps[1:])
    assert waited[len(waited) // 2] > 10.0  # the optimizer at least had not been handed over

    run = record["workload"]["training"][0]
    assert run["compile"]["precompiled"] is True
    assert run["compile"]["graphs_compiled"] >= 2
    assert value(record, "compile_time_s") > 0
    assert "xm.wait_device_ops" in run["barrier"]
    assert run["reported"]["optimum-neuron/summary/mfu_avg"] == 31.5  # kept under its own name ...
    assert value(record, "mfu_pct") < 1.0  # ... and not taken for ours
    assert "47.5 TFLOP/s of a Trainium" in record["metrics"]["mfu_pct"]["note"]
    assert record["resource"]["facts"]["neuron"]["cores"] == [0]
    assert record["resource"]["spec"]["cc_flags"] == "--model-type=transformer"


def test_ranks_that_share_a_model_on_a_large_trn1(tmp_path: Path) -> None:
    with FakeBox("trn1.32xlarge", tmp_path / "box") as box:
        furnish(box)
        settings = {**SMALL, "world_size": "2", "tensor_parallel_size": "2", "dtype": "bfloat16", "recompute": "true",
                    "precompile": "false"}  # fmt: skip
        done = bench(box, tmp_path / "data", "lora_sft", *SECOND, settings=settings)
        assert done.returncode == 0, done.stdout
        record = records(tmp_path / "data")[-1]
    run = record["workload"]["training"][0]
    assert run["backend"]["tensor_parallel_size"] == 2
    assert run["backend"]["data_parallel_size"] == 1
    assert run["shards"] == {"0": [0, 1], "1": [0, 1]}
    assert gates(record)["tokens_counted"]["passed"] is True  # both ranks see the same tokens, which count once
    assert gates(record)["parameters_consistent"]["passed"] is True
    assert "2 × 95 TFLOP/s dense bfloat16" in record["metrics"]["mfu_pct"]["note"]
    assert record["resource"]["facts"]["neuron"]["cores"] == [0, 1]
    assert run["compile"] == {"precompiled": False}
    assert value(record, "loss_last") < value(record, "loss_first")


def test_neuronx_distributed_on_a_large_trn2_and_a_profiled_run_has_no_times(tmp_path: Path) -> None:
    """Layers split over two logical cores; the counts are of the whole model, the losses are those of one rank. What
    it computes is the same while it is profiled."""
    with FakeBox("trn2.48xlarge", tmp_path / "box") as box:
        furnish(box)
        neuron_profiler.install(box)
        settings = {**SMALL, "trainer_provider": "nxd", "world_size": "2", "tensor_parallel_size": "2",
                    "precompile": "false", "checkpoint_every": "2", "steps": "5"}  # fmt: skip
        done = bench(box, tmp_path / "data", "pretrain", "-k", "bench_pretrain and not width", "--nb-profile",
                     settings=settings)  # fmt: skip
        assert done.returncode == 0, done.stdout
        record = records(tmp_path / "data")[-1]
        receipt = next((tmp_path / "data").glob("receipts/*/pretrain*"))
    run = record["workload"]["training"][0]
    assert value(record, "total_parameters_parameters") == 853376.0
    assert [one["step"] for one in run["checkpoints"]] == [2, 4]
    assert gates(record)["parameters_consistent"]["passed"] is True
    note = record["metrics"]["mfu_pct"]["note"]
    assert "Trainium2" in note
    assert "45.25 TFLOP/s dense float32" in note  # of a logical core: two of eight
    assert value(record, "loss_last") < value(record, "loss_first")
    assert record["resource"]["spec"]["tensor_parallel_size"] == 2
    assert run["barrier"].startswith("torch_xla.sync(wait=True)")

    assert record["outcome"] == "ok"
    assert record["validity"] == "invalid"
    assert record["provenance"] == "simulated"
    assert gates(record)["profiled"]["passed"] is False
    told = record["workload"]["profile"]
    assert told["tool"] == "neuron-explorer"
    assert {trace["metrics"]["mfu_estimated_percent"] for trace in told["traces"]} == {0.1045}
    for trace in told["traces"]:
        assert (receipt / trace["summary"]).is_file()
        assert trace["summary"] in record["attachments"]


def test_a_method_without_a_trainer_is_skipped_before_anything_boots(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        furnish(box)
        settings = {"method": "orpo", "dataset": "builtin:preferences"}
        done = bench(box, tmp_path / "data", "lora_sft", *SECOND, settings=settings)
    said = " ".join(done.stdout.split())
    assert "1 skipped" in said
    assert "no NeuronORPOTrainer since 0.4.0" in said
    assert "pin optimum-neuron 0.3.x" in said
    assert not [record for record in records(tmp_path / "data") if record["kind"] == "boot"]
