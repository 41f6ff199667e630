"""Accuracy and what stands on it, through pytest: with a real toy worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = """
import numpy as np
from neuronbench import accuracy

def samples(model, count=160):
    rows = np.random.default_rng(1).integers(1, 100, size=(count, 8))
    return accuracy.Samples(name="rows", inputs={"input_ids": rows, "attention_mask": np.ones_like(rows)})

@nb.bench(lane="encoder", params={"work_us": 2000})
def bench_accuracy(compiled_model, measure):
    measure.accuracy(compiled_model, samples(compiled_model), measure=accuracy.Tensors())

@nb.bench(lane="encoder", params={"work_us": 2000})
def bench_latency(compiled_model, measure):
    measure.latency(compiled_model, calls=1500)
"""


@pytest.fixture(autouse=True)
def own_process_and_cache(project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.in_process = False
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(project.path / "cache"))
    own_time = Path(__file__).parent.parent / "worker" / "own_time"
    monkeypatch.setenv("TOYS_OF_THEIR_OWN_TIME", str(own_time))  # a busy host is in no number, and spoils none


def test_speed_is_provisional_alone_and_valid_beside_accuracy_of_this_or_an_older_session(project) -> None:
    project.bench(BENCH)
    project.run("-m", "fake and encoder", "-k", "latency").assert_outcomes(passed=1)
    (alone,) = project.records()
    assert alone["validity"] == "provisional"
    assert alone["gates"][-1]["id"] == "accuracy_evidence"

    result = project.run("-m", "fake and encoder", "-v")
    result.assert_outcomes(passed=2)
    judged, beside = project.records()[1:]
    assert judged["metrics"]["agreement_share"]["value"] == 1
    assert judged["metrics"]["accuracy_ratio"]["n"] == 160
    assert beside["validity"] == "valid"
    assert beside["gates"][-1]["observed"] == f"{judged['session']}/{judged['name']}"

    project.run("-m", "fake and encoder", "-k", "latency").assert_outcomes(passed=1)
    later = project.records()[-1]
    assert later["validity"] == "valid"
    assert later["gates"][-1]["observed"] == f"{judged['session']}/{judged['name']}"
    assert project.records()[0] == alone


def test_accuracy_that_comes_later_counts_where_records_are_shown_and_rewrites_none(project) -> None:
    project.bench(BENCH.replace("bench_latency", "bench_a_latency").replace("bench_accuracy", "bench_z_accuracy"))
    speed, accuracy = ("bench_it.py::bench_a_latency", "bench_it.py::bench_z_accuracy")
    result = project.run("-m", "fake and encoder", speed, accuracy)
    result.assert_outcomes(passed=2)
    records = {record["name"].partition("-")[0]: record for record in project.records()}
    assert records["encoder.a_latency"]["validity"] == "provisional"
    result.stdout.fnmatch_lines(["*fake * ok *", "*valid by accuracy that was measured later: encoder.a_latency*"])
    assert "provisional: accuracy_evidence" not in result.stdout.str()
    listed = project.pytester.run(sys.executable, "-m", "neuronbench", "list")
    listed.stdout.fnmatch_lines(["*encoder*2 ok *"])
    listed = project.pytester.run(sys.executable, "-m", "neuronbench", "list", "--session", "last")
    assert "provisional" not in listed.stdout.str()
    listed.stdout.fnmatch_lines(["valid by accuracy that was measured later: encoder.a_latency*"])
