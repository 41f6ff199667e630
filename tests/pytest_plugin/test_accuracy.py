"""Accuracy and what stands on it, through pytest: with a real toy worker."""

from __future__ import annotations

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
    measure.latency(compiled_model, calls=700)
"""


@pytest.fixture(autouse=True)
def own_process_and_cache(project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.in_process = False
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(project.path / "cache"))


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
