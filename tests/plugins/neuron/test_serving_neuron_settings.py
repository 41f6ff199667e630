"""What a point may not ask of a generation: found before anything boots, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron.hardware import Hardware
from neuronbench_neuron.serving import endpoint
from neuronbench_neuron.serving.generations import Generation, generations
from neuronbench_neuron.serving.settings import (
    DEFAULTS,
    most_tokens,
    of_host,
    prompt_refused,
    refused,
    tensor_parallel,
    wrong,
)

from neuronbench.model import FrozenMap

GENERATIONS = {generation.id: generation for generation in generations()}


def settings(**given: Any) -> FrozenMap:
    unknown = given.keys() - DEFAULTS.keys()
    assert not unknown
    return FrozenMap({**DEFAULTS, "model": "file:/m", "served_model": "m", **given})


def why(id: str, *, length: int | None = 2048, **given: Any) -> str:
    asked = settings(**given)
    assert wrong(asked) == ""
    return refused(asked, GENERATIONS[id], length)


@pytest.mark.parametrize("id", GENERATIONS)
def test_what_is_not_asked_for_is_not_refused(id: str) -> None:
    assert why(id) == ""
    assert why(id, length=None) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": ""}, "no `model`"),
        ({"max_num_seqs": 0}, "max_num_seqs: expected a whole number"),
        ({"tensor_parallel": "2"}, "tensor_parallel: expected a whole number"),
        ({"buckets": [128]}, "buckets: expected a table"),
        ({"buckets": {"prefil": [128]}}, "'prefil'.*prefill"),
        ({"buckets": {"prefill": [256, 128]}}, "ascending order"),
        ({"buckets": {"prefill": [128, 128]}}, "each once"),
        ({"buckets": {"prefill": []}}, "list of whole numbers"),
        ({"buckets": {"prefill": [True]}}, "whole numbers from 1"),
        ({"neuron_config": "x"}, "neuron_config: expected a table"),
        ({"engine_args": {"--tensor-parallel-size": 4}}, "tensor_parallel_size: neuronbench decides"),
        ({"engine_args": {"additional-config": {}}}, "additional_config: neuronbench decides"),
        ({"server_env": {"NEURON_RT_VISIBLE_CORES": "0"}}, "cores of a server are leased"),
        ({"tensor_parallel": 8, "cores": 2}, "cannot hold a model spread over 8"),
        ({"speculative_config": "eagle"}, "speculative_config: expected a table"),
        (
            {"engine_args": {"--tensor-parallel": 4}},
            "'--tensor-parallel', which vLLM would take for tensor_parallel_size",
        ),
        ({"engine_args": {"max-num-seqs": 64}}, "'max-num-seqs': it is the parameter max_num_seqs"),
        ({"engine_args": {"no-enable-prefix-caching": True}}, "it is the parameter prefix_caching"),
        (
            {"server_env": {"NEURON_LOGICAL_NC_CONFIG": "1"}},
            "NEURON_LOGICAL_NC_CONFIG: the cores .* are leased, grouped",
        ),
        ({"server_env": {"NEURON_COMPILE_CACHE_URL": "/c"}}, "give the parameter compile_cache"),
        ({"server_env": {"VLLM_CACHE_ROOT": "/c"}}, "give the parameter compile_cache"),
        ({"server_env": {"NEURON_COMPILED_ARTIFACTS": "/c"}}, "give the parameter artifacts"),
        ({"server_env": {"NEURON_COMPILE_CACHE_DIR": "/c"}}, "NEURON_COMPILE_CACHE_DIR is read by nothing"),
        ({"server_env": {"NEURON_CC_FLAGS": "-O1 --cache_dir /c"}}, "--cache_dir in NEURON_CC_FLAGS goes before"),
        ({"prefix_caching": "yes"}, "prefix_caching: expected true or false, found 'yes'"),
        ({"require_cached": 1}, "require_cached: expected true or false, found 1"),
        ({"compile_timeout_s": "soon"}, "compile_timeout_s: expected a whole number from 1, found 'soon'"),
        ({"compile_cache": 7}, "compile_cache: expected a folder, found 7"),
        ({"artifacts": 7}, "artifacts: expected a folder, found 7"),
        ({"dtype": "bf17"}, "dtype: expected .*bfloat16.*, found 'bf17'"),
        ({"unchecked_keys": "fused_qkv"}, "unchecked_keys: expected a list of names"),
    ],
)
def test_settings_that_are_wrong_on_any_generation(given: dict[str, Any], words: str) -> None:
    import re

    found = wrong(settings(**given))
    assert re.search(words, found), found


# -- keys that would be ignored without a word


@pytest.mark.parametrize("id", ["0", "1a", "1b", "1c"])
def test_a_key_with_hyphens_is_ignored_there_and_refused_here(id: str) -> None:
    found = why(id, neuron_config={"on-device-sampling-config": {}})
    assert "would be ignored without a word" in found
    assert "'on_device_sampling_config'" in found


def test_the_table_itself_never_has_the_spelling_that_is_ignored() -> None:
    assert all("-" not in part for generation in generations() for part in generation.config)
    assert GENERATIONS["1b"].config == ("additional_config", "override_neuron_config")


@pytest.mark.parametrize("id", ["1b", "2b"])
def test_an_unknown_key_is_refused_unless_it_is_vouched_for(id: str) -> None:
    assert "is no key of it" in why(id, neuron_config={"quantisation": "fp8"})
    assert why(id, neuron_config={"quantisation": "fp8"}, unchecked_keys=["quantisation"]) == ""


def test_keys_of_one_generation_are_not_those_of_the_next() -> None:
    assert why("1b", neuron_config={"context_encoding_buckets": [512]}) == ""
    assert "is no key of it" in why("2b", neuron_config={"context_encoding_buckets": [512]})
    assert "is no key of it" in why("1b", neuron_config={"num_seqs_buckets": [4]})
    assert "no effect there" in why("H", neuron_config={"fused_qkv": True})


def test_a_key_is_not_given_twice() -> None:
    both = {"buckets": {"prefill": [2048]}, "neuron_config": {"context_encoding_buckets": [2048]}}
    assert "given twice" in why("1b", **both)


@pytest.mark.parametrize("edges", [["a"], [None], [[512, 128]], [1.5], "512", 512, [], {}], ids=repr)
@pytest.mark.parametrize(("id", "key"), [("1b", "context_encoding_buckets"), ("2b", "num_seqs_buckets")])
def test_sizes_under_their_own_key_are_checked_as_those_in_buckets(id: str, key: str, edges: Any) -> None:
    found = why(id, neuron_config={key: edges})
    assert f"neuron_config: {key}: expected" in found
    # whoever vouches for the key has it passed on, and its sizes count as not known
    assert why(id, neuron_config={key: edges}, unchecked_keys=[key]) == ""


@pytest.mark.parametrize(
    ("key", "value", "given"),
    [
        ("tp_degree", 8, {"tensor_parallel": 2}), ("batch_size", 8, {"max_num_seqs": 4}),
        ("max_batch_size", 4, {}), ("seq_len", 4096, {}),
    ],
)  # fmt: skip
def test_what_is_compiled_says_what_the_scheduler_does(key: str, value: int, given: dict[str, Any]) -> None:
    found = why("1b", neuron_config={key: value}, **given)
    assert f"{key} = {value}, but" in found
    assert "which vLLM schedules by" in found
    assert why("1b", neuron_config={key: value}, unchecked_keys=[key], **given) == ""
    same = {"tp_degree": 2, "batch_size": 4, "seq_len": 2048}
    assert why("1b", neuron_config=same, tensor_parallel=2, max_num_seqs=4) == ""


def test_what_this_host_does_not_have(tmp_path: Path) -> None:
    host = Hardware(visible=(0, 1), visible_source="NEURON_RT_VISIBLE_CORES", logical_core_config=2)
    assert of_host(settings(), 2, host) == ""
    assert of_host(settings(), 3, host) == (
        "cores: expected at most the 2 of this host (NEURON_RT_VISIBLE_CORES), found 3"
    )
    assert of_host(settings(neuron_config={"logical_nc_config": 2}), 2, host) == ""
    assert "NEURON_LOGICAL_NC_CONFIG=1" in of_host(settings(neuron_config={"logical_nc_config": 1}), 2, host)
    compiled = tmp_path / "compiled"
    assert "found nothing at" in of_host(settings(artifacts=str(compiled)), 2, host)
    compiled.mkdir()
    assert "found nothing at" in of_host(settings(artifacts=str(compiled)), 2, host)
    (compiled / "model.pt").write_bytes(b"x")
    assert of_host(settings(artifacts=str(compiled)), 2, host) == ""


def test_a_store_is_no_cache_of_generation_2() -> None:
    assert "in a folder of this host, found 's3://b/c'" in why("2b", compile_cache="s3://b/c")
    assert why("1b", compile_cache="s3://b/c") == ""


def test_overrides_beside_precompiled_artifacts_would_be_ignored() -> None:
    assert why("1b", artifacts="/compiled") == ""
    assert "ignored without a word" in why("1b", artifacts="/compiled", neuron_config={"fused_qkv": True})
    assert "ignored without a word" in why("1b", artifacts="/compiled", buckets={"prefill": [512, 2048]})
    assert "no precompiled artifacts" in why("2b", artifacts="/compiled")


def test_a_block_size_without_prefix_caching_would_be_ignored() -> None:
    assert "would be ignored" in why("1b", block_size=32)
    assert why("1b", block_size=32, prefix_caching=True) == ""


def test_optimum_switches_off_what_it_cannot() -> None:
    assert "prefix caching off" in why("H", prefix_caching=True)
    assert "no speculative decoding" in why("H", speculative_config={"method": "eagle3"})


def test_only_generation_2_can_be_told_to_fail_where_nothing_is_cached() -> None:
    assert "ASSERT_CACHE_HIT" in why("1b", require_cached=True)
    assert why("2a", require_cached=True) == ""


# -- sizes


@pytest.mark.parametrize(
    ("id", "given", "words"),
    [
        ("2b", {"buckets": {"prefill": [512, 1024]}, "max_num_batched_tokens": 2048}, "has to be min(.*) = 2048"),
        ("2b", {"buckets": {"prefill": [512, 4096]}}, "has to be min(.*) = 2048, found 4096"),
        ("2b", {"buckets": {"decode": [1, 8]}, "max_num_seqs": 4}, "has to be max_num_seqs = 4"),
        ("2b", {"buckets": {"decode": [1, 2]}, "max_num_seqs": 4}, "has to be max_num_seqs = 4"),
        ("2b", {"buckets": {"context": [2048]}}, "below max_model_len"),
        ("2b", {"buckets": {"context": [1000]}}, "multiples of 128"),
        ("2b", {"neuron_config": {"num_seqs_buckets": [1, 8]}, "max_num_seqs": 4}, "has to be max_num_seqs"),
        ("1b", {"buckets": {"prefill": [512, 4096]}}, "beyond max_model_len = 2048"),
        ("1b", {"buckets": {"context": [512, 1024]}}, "longer requests would fail"),
        ("1b", {"buckets": {"decode": [1, 4]}}, "no buckets over 'decode'"),
        ("1c", {"buckets": {"decode": [1, 8]}, "max_num_seqs": 4}, "beyond max_num_seqs = 4"),
        ("H", {"buckets": {"prefill": [512]}}, "none: they are those of the export"),
    ],
)
def test_a_size_beyond_the_last_bucket_is_refused(id: str, given: dict[str, Any], words: str) -> None:
    import re

    found = why(id, **given)
    assert re.search(words, found), found


@pytest.mark.parametrize(
    ("id", "given"),
    [
        ("2b", {"buckets": {"prefill": [512, 2048]}}),
        ("2b", {"buckets": {"prefill": [512, 1024]}, "max_num_batched_tokens": 1024}),
        ("2b", {"buckets": {"prefill": [512, 1024]}}),
        ("2b", {"buckets": {"decode": [1, 4], "context": [512, 1024]}, "max_num_seqs": 4}),
        ("1b", {"buckets": {"prefill": [512, 1024], "context": [512, 2048]}}),
        ("1c", {"buckets": {"decode": [1, 4]}, "max_num_seqs": 4}),
    ],
)
def test_sizes_that_fit_are_taken(id: str, given: dict[str, Any]) -> None:
    assert why(id, **given) == ""


def test_prompt_tokens_of_a_step() -> None:
    def most(id: str, length: int | None = 32768, **given: Any) -> int | None:
        return most_tokens(settings(**given), GENERATIONS[id], length)

    assert most("2b") == 8192
    assert most("2b", 1024) == 1024
    assert most("2b", None) == 8192
    assert most("2b", buckets={"prefill": [128, 512]}) == 512
    assert most("2b", max_num_batched_tokens=256, buckets={"prefill": [128, 512]}) == 256
    assert most("1b") is None
    assert most("1b", max_num_batched_tokens=256) == 256


def _requests(generation: Generation, prompt: int, output: int, **given: Any) -> str:
    return prompt_refused(settings(**given), generation, prompt=prompt, output=output, length=1024)


def test_requests_that_no_size_holds_are_refused() -> None:
    assert _requests(GENERATIONS["1b"], 1000, 24) == ""
    assert "beyond max_model_len = 1024" in _requests(GENERATIONS["1b"], 1000, 25)
    assert "beyond the last prefill bucket, 512" in _requests(GENERATIONS["1b"], 513, 1, buckets={"prefill": [512]})
    assert _requests(GENERATIONS["2b"], 513, 1, buckets={"prefill": [512]}) == ""  # in two parts


def test_cores_of_a_device_where_the_point_does_not_say() -> None:
    assert [tensor_parallel(settings(), family) for family in ("inf2", "trn1", "trn2")] == [2, 2, 4]
    assert tensor_parallel(settings(tensor_parallel=8), "inf2") == 8


def test_every_parameter_is_in_the_providers_table() -> None:
    assert endpoint.__doc__ is not None
    for name in DEFAULTS:
        assert f"| `{name}` |" in endpoint.__doc__, name
