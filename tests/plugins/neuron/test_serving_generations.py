"""Which generation of vLLM on Neuron a stack is: by what it holds, and by nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from pathlib import Path

from neuronbench_neuron.serving import command
from neuronbench_neuron.serving.generations import UnknownGeneration, generations, of
from neuronbench_neuron.serving.settings import DEFAULTS
from serving_neuron import STACKS

from neuronbench.model import FrozenMap
from neuronbench.models import ResolvedModel
from neuronbench.protocols import Stack

STACK = Stack(kind="serving", python=Path("python"), source="test")
MODEL = ResolvedModel(path=Path("/m"), reference="file:/m", source="local", files={}, weights_digest="")
PLACES = command.Places(cache="/c", artifacts=Path("/a"), prometheus=Path("/p"))
README = Path(__file__).parents[3] / "plugins/neuron/README.md"


@pytest.mark.parametrize(("id", "packages"), STACKS.items())
def test_a_generation_is_known_by_its_packages(id: str, packages: dict[str, str]) -> None:
    assert of(packages).id == id


def test_the_same_vllm_is_another_generation_with_another_plugin() -> None:
    assert of({"vllm": "0.16.0", "vllm-neuron": "0.5.1"}).id == "1c"
    assert of({"vllm": "0.16.0", "optimum-neuron": "0.4.7.dev1"}).id == "H"
    assert of({"vllm": "0.11.0+cpu", "vllm-neuron": "0.2.0"}).id == "1a"


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ({}, "has no vllm"),
        ({"vllm": "0.16.0"}, "without a Neuron plugin"),
        ({"vllm": "0.32.0"}, "without a Neuron plugin"),
        ({"vllm": "0.16.0", "vllm-neuron": "0.4.1"}, "no pair that belongs together"),
        ({"vllm": "0.13.0", "vllm-neuron": "0.24.0.1.1.0"}, "no pair that belongs together"),
        ({"vllm": "0.9.2", "vllm-neuron": "0.2.0"}, "no pair that belongs together"),
        ({"vllm": "0.1100.0", "vllm-neuron": "0.2.0"}, "no pair that belongs together"),
        ({"vllm": "0.11.0", "vllm-neuron": "0.2.0", "optimum-neuron": "0.4.5"}, "only one platform plugin"),
    ],
)
def test_what_is_no_generation_is_refused_with_what_would_be(packages: dict[str, str], words: str) -> None:
    with pytest.raises(UnknownGeneration, match=words) as caught:
        of(packages)
    if packages and len(packages) < 3:
        assert "vllm-neuron 0.5" in str(caught.value)


def test_newer_generations_are_for_newer_hardware_only() -> None:
    families = {generation.id: set(generation.families) for generation in generations()}
    assert {id for id, found in families.items() if "inf2" in found} == {"0", "1a", "1b", "H"}
    assert all("trn2" in found for found in families.values())


def test_only_generation_2_has_keys_and_cores_of_its_own() -> None:
    for generation in generations():
        native = generation.major == "2"
        assert (generation.visible == "NEURON_VISIBLE_DEVICES") is native
        assert (generation.cache == "vllm") is native
        assert generation.metrics is native
        assert all(key in generation.keys for key in generation.buckets.values())
        assert all("-" not in key for key in generation.keys)
        assert generation.sources


def test_the_readme_names_every_generation_and_all_that_is_passed() -> None:
    text = README.read_text(encoding="utf-8")
    host = command.Host(family="trn2", instance_type="trn2.3xlarge")
    given = {
        "model": "file:/m", "served_model": "m", "max_num_seqs": 4, "max_model_len": 2048, "prefix_caching": True,
        "require_cached": True, "speculative_config": {"method": "eagle3"}, "neuron_config": {"ep_degree": 1},
    }  # fmt: skip
    for generation in generations():
        assert f"| {generation.id} |" in text, generation.id
        for caching in (True, False):
            settings = FrozenMap({**DEFAULTS, **given, "prefix_caching": caching})
            line = command.words(settings, generation, STACK, MODEL, host, 2048)
            env = command.environment(settings, generation, {}, (0,), PLACES, host, boot_s=1.0)
            for word in (*(word for word in line if word.startswith("--")), *env, *generation.buckets.values()):
                assert f"`{word}`" in text, f"{generation.id}: {word}"
