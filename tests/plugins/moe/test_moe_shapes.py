"""Parameters of published models, the dense controls derived from them, and what is refused before anything boots."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("neuronbench_moe", reason="plugins/moe is not installed: make harness")

from neuronbench_moe import checks, control, shape

from neuronbench.model import FrozenMap, Point

PUBLISHED: Any = checks.published()
MIXTRAL, QWEN3 = dict(PUBLISHED["mixtral-8x7b-instruct-v0.1"]), dict(PUBLISHED["qwen3-30b-a3b"])
OLMOE, QWEN2 = dict(PUBLISHED["olmoe-1b-7b-0924"]), dict(PUBLISHED["qwen1.5-moe-a2.7b"])
GPT_OSS = dict(PUBLISHED["gpt-oss-20b"])


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (MIXTRAL, 46_702_792_704, 12_879_925_248),  # "46.7B total parameters, 12.9B per token"
        (QWEN3, 30_532_122_624, 3_353_032_704),  # "30.5B in total and 3.3B activated"
        (OLMOE, 6_919_161_856, 1_282_017_280),  # "7B (6.9B), 1B (1.3B) active"
        (QWEN2, 14_315_784_192, 2_689_173_504),  # "14.3B in total, 2.7B activated"
        (GPT_OSS, 20_914_757_184, 4_187_440_704),  # "20.91B, 3.61B active", embeddings left out there: 579 M
    ],
    ids=["mixtral", "qwen3", "olmoe", "qwen2", "gpt-oss"],
)
def test_published_models_have_their_published_parameters(config: dict[str, Any], total: int, active: int) -> None:
    found = shape.of(config)
    assert (found.total, found.active) == (total, active)


def test_a_small_one_by_hand() -> None:
    found = shape.of(
        {
            "model_type": "qwen3_moe", "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2, "head_dim": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 6, "num_experts": 4,
            "num_experts_per_tok": 1, "moe_intermediate_size": 3, "mlp_only_layers": [0], "tie_word_embeddings": True,
        }
    )  # fmt: skip
    # embeddings 10x8; a layer: q 8x8, k and v 8x4 each, o 8x8, two norms of 4, two of 8; router 8x4; expert 3x8x3
    common = 80 + 2 * (64 + 32 + 32 + 64 + 8) + (2 * 16 + 8) + 32 + 3 * 8 * 6
    assert (found.moe_layers, found.expert, found.common) == (1, 72, common)
    assert (found.total, found.active) == (common + 4 * 72, common + 72)
    assert found.touched(2.5) == common + 2.5 * 72


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "deepseek_v3"}, "model_type: expected one of"),
        ({"hidden_size": None}, "hidden_size: expected a whole number"),
        ({"num_experts_per_tok": 200}, "at most the 128 experts"),
        ({"num_experts": True}, "num_experts: expected a whole number"),
    ],
)
def test_what_cannot_be_counted_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shape.of({**QWEN3, **change})


@pytest.mark.parametrize("config", [MIXTRAL, QWEN3], ids=["mixtral", "qwen3"])
def test_dense_controls_have_the_parameters_they_are_named_after(config: dict[str, Any]) -> None:
    mixture = shape.of(config)
    for arm, wanted in (("dense_active", mixture.active), ("dense_total", mixture.total)):
        dense = shape.of(control.config_of(config, arm))
        assert dense.total == dense.active == pytest.approx(wanted, rel=control.LIMIT)
        assert (dense.attention, dense.embedding, dense.norms) == (
            mixture.attention, mixture.embedding, mixture.norms,
        )  # fmt: skip
        assert not dense.experts
        assert control.off(config, arm) == pytest.approx(dense.total / wanted - 1)
    assert control.config_of(config, "moe") == config


def test_a_mixture_without_a_dense_twin_is_refused() -> None:
    with pytest.raises(ValueError, match="olmoe has no dense twin"):
        control.config_of(OLMOE, "dense_active")
    with pytest.raises(ValueError, match="arm: expected one of"):
        control.config_of(QWEN3, "sparse")
    with pytest.raises(ValueError, match="which is dense"):
        control.config_of(control.config_of(QWEN3, "dense_active"), "moe")


def point(**params: Any) -> Point:
    return Point(benchmark="b.py::f", lane="moe", backend="cpu", params=FrozenMap(params), id="p")


@pytest.mark.parametrize(
    ("params", "family", "said"),
    [
        ({"architecture": QWEN3, "tensor_parallel": 3}, "cpu", "32 attention heads do not divide over 3"),
        ({"architecture": {**QWEN3, "num_key_value_heads": 6, "num_attention_heads": 24}, "tensor_parallel": 4}, "cpu",
         "6 heads of keys and values"),
        ({"architecture": QWEN3, "tensor_parallel": 8, "expert_parallel": 4}, "cpu", "ranks of tensor_parallel"),
        ({"architecture": {**QWEN3, "num_experts": 60}, "tensor_parallel": 8, "expert_parallel": 8}, "cpu",
         "60 experts do not divide over 8"),
        ({"architecture": {**QWEN3, "moe_intermediate_size": 770}, "tensor_parallel": 4}, "cpu", "width 770"),
        ({"architecture": {**QWEN3, "hidden_size": 2880}}, "neuron", "hidden_size 2880.*NCC_INKI016"),
        ({"architecture": {"model_type": "deepseek_v3"}}, "cpu", "model_type: expected one of"),
        ({"architecture": GPT_OSS}, "neuron", "hidden_size 2880.*NCC_INKI016"),
        ({"architecture": QWEN3, "arm": "sparse"}, "cpu", "arm: expected one of"),
        ({"architecture": QWEN3, "tensor_parallel": 0}, "cpu", "tensor_parallel: expected a whole number"),
        ({"architecture": QWEN3, "parallel_by": "env"}, "cpu", "parallel_by: expected"),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_are_refused(params: dict[str, Any], family: str, said: str) -> None:
    import re

    assert re.search(said, checks.wrong(point(**params), family))


@pytest.mark.parametrize(
    ("params", "family"),
    [
        ({"architecture": QWEN3, "tensor_parallel": 8, "expert_parallel": 8}, "cpu"),
        ({"architecture": QWEN3, "tensor_parallel": 8, "expert_parallel": 4, "parallel_by": "neuron_config"}, "neuron"),
        ({"architecture": {**QWEN3, "hidden_size": 2880}}, "cpu"),
        ({"architecture": {**QWEN3, "hidden_size": 2880}, "arm": "dense_active"}, "neuron"),  # it has no experts
        ({"model": "hub:someone/unknown", "weights": "pretrained"}, "neuron"),  # nothing is known of it yet
    ],
)
def test_shapes_that_can_be_are_let_through(params: dict[str, Any], family: str) -> None:
    assert checks.wrong(point(**params), family) == ""


def test_a_local_model_is_checked_by_its_own_configuration(tmp_path: Any) -> None:
    import json

    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, "hidden_size": 2880}), encoding="utf-8")
    given = point(model=f"file:{tmp_path}", weights="pretrained")
    assert "NCC_INKI016" in checks.wrong(given, "neuron")


def test_a_published_model_is_checked_before_it_is_fetched() -> None:
    given = {"weights": "pretrained", "model": "hub:openai/gpt-oss-20b"}
    assert "NCC_INKI016" in checks.wrong(point(**given), "neuron")
    assert checks.wrong(point(**given), "cpu") == ""
    qwen = {"weights": "pretrained", "model": "hub:Qwen/Qwen3-30B-A3B@main", "architecture": GPT_OSS}
    assert checks.wrong(point(**qwen, tensor_parallel=8), "neuron") == "", "an architecture is not that of the weights"
    assert "attention heads" in checks.wrong(point(**qwen, tensor_parallel=12), "neuron")


def test_parallelism_reaches_the_server_in_its_own_words() -> None:
    vllm = checks.server_parameters(
        point(tensor_parallel=4, expert_parallel=4, engine_args={"seed": 1}, weights="dummy")
    )
    assert vllm == {
        "engine_args": {"seed": 1, "tensor_parallel_size": 4, "enable_expert_parallel": True, "load_format": "dummy"}
    }
    neuron = checks.server_parameters(
        point(tensor_parallel=4, expert_parallel=2, parallel_by="neuron_config", neuron_config={"a": 1})
    )
    assert neuron == {"neuron_config": {"a": 1, "ep_degree": 2}}
    assert checks.server_parameters(point()) == {"engine_args": {}}
