"""`pytest benchmarks/encoder` on made-up Neuron hosts, as users run it: receipts, accuracy, profiles, no compile twice.

The hosts share a cache of artifacts: what was compiled on one is used on the other exactly where target, generation of
cores and grouping are the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lean_stack import SESSION
from neuron_boxes import PROJECT, stacked

from neuronbench.testing.neuron import FakeBox, neuron_profiler

SHAPES = ("inf2.xlarge", "trn1.2xlarge", "trn1.32xlarge", "trn2.3xlarge")
"""Each target, and a host that may use what another has compiled."""
BENCHMARK = PROJECT / "benchmarks" / "encoder" / "bench_classification.py"
DEADLINE_S = 800


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=SHAPES)
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeBox]:
    with FakeBox(request.param, tmp_path / "box") as made:
        stacked(made)
        yield made


def run(
    box: FakeBox, cache: Path, data: Path, *words: str, **env: str
) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """The quick grid of classifiers; its records."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", BENCHMARK, "-m", box.shape.instance.family, *SESSION, "-q",
            "--nb-data-root", data, "--nb-tracking-uri", "off", "--nb-set", "calls=60",
            "--nb-set", "sequence_length=16", *words,
        ],
        env=box.environ(NEURONBENCH_CACHE_DIR=str(cache), **env), cwd=PROJECT, capture_output=True, text=True,
        timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    records = [json.loads(path.read_text()) for path in sorted((data / "receipts").rglob("record.json"))]
    return done, records


def named(records: list[Any], word: str) -> Any:
    (found,) = [record for record in records if word in record["point"]["id"]]
    return found


def targets(cache: Path) -> list[Any]:
    """For what the artifacts of a cache were made."""
    return [json.loads(path.read_text())["parts"]["target"] for path in (cache / "artifacts").glob("*/artifact.json")]


def test_a_compiled_model_is_executed_by_the_profiler_when_its_point_has_ended(cache: Path, tmp_path: Path) -> None:
    data, compiled_before = tmp_path / "data", any(target["target"] == "inf2" for target in targets(cache))
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        stacked(box)
        neuron_profiler.install(box)
        done, records = run(box, cache, data, "-k", "not accuracy", "--nb-profile")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (record,) = [each for each in records if each["kind"] == "point" and each["outcome"] != "skipped"]
    boot = named(records, "compile-")
    gates = {gate["id"]: gate for gate in record["gates"]}
    assert (record["outcome"], record["validity"]) == ("ok", "invalid")
    assert "executed its NEFFs once more" in gates["profiled"]["message"]
    assert boot["metrics"]["cache_hits_artifacts"]["value"] == compiled_before
    assert "profiled" not in {gate["id"] for gate in boot["gates"]}  # it was compiled without the profiler
    told = record["workload"]["profile"]
    (trace,) = told["traces"]
    assert (trace["mode"], trace["execution"], trace["graph"]) == ("capture", 2, "model")
    assert trace["metrics"]["mfu_estimated_percent"] == 0.1045
    assert trace["metrics"]["total_time"] == 0.003
    (folder,) = data.glob("receipts/*/*/profile")
    assert json.loads((folder.parent / "record.json").read_text()) == record
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.neff", "model.ntff"]
    neff = boot["resource"]["facts"]["neuron"]["neff"]["model"]
    assert (folder / "model.neff").stat().st_size == neff["bytes"]
    assert set(record["attachments"]) >= {"profile/model.json", "profile/model.neff", "profile/model.ntff"}


def test_an_encoder_is_compiled_checked_and_timed_on_every_shape(box: FakeBox, cache: Path, tmp_path: Path) -> None:
    instance, before = box.shape.instance, targets(cache)
    mine = {"target": instance.compiler_target, "core": instance.core_version, "lnc": box.shape.logical_core_config}
    done, records = run(box, cache, tmp_path / "data")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "simulated" in done.stdout
    assert [record["provenance"] for record in records] == ["simulated"] * 3
    boot = named(records, "compile-")
    accuracy, speed = named(records, "classification_accuracy"), named(records, "classification-")
    assert accuracy["outcome"] == speed["outcome"] == boot["outcome"] == "ok"
    assert accuracy["metrics"]["accuracy_ratio"]["value"] == 1
    assert accuracy["validity"] == "valid"
    gates = {gate["id"]: gate["passed"] for gate in speed["gates"]}
    assert gates["timer_escapes_device"] is gates["implausible"] is gates["accuracy_evidence"] is True
    assert speed["metrics"]["latency_p50_ms"]["value"] > 0
    told = boot["resource"]["facts"]["neuron"]
    assert {"target": told["target"], "core": told["core_version"], "lnc": told["logical_core_config"]} == mine
    grouped = [flag for flag in told["compiler_arguments"] if flag.startswith("--logical-nc-config")]
    assert grouped == (["--logical-nc-config=2"] if instance.family == "trn2" else [])
    assert boot["metrics"]["cache_hits_artifacts"]["value"] == (mine in before)
    assert targets(cache).count(mine) == 1


def test_the_second_run_compiles_nothing_and_a_wrong_answer_is_not_quoted(cache: Path, tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        stacked(box)
        if not any(target["target"] == "inf2" for target in targets(cache)):  # this test runs alone
            run(box, cache, tmp_path / "first")
        before = targets(cache)
        done, records = run(box, cache, tmp_path / "wrong", NEURONBENCH_FAKE_WRONG="-1")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "compiles: nothing was compiled, 1 from the cache" in done.stdout
    assert targets(cache) == before
    boot = named(records, "compile-")
    assert boot["metrics"]["compile_time_cold_s"]["value"] is None
    assert boot["metrics"]["compile_stage_compile_s"]["value"] is None
    accuracy, speed = named(records, "classification_accuracy"), named(records, "classification-")
    assert accuracy["validity"] == speed["validity"] == "invalid"  # fast, and the labels are the other ones
    assert accuracy["metrics"]["agreement_share"]["value"] < 0.5
