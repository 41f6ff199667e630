"""What is refused before anything boots, and what is not: each rule broken and kept, nothing guessed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench.catalog.architectures import architecture_of
from neuronbench.catalog.instances import instance_of

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import compat
from neuronbench_neuron.compat import shapes
from neuronbench_neuron.compat.use import entry_for, table

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336, "tie_word_embeddings": False,
    "max_position_embeddings": 131072, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
SMOLLM: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "intermediate_size": 1536, "hidden_act": "silu",
    "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "num_local_experts": 32, "vocab_size": 201088, "intermediate_size": 2880,
    "head_dim": 64, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
SDK_2_28 = {"vllm": "0.13.0", "vllm-neuron": "0.4.1", "torch-neuronx": "2.9.0.2.11"}
SDK_2_29 = {"vllm": "0.16.0", "vllm-neuron": "0.5.0"}
BETA = {"vllm": "0.21.0", "vllm-neuron": "0.21.0.1.0.0"}


def use(instance: str, purpose: Any = "serve", *, packages: Any = None, model: Any = None, **settings: Any) -> Any:
    known = instance_of(instance)
    assert known is not None
    return compat.Use(
        purpose=purpose, backend=known.family, instance_type=instance, core_version=known.core_version,
        logical_cores=known.cores(settings.get("logical_core_config")),
        packages=(SDK_2_28 if purpose == "serve" else {}) if packages is None else packages, model=model or {},
        settings=settings,
    )  # fmt: skip


def refused(used: Any, *words: str) -> None:
    verdict = compat.refusal(used, environ={})
    assert verdict is not None
    for word in words:
        assert word in verdict.reason
    assert "To do: " in verdict.reason


# -- generations of hardware and software are separate axes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("packages", "runs_on"),
    [
        ({"vllm": "0.7.2"}, {"inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"}),
        ({"vllm": "0.11.0", "vllm-neuron": "0.2.0"}, {"inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"}),
        (SDK_2_28, {"inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"}),
        (SDK_2_29, {"trn2.3xlarge"}),
        (BETA, {"trn2.3xlarge"}),
        ({"vllm": "0.21.0"} | {"vllm-neuron": "0.21.1"}, {"trn2.3xlarge"}),
        ({"vllm": "0.24.0", "vllm-neuron": "0.24.0.1.1.0"}, {"trn2.3xlarge"}),
        ({"vllm": "0.21.0rc1+neuron", "vllm-neuron": "0.21.0.dev3"}, {"trn2.3xlarge"}),
        ({"vllm": "0.24.0.dev7", "vllm-neuron": "0.24.0rc1"}, {"trn2.3xlarge"}),
        ({"vllm": "0.16.0", "vllm-neuron": "0.5.0.dev1"}, {"trn2.3xlarge"}),
        ({"vllm": "0.11.0", "optimum-neuron": "0.4.5"}, {"inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"}),
        ({"vllm": "0.16.0", "optimum-neuron": "0.4.6.dev4"}, {"inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"}),
    ],
)
def test_what_runs_on_what(packages: dict[str, str], runs_on: set[str]) -> None:
    found = {
        instance
        for instance in ("inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge")
        if compat.refusal(use(instance, packages=packages), environ={}) is None
    }
    assert found == runs_on
    assert compat.facts(use("trn2.3xlarge", packages=packages), environ={})["compat.generation"]


def test_a_refusal_says_rule_observed_limit_remedy_and_source() -> None:
    refused(
        use("inf2.xlarge", packages=BETA),
        "runs on NeuronCore-v3 (Trn2)", "found inf2.xlarge with NeuronCore-v2", "limit: cores v3, v4",
        "SDK 2.28: vLLM 0.13 with vllm-neuron 0.4", "vllm-neuron-0.21-on-v2", "release notes of SDK 2.31",
    )  # fmt: skip
    refused(use("trn1.2xlarge", packages=SDK_2_29), "NEURONBENCH_NEURON_ALLOW=vllm-neuron-0.5-on-v2 tries it")


def test_an_sdk_that_is_told_is_judged_too() -> None:
    refused(use("inf2.xlarge", sdk="2.29.0"), "ends with SDK 2.28", "found SDK 2.29.0")
    assert compat.refusal(use("inf2.xlarge", sdk="2.28"), environ={}) is None
    assert compat.refusal(use("trn2.3xlarge", sdk="2.32"), environ={}) is None


@pytest.mark.parametrize(
    ("packages", "word"),
    [
        ({"vllm": "0.16.0", "vllm-neuron": "0.4.1"}, "belongs with vllm ==0.13.*: found vllm 0.16.0"),
        ({"vllm": "0.21.0", "vllm-neuron": "0.5.0"}, "belongs with vllm ==0.16.*"),
        ({"vllm": "0.16.0", "optimum-neuron": "0.4.5"}, "belongs with vllm ==0.11.0"),
        ({"vllm": "0.13.0", "vllm-neuron": "0.4.1", "optimum-neuron": "0.4.5"}, "activates one platform plugin"),
        ({"vllm": "0.13.0"}, "vLLM needs a plugin for Neuron"),
        ({"vllm": "0.13.0", "vllm-neuron": "0.1.0"}, "an empty stand-in from PyPI"),
        ({**SDK_2_28, "torch-neuronx": "1.0"}, "torch-neuronx 1.0, an empty stand-in"),
    ],
)
def test_packages_that_do_not_belong_together(packages: dict[str, str], word: str) -> None:
    refused(use("trn2.3xlarge", packages=packages), word)


@pytest.mark.parametrize("name", sorted(compat.software.PLACEHOLDERS))
def test_every_placeholder_of_pypi_is_recognised(name: str) -> None:
    (version,) = compat.software.PLACEHOLDERS[name]
    refused(use("trn1.2xlarge", "compile", packages={name: version}), f"{name} {version}, an empty stand-in")


def test_pins_of_training() -> None:
    good = {"optimum-neuron": "0.4.5", "transformers": "4.57.6", "trl": "0.24.0", "peft": "0.17.0"}
    assert compat.refusal(use("trn1.2xlarge", "train", packages=good), environ={}) is None
    refused(use("trn1.2xlarge", "train", packages={**good, "transformers": "5.19.0"}), "transformers ~=4.57.1")
    refused(use("trn1.2xlarge", "train", packages={**good, "trl": "1.16.0"}), "found trl 1.16.0")
    for python, fine in (("3.10.12", True), ("3.11.7", True), ("3.12.3", False)):
        one = use("trn1.2xlarge", "train", packages=good)
        verdict = compat.refusal(compat.Use(**{**vars(one), "python": python}), environ={})
        assert (verdict is None) is fine
    refused(use("trn1.2xlarge", "train", packages=good, model={"model_type": "qwen3_moe"}), "model_type 'qwen3_moe'")


@pytest.mark.parametrize(
    ("packages", "settings", "word"),
    [
        (BETA, {"enable_lora": True}, "has no lora"),
        ({"vllm": "0.11.0", "vllm-neuron": "0.2.0"}, {"enable_lora": True}, "has no lora"),
        ({"vllm": "0.11.0", "optimum-neuron": "0.4.5"}, {"speculative_config": {"method": "ngram"}}, "no speculation"),
        ({"vllm": "0.11.0", "optimum-neuron": "0.4.5"}, {"enable_prefix_caching": True}, "has no prefix caching"),
        (SDK_2_28, {"enable_chunked_prefill": True}, "has no chunked prefill"),
    ],
)
def test_what_a_release_lacks(packages: dict[str, str], settings: dict[str, Any], word: str) -> None:
    refused(use("trn2.3xlarge", packages=packages, **settings), word)
    off = dict.fromkeys(settings, False)
    assert compat.refusal(use("trn2.3xlarge", packages=packages, **off), environ={}) is None


# -- nothing is guessed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packages",
    [{}, {"vllm": "0.17.0", "vllm-neuron": "0.6.0"}, {"vllm": "nightly", "vllm-neuron": "main"},
     {"vllm": "0.19.0", "optimum-neuron": "0.9.0"}],
)  # fmt: skip
def test_an_unlisted_combination_is_tried_and_noted(packages: dict[str, str]) -> None:
    one = use("inf2.xlarge", packages=packages)
    assert compat.refusal(one, environ={}) is None
    facts = compat.facts(one, environ={})
    assert facts["compat.generation"] is None
    assert facts["compat.sdk"] is None
    assert str(facts["compat.warning"]).startswith("unlisted combination: ")
    for name, version in packages.items():
        assert f"{name} {version}" in str(facts["compat.warning"])


def test_what_is_not_known_is_not_judged() -> None:
    nothing = compat.Use(purpose="serve", backend="inf2", instance_type="", core_version="", logical_cores=0)
    assert compat.refusal(nothing, environ={}) is None
    odd = {"num_attention_heads": "many", "hidden_size": None, "num_hidden_layers": 3.5, "text_config": 7}
    assert compat.refusal(use("inf2.xlarge", model=odd, max_model_len="long"), environ={}) is None


def test_a_listed_one_has_no_warning() -> None:
    assert compat.facts(use("inf2.xlarge"), environ={}) == {
        "compat.generation": "vllm-neuron-0.4",
        "compat.sdk": "2.28",
    }
    pinned = {"neuronx-cc": "2.21.33363.0+82129205", "optimum-neuron": "0.4.5"}
    assert compat.facts(use("inf2.xlarge", "train", packages=pinned), environ={})["compat.sdk"] == "2.26.1"


def test_a_rule_that_is_set_aside_is_noted() -> None:
    one, allow = use("inf2.xlarge", packages=SDK_2_29), {compat.ALLOW_VARIABLE: " vllm-neuron-0.5-on-v2, other"}
    assert compat.refusal(one, environ=allow) is None
    assert compat.facts(one, environ=allow)["compat.set_aside"] == "vllm-neuron-0.5-on-v2 (NEURONBENCH_NEURON_ALLOW)"
    assert "compat.set_aside" not in compat.facts(use("trn2.3xlarge", packages=SDK_2_29), environ=allow)
    assert compat.refusal(one, environ={compat.ALLOW_VARIABLE: "heads-over-cores"}) is not None


# -- memory of models whose layers are not all alike -------------------------------------------------------------------

MAVERICK: dict[str, Any] = {"model_type": "llama4", "text_config": {
    "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 128, "vocab_size": 202048,
    "interleave_moe_layer_step": 2,
}}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "first_k_dense_replace": 3,
    "vocab_size": 129280, "kv_lora_rank": 512, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "published"),
    [
        (MAVERICK, 400.7e9),  # every second layer has experts
        (DEEPSEEK, 671.0e9),  # the first three have none; attention is latent
        ({**GPT_OSS, "mlp_only_layers": [0, 1]}, 20.9e9),
    ],
)
def test_parameters_are_never_more_than_there_are(model: dict[str, Any], published: float) -> None:
    assert 0.85 * published < shapes.parameters(use("trn2.48xlarge", model=model)) <= published


def test_what_does_run_is_not_refused_for_its_memory() -> None:
    one = use("trn2.48xlarge", packages=SDK_2_29, model=MAVERICK, tensor_parallel_size=64, max_model_len=2048)
    assert [finding.id for finding in compat.findings(one)] == ["heads-over-cores"]  # 40 heads, which NxD pads
    refused(one, "NEURONBENCH_NEURON_ALLOW=heads-over-cores tries it")
    latent = use("trn2.48xlarge", model=DEEPSEEK, tensor_parallel_size=64, max_model_len=16384, max_num_seqs=64)
    assert shapes.kv_bytes(latent) == 0


def test_replicas_of_a_server_have_no_collectives_between_them() -> None:
    three = {"tensor_parallel_size": 8, "data_parallel_size": 3}
    assert compat.refusal(use("trn1.32xlarge", **three), environ={}) is None
    refused(use("trn1.32xlarge", "train", **three), "found world_size = 24")


def test_numbers_beyond_all_measure_are_no_numbers() -> None:
    endless = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"), 1.5e308)
    assert compat.refusal(use("inf2.xlarge", model={**endless, "intermediate_size": 10**300}), environ={}) is None


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=4), st.lists(st.integers()),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip
NUMBERS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "world_size", "logical_core_config",
    "max_model_len", "max_num_seqs", "input_tokens", "sequence_length", "dtype", "kv_cache_dtype", "quantization",
    "parameter_count", "method", "enable_prefix_caching", "block_size", "speculative_config", "context_buckets",
    "seqs_buckets", "sdk",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    purpose=st.sampled_from(["serve", "compile", "train"]),
    instance=st.sampled_from(["inf2.xlarge", "trn1.32xlarge", "trn2.48xlarge"]),
    model=st.dictionaries(st.sampled_from([*GPT_OSS, "text_config", "quantization_config"]), JUNK, max_size=6),
    given_=st.dictionaries(st.sampled_from(NUMBERS), JUNK, max_size=6),
    packages=st.dictionaries(st.sampled_from(["vllm", "vllm-neuron", "optimum-neuron"]), st.text(max_size=6)),
)
def test_whatever_is_asked_is_judged_and_breaks_nothing(
    purpose: Any, instance: str, model: dict[str, Any], given_: dict[str, Any], packages: dict[str, str]
) -> None:
    known = instance_of(instance)
    assert known is not None
    one = compat.Use(
        purpose=purpose, backend=known.family, instance_type=instance, core_version=known.core_version,
        logical_cores=known.cores(), packages=packages, model={**LLAMA_8B, **model}, settings=given_,
    )  # fmt: skip
    verdict = compat.refusal(one, environ={})
    assert verdict is None or "To do: " in verdict.reason
    compat.facts(one, environ={})


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_heads_over_cores() -> None:
    refused(
        use("inf2.xlarge", model=SMOLLM, tensor_parallel_size=2), "9 heads over 2 cores", "also: kv-heads-over-cores"
    )
    assert compat.refusal(use("inf2.xlarge", model=SMOLLM, tensor_parallel_size=1), environ={}) is None
    refused(use("inf2.xlarge", model={"num_attention_heads": 15}, tensor_parallel_size=2), "15 heads over 2 cores")
    twelve = {"num_attention_heads": 12, "num_key_value_heads": 4}
    refused(use("inf2.24xlarge", model=twelve, tensor_parallel_size=6), "4 key-value heads over 6 cores")
    assert compat.refusal(use("inf2.24xlarge", model=twelve, tensor_parallel_size=12), environ={}) is None
    in_text = {"model_type": "vl", "text_config": {"num_attention_heads": 9}}
    refused(use("inf2.xlarge", model=in_text, tensor_parallel_size=2), "9 heads over 2 cores")


def test_more_cores_than_there_are() -> None:
    refused(use("inf2.xlarge", model=LLAMA_8B, tensor_parallel_size=4), "4 ranks", "limit: 2 cores of inf2.xlarge")
    refused(use("inf2.48xlarge", tensor_parallel_size=32), "limit: 24 cores")
    refused(use("inf2.48xlarge", tensor_parallel_size=8, data_parallel_size=4), "32 ranks (tensor parallel 8)")
    refused(use("trn2.3xlarge", tensor_parallel_size=8), "limit: 4 cores")
    assert compat.refusal(use("trn2.3xlarge", tensor_parallel_size=8, logical_core_config=1), environ={}) is None


@pytest.mark.parametrize("degree", [1, 2, 8, 16, 32])
def test_degrees_of_collectives_on_trn1(degree: int) -> None:
    assert compat.refusal(use("trn1.32xlarge", tensor_parallel_size=degree), environ={}) is None


@pytest.mark.parametrize("degree", [3, 4, 6, 12, 24])
def test_degrees_that_trn1_has_not(degree: int) -> None:
    refused(use("trn1.32xlarge", tensor_parallel_size=degree), f"tensor_parallel_size = {degree}", "multiple of 32")
    assert compat.refusal(use("inf2.48xlarge", tensor_parallel_size=degree), environ={}) is None


def test_hidden_size_of_experts() -> None:
    refused(use("inf2.48xlarge", model=GPT_OSS, tensor_parallel_size=8), "multiples of 128", "hidden_size 2880")
    assert (
        compat.refusal(use("trn2.48xlarge", packages=BETA, model=GPT_OSS, tensor_parallel_size=8), environ={}) is None
    )
    dense = {**GPT_OSS, "num_local_experts": 0}
    assert compat.refusal(use("inf2.48xlarge", model=dense, tensor_parallel_size=8), environ={}) is None


@pytest.mark.parametrize(("length", "fine"), [(512, True), (2048, True), (4096, True), (3000, False), (5120, False)])
def test_sequences_of_training(length: int, fine: bool) -> None:
    verdict = compat.refusal(use("trn1.2xlarge", "train", sequence_length=length), environ={})
    assert (verdict is None) is fine


def test_contexts_beyond_the_model() -> None:
    refused(use("inf2.xlarge", model=SMOLLM, max_model_len=16384), "max_model_len 16384", "limit: 8192 positions")
    assert compat.refusal(use("inf2.xlarge", model=SMOLLM, max_model_len=8192), environ={}) is None


def test_groupings_of_cores() -> None:
    one = compat.Use(
        purpose="compile", backend="inf2", instance_type="inf2.xlarge", core_version="v2", logical_cores=2,
        settings={"logical_core_config": 2},
    )  # fmt: skip
    refused(one, "grouped by 1", "logical_core_config = 2", "NCC_EARG001")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"context_buckets": [512, 4096], "max_model_len": 2048}, "context_buckets reach as far"),
        ({"context_buckets": [128, 512], "input_tokens": 1024, "max_model_len": 2048}, "Add an edge from 1024 on"),
        ({"decode_buckets": [4096], "max_model_len": 2048}, "limit: max_model_len 2048"),
        ({"seqs_buckets": [1, 2], "max_num_seqs": 4}, "Add an edge from 4 on"),
        ({"batched_tokens_buckets": [2048], "max_num_batched_tokens": 1024}, "an edge at 2048"),
    ],
)
def test_edges_of_buckets(settings: dict[str, Any], word: str) -> None:
    refused(use("trn2.3xlarge", packages=BETA, **settings), word)


def test_edges_that_fit() -> None:
    fine = {"context_buckets": [512, 2048], "input_tokens": 2048, "max_model_len": 2048, "seqs_buckets": [1, 4],
            "max_num_seqs": 4}  # fmt: skip
    assert compat.refusal(use("trn2.3xlarge", packages=BETA, **fine), environ={}) is None


# -- memory ------------------------------------------------------------------------------------------------------------


def test_parameters_are_those_of_the_published_models() -> None:
    for model, count in ((LLAMA_8B, 8_030_261_248), (SMOLLM, 134_515_008), (GPT_OSS, 20_914_757_184)):
        ours = shapes.parameters(use("trn2.3xlarge", model=model))
        assert ours <= count  # at least so many it has
        assert ours == pytest.approx(count, rel=0.1)


def test_weights_and_cache_must_fit_into_the_cores() -> None:
    study = {"tensor_parallel_size": 2, "max_model_len": 2048, "max_num_seqs": 32}
    assert compat.refusal(use("inf2.xlarge", model=LLAMA_8B, **study), environ={}) is None  # a public study ran this
    refused(
        use("inf2.xlarge", model=LLAMA_8B, **{**study, "max_model_len": 8192}),
        "23.5 GiB a core (weights 7.5, cache 16.0) over 2 cores", "limit: 16 GiB a core of inf2.xlarge",
    )  # fmt: skip
    refused(
        use("inf2.xlarge", model=LLAMA_8B, tensor_parallel_size=1, max_model_len=2048, max_num_seqs=8), "device-memory"
    )
    assert shapes.kv_bytes(use("inf2.xlarge", model=LLAMA_8B, **study)) == 2 * 32 * 4 * 128 * 2048 * 32 * 2


def test_memory_of_a_core_follows_the_grouping() -> None:
    big = {"parameter_count": 34_000_000_000, "tensor_parallel_size": 4}
    assert compat.refusal(use("trn2.3xlarge", **big), environ={}) is None  # 4 × 24 GiB
    refused(use("trn2.3xlarge", logical_core_config=1, **big), "limit: 12 GiB a core")


def test_the_cache_of_newer_servers_is_what_is_left() -> None:
    huge = {"tensor_parallel_size": 4, "max_model_len": 131072, "max_num_seqs": 256}
    assert compat.refusal(use("trn2.3xlarge", packages=BETA, model=LLAMA_8B, **huge), environ={}) is None
    refused(use("trn2.3xlarge", model=LLAMA_8B, **huge), "device-memory")


def test_quantised_weights_are_smaller() -> None:
    one = {"parameter_count": 30_000_000_000, "tensor_parallel_size": 2}
    refused(use("inf2.xlarge", **one), "device-memory")
    assert compat.refusal(use("inf2.xlarge", quantization="int8", **one), environ={}) is None
    assert compat.refusal(use("inf2.xlarge", quantization="something new", **one), environ={}) is None
    prequantised = {"quantization_config": {"quant_method": "fp8"}}
    assert compat.refusal(use("inf2.xlarge", model=prequantised, **one), environ={}) is None


def test_gradients_of_full_training_count() -> None:
    one = {"parameter_count": 8_000_000_000, "tensor_parallel_size": 2}
    assert compat.refusal(use("trn1.2xlarge", "train", method="lora", **one), environ={}) is None
    full = use("trn1.2xlarge", "train", method="full", parameter_count=9_000_000_000, tensor_parallel_size=2)
    refused(full, "gradients 8.4")


def test_known_defects_are_expected_to_fail_not_skipped() -> None:
    one = use("trn1.2xlarge", enable_prefix_caching=True, block_size=32)
    verdict = compat.refusal(one, environ={})
    assert verdict is not None
    assert verdict.known_bad
    assert "NCC_ITEN404" in verdict.reason
    refused(use("inf2.xlarge", enable_prefix_caching=True), "needs block_size")
    assert compat.refusal(use("inf2.xlarge", enable_prefix_caching=True, block_size=32), environ={}) is None
    old = use("inf2.xlarge", packages={"vllm": "0.11.0", "vllm-neuron": "0.2.0"}, enable_prefix_caching=True,
              block_size=32, max_num_seqs=1)  # fmt: skip
    verdict = compat.refusal(old, environ={})
    assert verdict is not None
    assert verdict.known_bad


# -- the table itself --------------------------------------------------------------------------------------------------


def test_the_table_is_complete() -> None:
    seen = []
    for section in ("serving", "training"):
        for entry in table()[section]:
            assert {"id", "title", "match", "core_versions", "source"} <= entry.keys()
            assert set(entry["core_versions"]) <= {"v2", "v3", "v4"}
            seen.append((section, entry["id"]))
    assert len(seen) == len(set(seen))
    assert entry_for("serving", BETA)["id"] == "vllm-neuron-0.21"  # type: ignore[index]


def test_published_architectures_are_judged_without_a_crash() -> None:
    for name in ("bert-base-cased", "t5-small", "vit-base-patch16-224", "clip-vit-base-patch32", "whisper-tiny"):
        config = architecture_of(name)
        assert config is not None, name
        for purpose in ("serve", "compile", "train"):
            compat.refusal(use("inf2.xlarge", purpose, model=config), environ={})
