"""What trainers on Neuron refuse before anything starts, and what a point's parameters become."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from neuronbench_neuron.backend import NeuronBackend
from neuronbench_neuron.training import provider as trainers
from neuronbench_neuron.training import rules
from neuronbench_neuron.training.handlers import graphs
from training_boxes import furnish

from neuronbench import BackendInfo, ProviderInfo, config
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.testing.neuron import FakeBox

TINY: Mapping[str, Json] = {
    "model_type": "qwen3", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 8192,
}  # fmt: skip
LARGE: Mapping[str, Json] = {  # the sizes of Llama 3.1 8B
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
}  # fmt: skip
BASE: Mapping[str, Json] = {
    "method": "lora_sft", "steps": 4, "architecture": TINY, "weights": "seeded", "sequence_length": 64,
}  # fmt: skip


class Host:
    """A provider's view of a made-up host."""

    def __init__(self, box: FakeBox, settings: config.Settings) -> None:
        family = box.shape.instance.name[:4]
        info = BackendInfo(name=family, title="", target="", family="neuron")
        environ = box.environ()
        self.backend = NeuronBackend(info, root=box.root, search_path=environ["PATH"], environ=environ)
        self.settings = settings

    def provider(self, name: str = "optimum-neuron") -> trainers.NeuronTrainerProvider:
        kind = trainers.NxdProvider if name == "nxd" else trainers.OptimumProvider
        return kind(ProviderInfo(name=f"trainer/{name}", kind="trainer", families=("neuron",), target=""))

    def spec(self, name: str = "optimum-neuron", *, lane: str = "lora_sft", **params: Any) -> ResourceSpec:
        given = {key: value for key, value in {**BASE, **params}.items() if value is not None}
        point = Point(benchmark="b.py::f", lane=lane, backend=self.backend.info.name, params=FrozenMap(given), id="p")
        return self.provider(name).spec(point, self.backend, self.settings)

    def refusal(self, name: str = "optimum-neuron", **params: Any) -> str:
        verdict = self.provider(name).check(self.spec(name, **params), self.backend, self.settings)
        return "" if verdict is None else verdict.reason


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return dataclasses.replace(config.load(tmp_path), root=tmp_path)


@pytest.fixture
def host(tmp_path: Path, settings: config.Settings) -> Iterator[Host]:
    with FakeBox("trn1.2xlarge", tmp_path / "box") as box:
        furnish(box)
        yield Host(box, settings)


def test_a_job_that_can_run_is_not_refused(host: Host) -> None:
    assert host.refusal() == ""
    assert host.refusal("nxd", method="full_sft") == ""


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("optimum-neuron", {"world_size": 4}, "more-cores-than-there-are"),
        ("optimum-neuron", {"method": "orpo", "dataset": "builtin:preferences"}, "pin optimum-neuron 0.3.x"),
        ("optimum-neuron", {"method": "dpo", "dataset": "builtin:preferences"}, "trains by dpo"),
        ("optimum-neuron", {"dtype": "float16"}, "dtype: expected one of float32, bfloat16 on Neuron"),
        ("optimum-neuron", {"optimizer": "adafactor"}, "optimizer: expected one of adamw, sgd"),
        ("optimum-neuron", {"tensor_parallel_size": 2}, "expected a multiple of tensor_parallel_size"),
        (
            "optimum-neuron",
            {"method": "full_sft", "pipeline_parallel_size": 2, "tensor_parallel_size": 1},
            "a multiple of tensor_parallel_size × pipeline_parallel_size = 2, found 1",
        ),
        (
            "optimum-neuron",
            {"method": "full_sft", "pipeline_parallel_size": 2, "tensor_parallel_size": 2, "world_size": 6},
            "a multiple of tensor_parallel_size × pipeline_parallel_size = 4, found 6",
        ),
        ("optimum-neuron", {"tensor_parallel_size": "2"}, "expected a whole number from 1, found '2'"),
        ("optimum-neuron", {"zero_1": "yes"}, "zero_1: expected a value like True"),
        ("optimum-neuron", {"pipeline_parallel_size": 2, "world_size": 2}, "adapters are trained without pipeline"),
        ("optimum-neuron", {"sequence_length": 3000}, "multiples of 2048"),
        ("optimum-neuron", {"lane": "checkpoint"}, "refuses resume_from_checkpoint"),
        ("optimum-neuron", {"architecture": {**TINY, "model_type": "mistral"}}, "model-type-not-for-training"),
        (
            "optimum-neuron",
            {"architecture": LARGE},
            "a core has 16.0 GiB; expected at least",
        ),
        (
            "optimum-neuron",
            {"worker_env": {"NEURON_RT_VISIBLE_CORES": "0"}},
            "may not set NEURON_RT_VISIBLE_CORES: the cores of a trainer are leased",
        ),
        ("optimum-neuron", {"worker_env": {"NEURON_CC_FLAGS": "-O3"}}, "give the parameter cc_flags"),
        ("optimum-neuron", {"worker_env": {"NEURON_EXTRACT_GRAPHS_ONLY": "1"}}, "give the parameter precompile"),
        ("optimum-neuron", {"cc_flags": "-O1 --cache_dir=/x"}, "cc_flags: --cache_dir would keep graphs"),
        ("optimum-neuron", {"compile_cache": 5}, "compile_cache: expected a folder or s3://BUCKET/PREFIX, found 5"),
        ("nxd", {}, "take trainer_provider = 'optimum-neuron' for adapters"),
        ("nxd", {"method": "full_sft", "pipeline_parallel_size": 2, "world_size": 2}, "found more than 1"),
        ("nxd", {"method": "full_sft", "tensor_parallel_size": 4, "world_size": 4}, "expected a divisor of 2"),
    ],
)
def test_what_cannot_be_is_refused(host: Host, name: str, params: dict[str, Any], said: str) -> None:
    assert said in host.refusal(name, **params)


@pytest.mark.parametrize(
    ("packages", "name", "said"),
    [
        (
            {"optimum-neuron": "0.3.0"},
            "optimum-neuron",
            "written to versions from 0.4.0 to below 0.5.0.dev0, found 0.3.0",
        ),
        ({"optimum-neuron": "not a version"}, "optimum-neuron", "found 'not a version'"),
        ({"neuronx-distributed": "0.1"}, "nxd", "neuronx-distributed"),
        ({"trl": "1.16.0"}, "optimum-neuron", "trl"),
    ],
)
def test_versions_that_the_trainers_are_not_written_to(
    tmp_path: Path, settings: config.Settings, packages: dict[str, str], name: str, said: str
) -> None:
    with FakeBox("trn1.2xlarge", tmp_path / "box") as box:
        furnish(box, **packages)
        assert said in Host(box, settings).refusal(name, method="full_sft")


def test_ranks_share_a_model_as_far_as_its_heads_allow(host: Host) -> None:
    spec = host.spec(world_size=2)
    assert spec.settings["tensor_parallel_size"] == 2
    assert spec.cores == 2
    assert host.spec(world_size=8).settings["tensor_parallel_size"] == 2  # two heads of keys and values
    assert host.spec(world_size=2, tensor_parallel_size=1).settings["tensor_parallel_size"] == 1


def test_a_model_that_two_cores_hold_is_not_refused_on_two(host: Host) -> None:
    large = {"architecture": LARGE, "dtype": "bfloat16", "sequence_length": 2048}
    assert host.refusal(**large, world_size=2) == ""
    assert "gradients and state" in host.refusal(**large, world_size=2, method="full_sft")


def test_parameters_by_a_configuration_are_those_of_the_model() -> None:
    assert rules.parameters_of(LARGE) == 8_029_995_008  # and 266,240 of norms
    assert rules.parameters_of({**LARGE, "tie_word_embeddings": True}) == 8_029_995_008 - 128256 * 4096
    assert rules.parameters_of({"hidden_size": 3}) is None


def test_a_local_model_is_looked_at_before_anything_boots(host: Host, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LARGE, "model_type": "mistral"}), encoding="utf-8")
    own = {"model": str(tmp_path), "architecture": None, "weights": None, "world_size": 2, "dtype": "bfloat16"}
    assert "model-type-not-for-training" in host.refusal(**own)


def test_compiler_flags_are_part_of_what_is_compared(host: Host) -> None:
    assert host.spec().settings["cc_flags"] == "--model-type=transformer"
    assert host.spec(cc_flags="--optlevel=1").key != host.spec().key
    assert host.spec(learning_rate=1.0).key == host.spec().key


def test_rounding_at_random_is_for_bfloat16_alone(host: Host) -> None:
    assert trainers.rounds(host.spec(dtype="bfloat16").settings)
    assert not trainers.rounds(host.spec(dtype="float32").settings)
    assert not trainers.rounds(host.spec(dtype="bfloat16", stochastic_rounding=False).settings)


def test_the_compile_cache_is_always_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURON_COMPILE_CACHE_URL", raising=False)
    found = host.backend.found
    assert trainers.cache_folder(None, found) == str(found.root / "var/tmp/neuron-compile-cache")
    assert trainers.cache_folder("/cache", found) == "/cache"
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "s3://bucket/cache")
    assert trainers.cache_folder(None, found) == "s3://bucket/cache"


def test_graphs_of_a_cache_that_is_elsewhere_are_not_counted(tmp_path: Path) -> None:
    """Nobody looks into a store while it trains: that is no witness of a run without compiles."""
    before = graphs.kept(str(tmp_path))
    assert before == set()
    for name in ("MODULE_1+a", "MODULE_2+a"):
        (tmp_path / "neuronxcc-2.21" / name).mkdir(parents=True)
    (tmp_path / "neuronxcc-2.21" / "MODULE_1+a" / graphs.DONE).touch()
    assert graphs.grown(before, graphs.kept(str(tmp_path))) == 1
    assert graphs.kept("s3://bucket/cache") is None
    assert graphs.grown(None, None) is graphs.grown(before, None) is None
