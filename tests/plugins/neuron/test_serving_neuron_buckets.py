"""Compiled sizes: which one a request is padded to, and who tells them: generations, artifacts, metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron.serving.buckets import BucketMap, doubling, named, nxdi, of_artifacts, of_settings, with_metrics
from neuronbench_neuron.serving.generations import generations
from neuronbench_neuron.serving.settings import DEFAULTS

from neuronbench.model import FrozenMap

GENERATIONS = {generation.id: generation for generation in generations()}
EDGES = st.lists(st.integers(1, 5000), min_size=1, max_size=8, unique=True).map(sorted)


def made(id: str, length: int | None = 1024, **given: Any) -> BucketMap:
    return of_settings(FrozenMap({**DEFAULTS, "model": "m", "served_model": "m", **given}), GENERATIONS[id], length)


@given(EDGES, st.integers(1, 6000))
def test_a_prompt_goes_to_the_smallest_size_that_holds_it(edges: list[int], tokens: int) -> None:
    found = BucketMap(prefill=tuple(edges)).prefill_bucket(tokens)
    if tokens > edges[-1]:
        assert found is None
    else:
        assert found is not None
        assert found >= tokens
        assert not any(tokens <= edge < found for edge in edges)


@given(EDGES, st.integers(1, 50_000))
def test_a_prompt_in_parts_computes_whole_parts_and_a_padded_rest(edges: list[int], tokens: int) -> None:
    buckets = BucketMap(prefill=tuple(edges), chunk=edges[-1])
    computed = buckets.prefill_computed(tokens)
    assert computed is not None
    assert tokens <= computed < tokens + edges[-1]


def test_what_is_not_known_is_none_and_not_nothing() -> None:
    unknown = BucketMap()
    assert unknown.prefill_bucket(5) is None
    assert unknown.prefill_computed(5) is None
    assert unknown.decode_bucket(5) is None
    assert BucketMap(prefill=(128,)).prefill_bucket(0) is None
    assert unknown.to_json()["source"] == "unknown"


def test_a_prompt_as_long_as_a_size_is_told_apart() -> None:
    buckets = BucketMap(prefill=(128, 256))
    assert [buckets.at_edge(count) for count in (127, 128, 129)] == [False, True, False]
    assert [buckets.prefill_bucket(count) for count in (127, 128, 129)] == [128, 128, 256]


def test_sizes_that_generations_make_by_themselves() -> None:
    assert nxdi(1024) == [128, 256, 512, 1024]
    assert nxdi(1500) == [128, 256, 512, 1024, 1500]
    assert nxdi(1100) == [128, 256, 512, 1100]  # near a power of two, that one is left out
    assert nxdi(64) == [64]
    assert doubling(128, 1024) == [128, 256, 512, 1024]
    assert doubling(128, 1500) == [128, 256, 512, 1024, 1500]
    assert doubling(1, 6) == [1, 2, 4, 6]
    old = made("1b", max_num_seqs=8)
    assert (old.prefill, old.decode, old.chunk) == ((128, 256, 512, 1024), (8,), None)
    native = made("2b", max_num_seqs=8)
    assert (native.prefill, native.decode, native.chunk) == ((128, 256, 512, 1024), (1, 2, 4, 8), 1024)
    static = made("H", max_num_seqs=8)
    assert (static.prefill, static.decode) == ((1024,), (8,))
    assert {old.source, native.source, static.source} == {"defaults"}


def test_sizes_of_the_configuration() -> None:
    asked = made("2b", buckets={"prefill": [256, 1024], "decode": [2, 8]}, max_num_seqs=8)
    assert (asked.prefill, asked.decode, asked.source) == ((256, 1024), (2, 8), "configuration")
    asked = made("1b", neuron_config={"context_encoding_buckets": [512, 1024]})
    assert (asked.prefill, asked.source) == ((512, 1024), "configuration")
    assert made("1b", neuron_config={"enable_bucketing": False}).prefill == (1024,)
    assert made("1b", None).prefill == ()


def test_sizes_of_artifacts_that_were_compiled_before(tmp_path: Path) -> None:
    assert of_artifacts(tmp_path) is None
    (tmp_path / "neuron_config.json").write_text("{", encoding="utf-8")
    assert of_artifacts(tmp_path) is None
    config = {
        "batch_size": 8, "seq_len": 1024, "max_context_length": 512, "enable_bucketing": True,
        "token_generation_buckets": [512, 1024],
    }  # fmt: skip
    (tmp_path / "neuron_config.json").write_text(json.dumps({"neuron_config": config}), encoding="utf-8")
    found = of_artifacts(tmp_path)
    assert found is not None
    assert (found.prefill, found.decode, found.context) == ((128, 256, 512), (8,), (512, 1024))
    assert found.source == "artifacts"


def test_names_of_sizes_in_metrics() -> None:
    assert named("prefill_s1024") == ("prefill", 1024)
    assert named("decode_b4") == ("decode", 4)
    assert named("decode_b4_ctx2048") == ("decode", 4)
    assert named("warmup") is None
    found = with_metrics(BucketMap(), ["prefill_s128", "prefill_s512", "decode_b4", "x"])
    assert (found.prefill, found.decode, found.source) == ((128, 512), (4,), "metrics")
    known = BucketMap(prefill=(64,), decode=(2,), source="configuration")
    assert with_metrics(known, ["prefill_s128"]) == known
