"""Workers that train on a made-up Neuron host, asked directly: what a run leaves, going on from it, exports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from neuronbench_neuron import cores
from neuronbench_neuron.backend import NeuronBackend
from neuronbench_neuron.training import provider as trainers
from training_boxes import furnish

from neuronbench import BackendInfo, ProviderInfo, config, processes
from neuronbench.model import FrozenMap, Json, Point
from neuronbench.protocols import BootContext, PointFailure
from neuronbench.testing.neuron import FakeBox
from neuronbench.testing.neuron.venvs import ENVIRON
from neuronbench.training import TrainJob, steps
from neuronbench.training.gates import escape_gate
from neuronbench.training.steps import Steps
from neuronbench.training.window import window_of
from neuronbench.worker.trainer import WorkerTrainer
from neuronbench.worker.training.steplog import NO_NUMBERS, StepLog

TINY: Mapping[str, Json] = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
BASE: Mapping[str, Any] = {
    "architecture": TINY, "weights": "seeded", "sequence_length": 64, "batch_size": 2, "accumulation": 2, "steps": 5,
    "learning_rate": 1e-2, "seed": 1, "holdout": 0.1,
}  # fmt: skip
ADAPTER: Mapping[str, Json] = {"r": 4, "alpha": 8.0, "dropout": 0.0, "targets": ["q_proj", "v_proj"]}


DEADLINE_S = 600.0
"""Of what takes half a minute on an idle host: several processes import torch."""


class Bench:
    """A box, its backend, and trainers that were booted on it."""

    def __init__(self, folder: Path, venv: Path) -> None:
        self.folder, self.venv = folder, venv
        info = BackendInfo(name="trn1", title="", target="", family="neuron")
        self.backend = NeuronBackend(info)
        found = config.load(folder)
        self.settings = dataclasses.replace(found, root=folder, cache_dir=folder / "cache")
        self.live: list[WorkerTrainer] = []

    def trainer(self, name: str, job: TrainJob, **more: Json) -> WorkerTrainer:
        kind = trainers.NxdProvider if name == "nxd" else trainers.OptimumProvider
        provider = kind(ProviderInfo(name=f"trainer/{name}", kind="trainer", families=("neuron",), target=""))
        given = {
            key: value for key, value in {**job.to_json(), "precompile": False, **more}.items() if value is not None
        }
        point = Point(benchmark="b.py::f", lane="pretrain", backend="trn1", params=FrozenMap(given), id="p")
        spec = provider.spec(point, self.backend, self.settings)
        assert provider.check(spec, self.backend, self.settings) is None
        folder = self.folder / f"boot-{len(self.live)}"
        folder.mkdir()
        context = BootContext(
            backend=self.backend, settings=self.settings, folder=folder, deadline_s=DEADLINE_S,
            progress=lambda text: None, spawn=partial(processes.spawn, pid_dir=self.folder / "pids"),
        )  # fmt: skip
        self.live.append(provider.boot(spec, context))
        return self.live[-1]


NATIVE = {"NEURONBENCH_FAKE_NATIVE": "1", "NEURONBENCH_FAKE_EXECUTION_MS": "300"}
"""Of ranks whose device is torch's own: its calls come back before the work is done, which takes longer than what the
host does meanwhile."""


def run(
    bench: Bench,
    trainer: WorkerTrainer,
    job: TrainJob,
    folder: Path,
    *,
    resume: bool = False,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Steps:
    """Train, and what a verified log of it says. The ranks start with the variables `environ`."""
    told = bench.venv / ENVIRON
    told.write_text(json.dumps(dict(environ)), encoding="utf-8")
    try:
        trainer.train(job, folder=folder, resume=resume, deadline_s=DEADLINE_S)
    finally:
        told.unlink()
    found = steps.read(folder)
    steps.verify(found, job)
    return found


def check_barrier(found: Steps, *, named: bool, caught: bool) -> None:
    """What a step has handed over is executed in the step, whoever has the device; where it is not, the rates are no
    result. `named`: torch's own barrier is among those that were called; `caught`: work has escaped the timers."""
    assert found.start["barrier"].endswith("torch.neuron.synchronize()") is named
    assert escape_gate(window_of(found)).passed is not caught


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("training")
    with FakeBox("trn1.2xlarge", folder / "box") as box, pytest.MonkeyPatch.context() as patch:
        venv = furnish(box)
        for name, value in box.environ().items():
            patch.setenv(name, value)
        made = Bench(folder, venv)
        yield made
        for trainer in made.live:
            trainer.stop()


def test_two_ranks_share_a_model_and_go_on_from_a_checkpoint(bench: Bench, tmp_path: Path) -> None:
    """At first the barrier is another device's, which is caught and does no harm to the losses."""
    job = TrainJob.from_json({**BASE, "method": "full_sft", "world_size": 2, "checkpoint_every": 2})
    trainer = bench.trainer("nxd", job)
    whole = run(bench, trainer, job, tmp_path / "run", environ={**NATIVE, "NEURONBENCH_FAKE_NATIVE": "hidden"})
    check_barrier(whole, named=False, caught=True)
    assert whole.losses[-1] < whole.losses[0]
    assert [one["step"] for one in whole.first.checkpoints] == [2, 4]

    # from the checkpoint of step 4 the last step is made again, with the same loss to the bit
    again = run(bench, trainer, job, tmp_path / "run", resume=True)
    assert again.resumed_from == 4
    assert again.losses == whole.losses[-1:]
    assert again.first.restores[0]["step"] == 4

    # what was left is the whole model: its hold-out loss on the host is that of the ranks on the device
    told = trainer.evaluate(job, folder=tmp_path / "run")
    (before, after) = whole.first.evaluations
    assert told["loss"] == pytest.approx(after["loss"], rel=1e-4)
    assert told["tokens"] == after["tokens"]
    assert after["loss"] < before["loss"]
    files = trainer.export(job, folder=tmp_path / "run", into=tmp_path / "out")["files"]
    assert "model.safetensors" in files
    assert "config.json" in files
    trainer.stop()


def test_an_adapter_is_joined_of_its_shards_and_a_barrier_that_lies_is_caught(bench: Bench, tmp_path: Path) -> None:
    job = TrainJob.from_json({**BASE, "method": "lora_sft", "adapter": ADAPTER, "checkpoint_every": 3})
    trainer = bench.trainer("optimum-neuron", job)
    found = run(bench, trainer, job, tmp_path / "run", environ={**NATIVE, "NEURONBENCH_FAKE_LAZY_BARRIER": "1"})
    check_barrier(found, named=True, caught=True)
    assert found.losses[-1] < found.losses[0]
    assert [one["step"] for one in found.first.checkpoints] == [3]
    told = trainer.evaluate(job, folder=tmp_path / "run")
    assert told["loss"] == pytest.approx(found.first.evaluations[-1]["loss"], rel=1e-4)
    adapter = trainer.export(job, folder=tmp_path / "run", into=tmp_path / "adapter", merged=False)["files"]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= adapter.keys()
    merged = trainer.export(job, folder=tmp_path / "run", into=tmp_path / "merged")
    assert merged["merged"] is True
    assert "model.safetensors" in merged["files"]

    described = trainer.describe(job)
    assert described["parameters"]["trainable"] == found.start["parameters"]["trainable"]
    with pytest.raises(PointFailure, match="refuse to go on from a checkpoint"):
        trainer.train(job, folder=tmp_path / "run", resume=True, deadline_s=DEADLINE_S)

    # what ended a rank is the failure, and not that torchrun ended
    with pytest.raises(PointFailure) as caught:
        run(bench, trainer, job, tmp_path / "elsewhere", environ={"NEURON_RT_VISIBLE_CORES": "9"})
    failure = caught.value.failure
    assert "Could not find VNC id 9" in f"{failure.causal_line} {failure.message}"
    assert "ChildFailedError" not in failure.causal_line

    # cores are given back with the trainer
    leased = trainer.core_ids  # type: ignore[attr-defined]
    assert leased == (0,)
    trainer.stop()
    host = bench.backend.found
    with cores.take([0, 1], host=host, owner="the test"):
        pass


def test_pipeline_stages_are_asked_of_the_library_and_the_loss_comes_from_the_last(
    bench: Bench, tmp_path: Path
) -> None:
    """And a device of torch's own is waited for."""
    job = TrainJob.from_json({**BASE, "method": "full_sft", "world_size": 2, "steps": 4, "holdout": 0.0})
    trainer = bench.trainer("optimum-neuron", job, pipeline_parallel_size=2)
    found = run(bench, trainer, job, tmp_path / "run", environ=NATIVE)
    check_barrier(found, named=True, caught=False)
    told = found.first.start["backend"]
    assert (told["pipeline_parallel_size"], told["tensor_parallel_size"], told["data_parallel_size"]) == (2, 1, 1)
    assert found.shards == {0: 0, 1: 0}  # both stages see the same batches, which count once
    assert 4.0 < found.losses[0] < 8.0  # near ln 320, of the last stage; what rank 0 has itself is zero
    assert found.losses[-1] < found.losses[0]
    trainer.stop()


def test_a_run_that_computes_nothing_cannot_leave_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_NUMBERS, "1")
    with pytest.raises(RuntimeError, match="its steps are no result"):
        StepLog(tmp_path)
    assert not list(tmp_path.iterdir())
