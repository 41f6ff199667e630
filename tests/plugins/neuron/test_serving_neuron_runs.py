"""`pytest benchmarks/serving` on made-up hosts of every kind: the same benchmark files as on the CPU, end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from lean_stack import SESSION
from serving_neuron import BASE, PACKAGES, STACKS, make_model

from neuronbench.testing.neuron import FakeBox

PROJECT = Path(__file__).parents[3]
HOST = ("host_contended", "client_cpu", "client_lag", "send_lag", "steady_state", "samples", "accuracy_evidence",
        "telemetry", "achieved_rate", "audits_passed")  # fmt: skip
"""Gates that a small and busy machine, a short window, or a model that is none may fail."""


class Run:
    """A run of pytest on a box, and what it left."""

    def __init__(self, box: FakeBox, folder: Path, environ: Mapping[str, str] | None = None, **given: str) -> None:
        told = {"model": f"file:{make_model(folder / 'model')}", "window_s": "2", "max_num_seqs": "4", **given}
        words = [*SESSION, "-rs", "-k", "closed_loop", "--nb-tracking-uri", "off"]
        words += [word for name, value in told.items() for word in ("--nb-set", f"{name}={value}")]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "benchmarks/serving", "-m", box.shape.instance.family, *words,
             "--nb-data-root", str(folder)],
            cwd=PROJECT, env=box.environ(XDG_CACHE_HOME=str(folder / "cache"), **(environ or {})), capture_output=True,
            text=True, timeout=200,
        )  # fmt: skip
        self.returncode, self.text = done.returncode, done.stdout + done.stderr
        found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("receipts/*/*/record.json")]
        self.folders = {path.parent.name: path.parent for path in folder.glob("receipts/*/*/record.json")}
        self.boots = [record for record in found if record["kind"] == "boot"]
        self.measured = [one for one in found if one["kind"] == "point" and one["outcome"] != "skipped"]


def gates(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {gate["id"]: gate for gate in record["gates"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def stacked(shape: str, id: str, tmp_path: Path) -> FakeBox:
    box = FakeBox(shape, tmp_path / "box")
    box.venv("aws_neuronx_venv_serving", packages={**BASE, **STACKS[id]}, paths=[PACKAGES])
    return box


HOSTS = {"inf2.xlarge": "1b", "trn1.2xlarge": "1a", "trn1.32xlarge": "H", "trn2.3xlarge": "2b", "trn2.48xlarge": "2a"}


@pytest.mark.parametrize(("shape", "id"), HOSTS.items())
def test_the_same_files_run_on_every_kind_of_host(shape: str, id: str, tmp_path: Path, folder: Path) -> None:
    with stacked(shape, id, tmp_path) as box:
        run = Run(box, folder, concurrency="2", input_tokens="64,1000")
    assert run.returncode == 0, run.text
    assert "1000 tokens of input and 32 of output are beyond max_model_len = 1024" in " ".join(run.text.split())
    (boot,), (record,) = run.boots, run.measured
    assert boot["provenance"] == record["provenance"] == "simulated"
    assert "simulated" in run.text
    assert (record["outcome"], record["point"]["params"]["concurrency"]) == ("ok", 2)
    assert record["resource"]["facts"]["generation"] == id
    assert shape in json.dumps(record["environment"]["facts"])
    failed = {name for name, gate in gates(record).items() if gate["passed"] is False}
    assert failed <= set(HOST), failed
    told = gates(record)
    assert told["compiled_in_window"]["passed"] is True
    assert told["compiled_under_load"]["passed"] is True
    native = id in ("2a", "2b")
    assert told["compiled_in_window"]["message"].count("metrics") == native
    metrics = record["metrics"]
    assert metrics["ttft_p50_ms"]["value"] > 0
    assert metrics["prefill_fill_predicted_share"]["value"] == pytest.approx(0.5 if id != "H" else 64 / 1024)
    if native:
        assert told["device_executions"]["passed"] is True
        assert told["bucket_map"]["passed"] is True
        assert metrics["prefill_fill_counted_share"]["value"] == pytest.approx(0.5)
        assert 0 < metrics["useful_compute_share"]["value"] < 1
    else:
        assert metrics["useful_compute_share"]["value"] is None
        assert metrics["decode_fill_sampled_share"]["value"] > 0
    server = record["workload"]["server"]
    assert server["buckets"]["prefill"][-1] == 1024
    assert server["compile_cache"]["state"] == "cold"
    rows = parquet.read_table(run.folders[record["name"]] / record["tables"]["buckets"]).to_pylist()
    assert {row["input_tokens"] for row in rows} == {64}
    assert all(row["padding_tokens"] == row["bucket"] - 64 for row in rows)


def test_a_stack_of_the_wrong_generation_is_skipped_with_the_reason(tmp_path: Path, folder: Path) -> None:
    with stacked("inf2.xlarge", "2b", tmp_path) as box:
        run = Run(box, folder)
    assert run.returncode == 0, run.text
    assert not run.boots
    assert not run.measured
    assert "SDK 2.28" in " ".join(run.text.split())


def test_a_compile_in_the_window_makes_the_point_invalid_and_a_cap_marks_it(tmp_path: Path, folder: Path) -> None:
    with stacked("trn2.3xlarge", "2b", tmp_path) as box:
        environ = {"FAKE_VLLM_RECOMPILE_AFTER": "70", "FAKE_VLLM_COMPILE_S": "0.1", "FAKE_VLLM_KV_SEQS": "2"}
        run = Run(box, folder, environ, concurrency="4")
    assert run.returncode == 0, run.text
    (record,) = run.measured
    compiled = gates(record)["compiled_in_window"]
    assert compiled["passed"] is False
    assert set(compiled["observed"]) == {"modules", "log_compiles", "metrics"}
    assert record["validity"] == "invalid"
    assert "compiled_in_window" in run.text
    capped = gates(record)["effective_concurrency"]
    assert (capped["passed"], capped["severity"], capped["observed"], capped["limit"]) == (False, "provisional", 4, 2)
    assert record["workload"]["server"]["effective_concurrency"] == 2
