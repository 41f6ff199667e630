"""The families of models with a real torch: what they build, and one of them compiled and timed.

Needs a stack (`make stack`) with torch, else it is skipped with the reason. `NEURONBENCH_TEST_STACK` names one to use
instead of `.venv-cpu` beside the project. What is compiled stays in the user's own cache: it is what the quick grids
compile, too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench import config, grid, measure_device, measure_gates, measure_items, processes
from neuronbench.model import Point, ResourceSpec
from neuronbench.plugins import Plugins
from neuronbench.protocols import BootContext
from neuronbench.worker.compiled import COMMON_HANDLERS, WorkerModel

PROJECT = Path(__file__).parent.parent.parent
BOOT_S = 280.0


@dataclasses.dataclass
class Rig:
    """A provider with a real stack."""

    folder: Path
    plugins: Plugins
    settings: config.Settings

    def spec(self, name: str) -> ResourceSpec:
        """Of the only point of a quick grid."""
        (point,) = grid.load(PROJECT / "benchmarks" / "grids" / f"{name}.toml").expand("cpu", "quick")
        made = Point(benchmark="b", lane=name.partition("/")[0], backend="cpu", params=point.params, id="p")
        return self.plugins.provider("compiled_model/aoti-cpu").spec(made, self.plugins.backend("cpu"), self.settings)

    def boot(self, name: str) -> WorkerModel:
        folder = self.folder / name.replace("/", "-")
        folder.mkdir()
        context = BootContext(
            backend=self.plugins.backend("cpu"), settings=self.settings, folder=folder, deadline_s=BOOT_S,
            progress=lambda text: None, spawn=partial(processes.spawn, pid_dir=self.folder / "pids"),
        )  # fmt: skip
        spec = self.spec(name)
        model = self.plugins.provider(spec.provider).boot(spec, context)
        assert isinstance(model, WorkerModel)
        return model


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, workers_inherit: None) -> Rig:
    stack = os.environ.get("NEURONBENCH_TEST_STACK")
    folder = tmp_path_factory.mktemp("lanes")
    settings = config.load(PROJECT, overrides={"stacks": {"any": stack} if stack else {}})
    made = Rig(folder, Plugins(entry_points=False), dataclasses.replace(settings, data_root=folder))
    spec = made.spec("seq2seq/latency")
    unsupported = made.plugins.provider(spec.provider).check(spec, made.plugins.backend("cpu"), made.settings)
    if unsupported is not None:
        pytest.skip(unsupported.reason)
    return made


@pytest.fixture(scope="module")
def eager(rig: Rig) -> dict[str, Any]:
    """What the families build, looked at inside the stack."""
    python = rig.plugins.backend("cpu").stack("compile", rig.settings).python
    script = Path(__file__).with_name("lanes_in_stack.py")
    done = subprocess.run(
        [python, script, COMMON_HANDLERS / "families"], capture_output=True, text=True, timeout=180,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_steps_are_those_of_the_model_without_a_cache_and_of_its_own_generate(eager: Any) -> None:
    for name in ("seq2seq", "asr"):
        found = eager[name]
        assert found["tokens"] == found["stepped"], name
        assert len({token for row in found["tokens"] for token in row}) > 1  # else any loop would do
        assert found["error"] < 1e-3
        assert found["calls"] == 5  # the first of six tokens is the prefill's
    assert eager["seq2seq"]["generated"] == eager["seq2seq"]["tokens"]
    assert eager["seq2seq"]["per_item"] == {"input_tokens": 12, "output_tokens": 6}
    assert eager["asr"]["per_item"] == {"audio_s": 1.0, "output_tokens": 6}


def test_the_spectrogram_in_the_graph_is_whispers_own(eager: Any) -> None:
    assert eager["log_mel"]["shape"] == [2, 80, 100]
    assert eager["log_mel"]["error"] < 1e-4


def test_images_and_texts_become_scores_and_vectors_of_length_1(eager: Any) -> None:
    assert eager["classifier"]["shape"] == [2, 3]
    assert eager["classifier"]["architecture"] == "ViTForImageClassification"
    for task in ("clip_image", "clip_text"):
        assert eager[task]["norms"] == pytest.approx([1.0, 1.0], abs=1e-5)
        assert eager[task]["shape"] == [2, 16]
    assert eager["clip_text"]["error"] < 1e-5


def test_an_embedding_is_the_mean_of_the_real_tokens(eager: Any) -> None:
    assert eager["embedding"]["error"] < 1e-5
    assert eager["embedding"]["pooling"] == "mean"


@pytest.fixture(scope="module")
def t5(rig: Rig) -> Iterator[WorkerModel]:
    model = rig.boot("seq2seq/latency")
    yield model
    model.stop()


def test_t5_compiled_generates_what_the_reference_generates(t5: WorkerModel) -> None:
    artifact = t5.facts["artifact"]
    assert artifact["model"]["architecture"] == "T5ForConditionalGeneration"
    assert {metric.key: metric.value for metric in t5.boot_metrics}["graphs_graphs"] == 2
    assert sorted(artifact["sha256"]) == ["prefill.pt2", "step.pt2"]
    assert t5.facts["weights"] == "random (seed 0)"
    assert t5.facts["per_item"] == {"input_tokens": 32, "output_tokens": 16}
    batches = [t5.batch(seed=seed, lengths=[32 - 9 * seed]) for seed in (0, 1)]
    for batch, wanted in zip(batches, t5.references(batches), strict=True):
        answers = t5.outputs(batch)  # the second time on caches that the first has written to
        assert answers["tokens"].shape == (1, 16)
        assert np.array_equal(answers["tokens"], wanted["tokens"])
        assert np.abs(answers["scores"] - wanted["scores"]).max() < 1e-3 * np.abs(wanted["scores"]).max()
    error = t5.mask_error()
    assert error is not None
    assert error < 1e-4


def test_its_loops_pass_the_gates_and_give_tokens(t5: WorkerModel) -> None:
    run = t5.latency(calls=20, warmup=2)
    assert {gate.id: gate.passed for gate in measure_gates.run_gates(run, t5)} == {
        "timer_escapes_device": True, "implausible": True,
    }  # fmt: skip
    measured = measure_device.latency_metrics(run)
    found = {metric.key: metric.value for metric in measure_items.derived(run, t5, measured)}
    p50 = {metric.key: metric.value for metric in measured}["latency_p50_ms"]
    assert found["latency_per_token_p50_ms"] == pytest.approx(p50 / 48)
    assert found["latency_per_output_token_p50_ms"] == pytest.approx(p50 / 16)
