"""Every backend of Neuron has points in the benchmarks that come along, and the models of its roles fit its cores."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from neuronbench.grid import read_roles

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import compat

ROOT = Path(__file__).parents[3]
GRIDS = ROOT / "benchmarks" / "grids"
FAMILIES = ("inf2", "trn1", "trn2")
HEADS = {
    "TinyLlama-1.1B-Chat-v1.0": (32, 4), "Llama-3.1-8B-Instruct": (32, 8), "Qwen3-8B": (32, 8),
}  # fmt: skip
"""Attention heads, and heads of keys and values, of the decoders that roles mean on Neuron."""
SMALLEST = {"inf2": ("inf2.xlarge", "v2", 2), "trn1": ("trn1.2xlarge", "v2", 2), "trn2": ("trn2.3xlarge", "v3", 4)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", ["smoke", "headline", "trained", "trained_second"])
def test_decoders_of_roles_divide_over_all_cores_of_the_smallest_instance(role: str, family: str) -> None:
    table = read_roles(GRIDS / "models.toml")[role]
    reference = table.get(family) or table["default"]
    heads, kv = HEADS[reference.rpartition("/")[2]]
    instance, version, cores = SMALLEST[family]
    use = compat.Use(
        purpose="serve", backend=family, instance_type=instance, core_version=version, logical_cores=cores,
        model={"num_attention_heads": heads, "num_key_value_heads": kv}, settings={"tensor_parallel_size": cores},
    )  # fmt: skip
    assert compat.refusal(use, environ={}) is None


def test_every_role_means_a_model_on_every_family() -> None:
    for role, table in read_roles(GRIDS / "models.toml").items():
        for family in FAMILIES:
            reference = table.get(family) or table.get("default")
            assert reference, role
            assert not reference.startswith("packaged:"), f"{role}: packaged weights are a laptop's"


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_that_are_compared_with_one_have_data_of_their_own(family: str) -> None:
    """By default ranks on Neuron share a model; then one rank and several would not take the same steps."""
    table = tomllib.loads((GRIDS / "pretrain" / "width.toml").read_text(encoding="utf-8"))
    assert table["backends"][family]["settings"]["tensor_parallel_size"] == 1
