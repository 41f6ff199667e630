"""The provider of trainers on the CPU without any stack: what is refused before anything is started, what is shared."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from neuronbench import config, trainers
from neuronbench.backends.cpu import trainer as cpu
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.plugins import Plugins
from neuronbench.worker.training.order import order, shard

TINY: Mapping[str, Json] = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
BASE: Mapping[str, Json] = {
    "method": "lora_sft", "steps": 4, "architecture": TINY, "weights": "seeded", "sequence_length": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return Plugins(entry_points=False)


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return dataclasses.replace(config.load(tmp_path), root=tmp_path)


def spec(plugins: Plugins, settings: config.Settings, **params: Any) -> ResourceSpec:
    given = {name: value for name, value in {**BASE, **params}.items() if value is not None}
    point = Point(benchmark="b.py::f", lane="lora_sft", backend="cpu", params=FrozenMap(given), id="p")
    return plugins.provider("trainer/trl-cpu").spec(point, plugins.backend("cpu"), settings)


def refusal(plugins: Plugins, settings: config.Settings, **params: Any) -> str:
    made = spec(plugins, settings, **params)
    verdict = plugins.provider("trainer/trl-cpu").check(made, plugins.backend("cpu"), settings)
    assert verdict is not None
    return verdict.reason


def test_it_is_what_a_trainer_on_the_cpu_is(plugins: Plugins) -> None:
    found = plugins.provider_for("trainer", "cpu")
    assert found is not None
    assert found.name == "trainer/trl-cpu"


def test_jobs_that_need_the_same_trainer_share_it(plugins: Plugins, settings: config.Settings) -> None:
    one = spec(plugins, settings)
    assert trainers.REFUSED not in one.settings
    other = spec(
        plugins, settings, steps=99, learning_rate=1.0, seed=7, sequence_length=32, method="full_sft", batch_size=4,
        dataset="synthetic:3", checkpoint_every=2,
    )  # fmt: skip
    assert other.key == one.key
    for change in ({"dtype": "bfloat16"}, {"weights_seed": 1}, {"architecture": {**TINY, "hidden_size": 32}}):
        assert spec(plugins, settings, **change).key != one.key


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"method": "magic"}, "method: expected lora_sft"),
        ({"steps": None}, "steps: a training job needs one"),
        ({"learning_rat": 1e-3}, "'learning_rat' is no setting of a training job"),
        ({"sequence_length": 300}, "sequence_length 300 is above the 256 tokens"),
        ({"architecture": {**TINY, "num_attention_heads": 5}}, "hidden_size 64 is not a multiple of 5 heads"),
        ({"architecture": {**TINY, "num_key_value_heads": 3}}, "4 heads cannot share 3"),
        ({"architecture": {**TINY, "vocab_size": 100}}, "vocab_size: text is taken as bytes"),
        ({"architecture": {"hidden_size": 64}}, "expected a table with model_type"),
        ({"world_size": 100_000}, "world_size: 100000 ranks are asked for"),
        ({"threads": 100_000}, "1 ranks of 100000 threads"),
        ({"dtype": "float16"}, "dtype: expected one of float32, bfloat16 on the CPU"),
        ({"optimizer": "adamm"}, "optimizer: expected one of adamw"),
        ({"dataset": "builtin:nothing"}, "data set 'builtin:nothing' is not known"),
        ({"dataset": "file:nowhere.jsonl"}, "there is no file"),
        ({"dataset": "builtin:preferences"}, "lora_sft learns from instructions or text"),
        ({"worker_env": 3}, "worker_env: expected a table"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    plugins: Plugins, settings: config.Settings, params: dict[str, Any], said: str
) -> None:
    assert said in refusal(plugins, settings, **params)


def test_a_model_that_takes_less_is_known_beforehand(plugins: Plugins, settings: config.Settings) -> None:
    model = {"architecture": None, "weights": None, "model": "packaged:SmolLM2-135M-Instruct"}
    assert "is above the 8192 tokens" in refusal(plugins, settings, **model, sequence_length=9000)


def test_a_file_is_looked_at_again_when_it_has_changed(plugins: Plugins, settings: config.Settings) -> None:
    path = settings.root / "own.jsonl"
    path.write_text('{"instruction": "a"}\n', encoding="utf-8")
    assert "are of no known form" in refusal(plugins, settings, dataset="file:own.jsonl")
    path.write_text('{"instruction": "a", "response": "b"}\n', encoding="utf-8")
    os.utime(path, ns=(1, 1))
    made = spec(plugins, settings, dataset="file:own.jsonl")
    assert trainers.REFUSED not in made.settings
    assert made.settings["dataset"] == "file:own.jsonl"


def test_a_stack_that_cannot_train_is_refused(plugins: Plugins, settings: config.Settings) -> None:
    reason = refusal(plugins, dataclasses.replace(settings, stacks={"train": str(settings.root)}))
    assert "train" in reason


def test_no_tracking_reaches_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    env = trainers.environment(FrozenMap(worker_env={"OWN": 3}), tmp_path, 1)
    assert not [name for name in env if name.startswith("MLFLOW")]
    assert env["DISABLE_MLFLOW_INTEGRATION"] == "TRUE"
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["OWN"] == "3"


def test_a_peak_says_what_it_is(plugins: Plugins) -> None:
    assert cpu.peak("float32").flops == 64 * 6e9
    assert "not a measurement" in cpu.peak("float32").source
    assert cpu.peak("float32").bound
    assert len(cpu.peak("bfloat16").date) == len("2025-01-01")


def test_the_order_is_a_permutation_each_epoch_and_ranks_share_a_step() -> None:
    seen = order(1, 10, 25)
    assert sorted(seen[:10]) == sorted(seen[10:20]) == list(range(10))
    assert seen[:10] != seen[10:20]
    assert order(1, 10, 12) == seen[:12]
    assert order(2, 10, 25) != seen
    whole = list(range(24))
    shares = [shard(whole, rank=rank, world_size=2, batch_size=2) for rank in range(2)]
    assert shares[0][:4] == [0, 1, 4, 5]
    assert shares[1][:4] == [2, 3, 6, 7]
    # A step of one rank that accumulates two batches holds what two ranks hold together.
    assert sorted(shares[0][:2] + shares[1][:2]) == shard(whole, rank=0, world_size=1, batch_size=2)[:4]
    with pytest.raises(ValueError, match="cannot be shared"):
        shard(whole[:5], rank=0, world_size=2, batch_size=2)
    with pytest.raises(ValueError, match="at least one"):
        order(1, 0, 3)
