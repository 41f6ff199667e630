"""Training on this CPU by real trl, peft and transformers: models of two layers with seeded weights.

Needs a stack (`make stack`) with trl and peft, else it is skipped with the reason (see `trainer_rig.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from trainer_rig import BASE, RUN_S, Rig, job, rigged

from neuronbench import datasets
from neuronbench.model import Json
from neuronbench.protocols import PointFailure, Trainer
from neuronbench.training import TrainJob, steps
from neuronbench.training.steps import Steps
from neuronbench.worker.handlers.training.launch import after_the_end
from neuronbench.worker.training.order import order


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, workers_inherit: None) -> Iterator[Rig]:
    yield from rigged(tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="module")
def lora(rig: Rig) -> tuple[Steps, Path]:
    """A run that several tests look at."""
    return rig.run(job(), "lora")


def test_a_run_says_what_was_trained_and_how_it_was_timed(rig: Rig, lora: tuple[Steps, Path]) -> None:
    found, folder = lora
    trainer = rig.trainer(job())
    assert isinstance(trainer, Trainer)
    assert "synchronous" in found.start["barrier"]
    # 64 wide, rank 4 on queries (64 → 64) and values (64 → 32) of two layers
    adapter = 2 * (4 * (64 + 64) + 4 * (64 + 32))
    told = found.start["parameters"]
    assert told["trainable"] == told["optimizer"] == adapter
    assert told["total"] == told["trainable"] + told["frozen"]
    assert (told["layers"], told["hidden"], told["heads"], told["vocabulary"]) == (2, 64, 4, 320)
    assert told["embedding"] == 320 * 64
    assert told["adapter"] is told["tied"] is True
    assert trainer.describe(job())["parameters"] == {**told, "optimizer": None}
    assert trainer.describe(job())["init_digest"] == found.start["init_digest"]
    assert found.first.end is not None
    assert found.first.end["final_digest"] != found.start["init_digest"]
    assert list((folder / "final").glob("adapter_model.safetensors"))
    assert trainer.facts["worker"]["import_s"] > 0
    assert [metric.key for metric in trainer.boot_metrics] == ["load_time_s"]
    assert found.losses[-1] < found.losses[0]
    before, after = found.first.evaluations
    assert (before["step"], after["step"]) == (0, 6)
    assert after["loss"] < before["loss"]
    again = trainer.evaluate(job(), folder=folder)
    assert again["loss"] == pytest.approx(after["loss"], rel=1e-6)
    assert again["tokens"] == after["tokens"] == before["tokens"]


def test_tokens_are_those_of_the_batches_and_padding_is_apart(rig: Rig, lora: tuple[Steps, Path]) -> None:
    packed = lora[0]
    assert set(packed.column("tokens")) == {2 * 2 * 64}
    assert set(packed.column("padding_tokens")) == {0}
    assert set(packed.column("micro_batches")) == {2}
    wanted = job(packing=False, sequence_length=200, holdout=0.0, accumulation=1)
    found, _ = rig.run(wanted)
    lengths = plain_lengths()
    seen = order(wanted.seed, len(lengths), 6 * 2)
    counted = [sum(min(lengths[index], 200) for index in seen[at : at + 2]) for at in range(0, 12, 2)]
    assert list(found.column("tokens")) == counted
    assert list(found.column("padding_tokens")) == [2 * 200 - count for count in counted]
    assert found.start["dataset"]["consumed"]["tokens"] == sum(counted)


def plain_lengths() -> list[int]:
    """Bytes of each example of the set of instructions in the words that are used without a chat template, and an end;
    without those whose answer begins after the 200th."""
    data = datasets.find("builtin:instructions")
    lengths = []
    for row in datasets.read(data):
        asked = row["instruction"] + (f"\n\n{row['context']}" if row.get("context") else "")
        prompt = f"### Question\n{asked}\n\n### Answer\n"
        if len(prompt.encode()) < 200:
            lengths.append(len((prompt + row["response"]).encode()) + 1)
    return lengths


def test_the_same_seed_gives_the_same_losses_to_the_bit_and_another_others(rig: Rig, lora: tuple[Steps, Path]) -> None:
    first = lora[0]
    again, _ = rig.run(job())
    assert again.losses == first.losses
    assert again.column("grad_norm").tolist() == first.column("grad_norm").tolist()
    assert again.first.end is not None
    assert first.first.end is not None
    assert again.first.end["final_digest"] == first.first.end["final_digest"]
    other, _ = rig.run(job(seed=2))
    assert other.losses != first.losses
    assert other.start["init_digest"] != first.start["init_digest"]  # the adapter begins elsewhere


def test_what_is_held_out_is_never_trained_on(rig: Rig, lora: tuple[Steps, Path]) -> None:
    wanted = job(packing=False, sequence_length=128)
    told = rig.trainer(wanted).prepare(wanted)
    folder = rig.settings.cache_dir / "training" / "data" / told["key"]
    rows = {
        name: {bytes(row) for row in np.load(folder / f"{name}.npz")["ids"]} for name in ("train", "holdout")
    }  # fmt: skip
    assert len(rows["holdout"]) == told["holdout_sequences"] > 10
    assert not rows["train"] & rows["holdout"]
    assert told["examples"] + told["holdout_examples"] == 179
    # The same examples whatever the seed of the training is, so that seeds compare on the same set.
    assert rig.trainer(wanted).prepare(wanted.changed(seed=99))["holdout_digest"] == told["holdout_digest"]
    assert rig.trainer(wanted).prepare(wanted)["cached"] is True
    train, holdout = (rig.trainer(job()).evaluate(job(), folder=lora[1], split=name) for name in ("train", "holdout"))
    assert train["tokens"] > 5 * holdout["tokens"]


@pytest.mark.parametrize("method", ["full_sft", "pretrain"])
def test_all_weights_are_trained(rig: Rig, method: str) -> None:
    wanted = job(method=method, adapter=None)
    found, folder = rig.run(wanted)
    told = found.start["parameters"]
    assert told["trainable"] == told["total"] == told["optimizer"]
    assert told["frozen"] == 0
    assert found.losses[-1] < found.losses[0] - 1
    assert found.start["dataset"]["loss_on"] == ("all tokens" if method == "pretrain" else "answers")
    exported = rig.trainer(wanted).export(wanted, folder=folder, into=folder / "out")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= exported["files"].keys()


@pytest.mark.parametrize(
    ("method", "adapter"), [("dpo", BASE["adapter"]), ("dpo", None), ("orpo", BASE["adapter"]), ("orpo", None)]
)
def test_preferences_are_learnt(rig: Rig, method: str, adapter: Any) -> None:
    found, _ = rig.run(job(method=method, adapter=adapter, dataset="builtin:preferences", sequence_length=128))
    assert found.losses[-1] < found.losses[0] - 0.05
    if method == "dpo":
        assert found.losses[0] == pytest.approx(math.log(2), abs=1e-4)  # nothing is preferred yet
    assert set(found.column("sequences")) == {8}  # two micro-batches of two pairs
    assert found.first.evaluations[-1]["loss"] > 0
    held = found.first.evaluations
    assert all(0 <= entry["preferred"] <= 1 for entry in held)
    if method == "dpo":
        assert held[-1]["preferred"] >= held[0]["preferred"]


def test_synthetic_data_has_the_shapes_of_real_data(rig: Rig, lora: tuple[Steps, Path]) -> None:
    found, _ = rig.run(job(dataset="synthetic:7"))
    for column in ("tokens", "padding_tokens", "sequences", "micro_batches"):
        assert found.column(column).tolist() == lora[0].column(column).tolist()
    assert found.start["parameters"] == lora[0].start["parameters"]
    assert found.start["dataset"]["digest"] != rig.trainer(job()).prepare(job(dataset="synthetic:8"))["digest"]


def test_recompute_changes_nothing_but_what_is_kept(rig: Rig) -> None:
    plain, _ = rig.run(job(steps=2, holdout=0.0))
    again, _ = rig.run(job(steps=2, holdout=0.0, recompute=True))
    assert again.start["recompute"] is True
    assert again.losses == pytest.approx(plain.losses, rel=1e-5)


def test_a_loss_that_is_not_finite_ends_the_run_unless_told_otherwise(rig: Rig) -> None:
    wild = {"method": "full_sft", "adapter": None, "learning_rate": 1e30, "holdout": 0.0, "steps": 5}
    found, folder = rig.run(job(**wild))
    assert found.reason == "non_finite"
    assert found.first_bad == found.numbers[-1] < 5
    assert not (folder / "final").exists()  # nothing that could be taken for a result
    told = job(**wild, on_non_finite="continue")
    folder = rig.folder / "wild"
    rig.trainer(told).train(told, folder=folder, deadline_s=RUN_S)
    assert steps.read(folder).numbers == [1, 2, 3, 4, 5]


def test_checkpoints_are_sealed_and_the_run_goes_on_from_them(rig: Rig) -> None:
    wanted = job(checkpoint_every=2, steps=5, adapter={**BASE["adapter"], "dropout": 0.3})
    whole, folder = rig.run(wanted, "whole")
    assert [entry["step"] for entry in whole.first.checkpoints] == [2, 4]
    for entry in whole.first.checkpoints:
        told = json.loads((folder / "checkpoints" / f"checkpoint-{entry['step']}" / "neuronbench.json").read_text())
        assert (told["digest"], told["bytes"], told["job"]) == (entry["digest"], entry["bytes"], wanted.digest)
        assert entry["end_ns"] > entry["begin_ns"]
    again, _ = rig.run(wanted, "whole", resume=True)
    assert again.resumed_from == 4
    assert again.numbers == [5]
    assert again.losses == whole.losses[4:]
    assert again.first.restores[0]["step"] == 4
    assert again.start["init_digest"] == whole.start["init_digest"]
    # What was written is what must be read: another byte, and nothing goes on from it.
    broken = folder / "checkpoints" / "checkpoint-4" / "adapter_model.safetensors"
    content = bytearray(broken.read_bytes())
    content[-1] ^= 1
    broken.write_bytes(content)
    with pytest.raises(PointFailure, match="expected SHA-256"):
        rig.run(wanted, "whole", resume=True)


def test_a_run_killed_in_the_middle_goes_on_with_the_same_losses(rig: Rig) -> None:
    wanted = job(checkpoint_every=3, steps=40, holdout=0.0, accumulation=1)
    whole, _ = rig.run(wanted)
    trainer = rig.trainer(wanted)
    pid = trainer.pids()[0]

    def watch(entry: Mapping[str, Json]) -> None:
        if entry["kind"] == "checkpoint":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    folder = rig.folder / "killed"
    with pytest.raises(PointFailure) as caught:
        trainer.train(wanted, folder=folder, watch=watch, deadline_s=RUN_S)
    assert "SIGKILL" in caught.value.failure.message
    cut = steps.read(folder)
    assert not cut.complete
    with pytest.raises(steps.StepLogError, match="cut off"):
        steps.verify(cut, wanted)
    again, _ = rig.run(wanted, "killed", resume=True)
    assert again.resumed_from >= 3
    assert again.losses == whole.losses[again.resumed_from :]
    assert again.first.end is not None
    assert whole.first.end is not None
    assert again.first.end["final_digest"] == whole.first.end["final_digest"]


def test_what_is_exported_is_the_base_with_its_adapter(rig: Rig, lora: tuple[Steps, Path]) -> None:
    trainer, into = rig.trainer(job()), rig.folder / "exported"
    told = trainer.export(job(), folder=lora[1], into=into)
    assert told["merged"] is True
    for name, entry in told["files"].items():
        content = (into / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert len(content) == entry["bytes"]
    # The folder as a model of its own, evaluated on the same rows: as base and adapter together.
    alone = TrainJob.from_point({**BASE, "adapter": None, "method": "full_sft"})
    kept = rig.folder / "alone"
    kept.mkdir()
    (kept / "final").symlink_to(into)
    merged = trainer.evaluate(alone, folder=kept)
    apart = trainer.evaluate(job(), folder=lora[1])
    assert merged["tokens"] == apart["tokens"]
    assert merged["loss"] == pytest.approx(apart["loss"], rel=1e-5)
    only = trainer.export(job(), folder=lora[1], into=rig.folder / "adapter", merged=False)
    assert "adapter_model.safetensors" in only["files"]
    assert "model.safetensors" not in only["files"]


def test_no_library_logs_to_mlflow_by_itself(rig: Rig, lora: tuple[Steps, Path]) -> None:
    trainer, fakes = rig.trainer(job()), rig.folder / "fakes"
    # Were it not for our settings, transformers would use what it finds: the fake is a witness that sees something.
    code = (
        "import sys; sys.modules['torch'] = None\n"  # not looked for: what is asked does not need it
        "from transformers.integrations import is_mlflow_available as a; print(a()); import mlflow; mlflow.start_run"
    )
    python = trainer.facts["stack"]["python"]
    done = subprocess.run(
        [python, "-c", code], env={**os.environ, "PYTHONPATH": str(fakes)}, capture_output=True, text=True, timeout=120
    )
    assert "True" in done.stdout
    used = fakes / "mlflow" / "used.txt"
    assert used.read_text(encoding="utf-8").startswith("start_run")
    used.unlink()
    rig.run(job(steps=2))
    rig.run(job(steps=2, method="orpo", dataset="builtin:preferences"))
    assert not used.exists()
    for folder in (trainer.logs[0].parent, lora[1]):
        assert not [path for path in folder.rglob("*") if path.name in ("mlruns", "mlflow.db", "wandb", "runs")]
    rig.trainer(job()).export(job(), folder=lora[1], into=rig.folder / "quiet")
    assert not used.exists()


def test_mistakes_are_answered_and_the_worker_lives_on(rig: Rig, lora: tuple[Steps, Path]) -> None:
    trainer = rig.trainer(job())
    with pytest.raises(PointFailure, match="does not fill one sequence"):
        trainer.prepare(job(dataset_limit=1, holdout=0.0, sequence_length=256))
    with pytest.raises(PointFailure, match="weights_seed: this trainer was started with 0"):
        trainer.prepare(job(weights_seed=5))
    with pytest.raises(PointFailure, match="is empty: give the job a share"):
        trainer.evaluate(job(holdout=0.0), folder=lora[1])
    with pytest.raises(PointFailure, match="holds no trained state"):
        trainer.export(job(), folder=rig.folder / "nowhere", into=rig.folder / "nothing")
    assert trainer.alive()


def test_two_ranks_from_the_same_start_have_the_losses_of_one(rig: Rig) -> None:
    alike = {"method": "pretrain", "adapter": None, "steps": 3, "batch_size": 2}
    one, _ = rig.run(job(**alike, accumulation=2))
    wanted = job(**alike, accumulation=1, world_size=2)
    if rig.plugins.provider("trainer/trl-cpu").check(
        rig.spec(wanted), rig.plugins.backend("cpu"), rig.settings
    ):  # fmt: skip
        pytest.skip("one core")
    two, _ = rig.run(wanted)
    assert two.world_size == 2
    assert two.shards == {0: 0, 1: 1}
    assert two.start["init_digest"] == one.start["init_digest"]
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert sum(two.column("tokens")) + sum(two.column("tokens", 1)) == sum(one.column("tokens"))
    assert {log.end["final_digest"] for log in two.ranks if log.end} == {
        two.first.end and two.first.end["final_digest"]
    }
    assert two.first.evaluations[-1]["loss"] == pytest.approx(one.first.evaluations[-1]["loss"], rel=1e-4)


CRASH = """
import atexit, os, pathlib
if os.environ.get("RANK") == "1" and pathlib.Path(__file__).with_name("crash").exists():
    atexit.register(os.abort)
"""


def test_a_rank_that_crashes_when_all_is_done_takes_nothing_back(rig: Rig) -> None:
    wanted = job(method="pretrain", adapter=None, steps=1, world_size=2, holdout=0.0)
    if "refused" in rig.spec(wanted).settings:
        pytest.skip("one core")
    (rig.folder / "fakes" / "sitecustomize.py").write_text(CRASH, encoding="utf-8")
    (rig.folder / "fakes" / "crash").touch()
    try:
        run, folder = rig.run(wanted)
    finally:
        (rig.folder / "fakes" / "crash").unlink()
    assert len(run.losses) == 1
    assert after_the_end(folder) == ["rank 1: ended by SIGABRT"]


def test_ranks_end_with_their_worker(rig: Rig) -> None:
    wanted = job(method="pretrain", adapter=None, steps=100_000, world_size=2, holdout=0.0)
    if "refused" in rig.spec(wanted).settings:
        pytest.skip("one core")
    trainer = rig.trainer(wanted)
    worker = psutil.Process(trainer.pids()[0])
    children: list[psutil.Process] = []

    def watch(entry: Mapping[str, Json]) -> None:
        if entry["kind"] == "step" and not children:
            children.extend(worker.children(recursive=True))
            worker.kill()

    with pytest.raises(PointFailure):
        trainer.train(wanted, folder=rig.folder / "ranks", watch=watch, deadline_s=RUN_S)
    assert len(children) >= 3  # torchrun and two ranks
    until = time.monotonic() + 30
    while any(child.is_running() and child.status() != "zombie" for child in children):
        assert time.monotonic() < until, "a rank outlived its worker"
        time.sleep(0.05)
