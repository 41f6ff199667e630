"""The command line and environment of each generation, and that the parsers of the others do not take them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron.serving import command
from neuronbench_neuron.serving.generations import generations
from neuronbench_neuron.serving.settings import DEFAULTS, refused
from serving_neuron import PACKAGES

from neuronbench.model import FrozenMap
from neuronbench.models import ResolvedModel
from neuronbench.protocols import Stack

GENERATIONS = {generation.id: generation for generation in generations()}
MODEL = ResolvedModel(path=Path("/m"), reference="file:/m", source="local", files={}, weights_digest="")
STACK = Stack(kind="serving", python=Path("/opt/venv/bin/python"), source="test")
HEAD = ["--model", "/m", "--served-model-name", "m", "--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16",
        "--disable-uvicorn-access-log"]  # fmt: skip


def settings(**given: Any) -> FrozenMap:
    return FrozenMap({**DEFAULTS, "model": "file:/m", "served_model": "m", **given})


def words(id: str, family: str = "trn2", length: int | None = 2048, **given: Any) -> list[str]:
    asked = settings(**given)
    assert refused(asked, GENERATIONS[id], length) == ""
    line = command.words(asked, GENERATIONS[id], STACK, MODEL, command.Host(family=family), length)
    assert line[:3] == ["/opt/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert line[3 : 3 + len(HEAD)] == HEAD
    return line[3 + len(HEAD) :]


def table_of(line: list[str], option: str) -> Any:
    return json.loads(line[line.index(option) + 1])


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("0", ["--device", "neuron", "--tensor-parallel-size", "2", "--max-model-len", "1024", "--max-num-seqs", "4",
               "--no-enable-prefix-caching"]),
        ("1a", ["--tensor-parallel-size", "2", "--max-model-len", "1024", "--max-num-seqs", "4",
                "--no-enable-prefix-caching", "--num-gpu-blocks-override", "4"]),
        ("1b", ["--tensor-parallel-size", "2", "--max-model-len", "1024", "--max-num-seqs", "4",
                "--no-enable-prefix-caching", "--num-gpu-blocks-override", "4"]),
        ("1c", ["--tensor-parallel-size", "4", "--max-model-len", "1024", "--max-num-seqs", "4",
                "--no-enable-prefix-caching", "--num-gpu-blocks-override", "4"]),
        ("2a", ["--tensor-parallel-size", "4", "--max-model-len", "1024", "--max-num-seqs", "4",
                "--max-num-batched-tokens", "1024", "--no-enable-prefix-caching"]),
        ("2b", ["--tensor-parallel-size", "4", "--max-model-len", "1024", "--max-num-seqs", "4",
                "--max-num-batched-tokens", "1024", "--no-enable-prefix-caching"]),
        ("H", ["--tensor-parallel-size", "2", "--max-model-len", "1024", "--max-num-seqs", "4",
               "--no-enable-prefix-caching"]),
    ],
)  # fmt: skip
def test_the_line_of_each_generation(id: str, expected: list[str]) -> None:
    family = "trn2" if id in ("1c", "2a", "2b") else "inf2"
    assert words(id, family, 1024, max_model_len=1024, max_num_seqs=4) == expected


def test_keys_are_where_the_generation_looks_for_them() -> None:
    given: Mapping[str, Any] = {"buckets": {"prefill": [512, 2048]}, "max_num_seqs": 4}
    keys = {"context_encoding_buckets": [512, 2048], "fused_qkv": True}
    old = words("0", neuron_config={"fused_qkv": True}, **given)
    assert table_of(old, "--override-neuron-config") == keys
    for id in ("1a", "1b", "1c"):
        line = words(id, neuron_config={"fused_qkv": True}, **given)
        assert table_of(line, "--additional-config") == {"override_neuron_config": keys}
    for id in ("2a", "2b"):
        line = words(id, neuron_config={"ep_degree": 1}, **given)
        assert table_of(line, "--additional-config") == {
            "neuron_config": {"num_batched_tokens_buckets": [512, 2048], "ep_degree": 1}
        }
    assert not any("config" in word for word in words("H"))


def test_prefix_caching_is_off_unless_asked_for_and_says_its_blocks_where_they_are_compiled_in() -> None:
    for id in GENERATIONS:
        assert "--no-enable-prefix-caching" in words(id)
    line = words("1b", "inf2", prefix_caching=True, max_num_seqs=4)
    assert line[line.index("--block-size") + 1] == "32"
    assert line[line.index("--num-gpu-blocks-override") + 1] == "256"  # 2048 / 32 × 4
    line = words("2b", prefix_caching=True)
    assert "--enable-prefix-caching" in line
    assert not {"--block-size", "--num-gpu-blocks-override"} & set(line)


def test_speculation_switches_asynchronous_scheduling_off_in_generation_2() -> None:
    drafted = {"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}
    line = words("2b", speculative_config=drafted)
    assert table_of(line, "--speculative-config") == drafted
    assert "--no-async-scheduling" in line
    assert "--no-async-scheduling" not in words("1b", "inf2", speculative_config=drafted)


def test_arguments_of_the_point_come_last() -> None:
    assert words("2b", engine_args={"seed": 7})[-2:] == ["--seed", "7"]


# -- environment


def environment(id: str, base: Mapping[str, str] = FrozenMap(), *, boot_s: float = 900.0, instance: str = "",
                **given: Any) -> dict[str, str]:  # fmt: skip
    native = GENERATIONS[id].major == "2"
    places = command.Places(
        cache="/cache", artifacts=None if native else Path("/art"), prometheus=Path("/prom") if native else None
    )
    host = command.Host(family="trn2", instance_type=instance)
    return command.environment(settings(**given), GENERATIONS[id], base, (2, 3), places, host, boot_s=boot_s)


def test_cores_are_named_in_the_variable_that_the_generation_reads_and_in_no_other() -> None:
    foreign = {"NEURON_RT_VISIBLE_CORES": "7", "NEURON_VISIBLE_DEVICES": "8", "NEURON_RT_NUM_CORES": "9"}
    for id, generation in GENERATIONS.items():
        env = environment(id, foreign)
        assert env[generation.visible] == "2,3"
        assert len(foreign.keys() & env.keys()) == 1


@pytest.mark.parametrize("boot_s", [60.0, 899.5, 7200.0])
def test_no_limit_inside_the_server_is_below_the_deadline_of_its_start(boot_s: float) -> None:
    for id in ("2a", "2b"):
        env = environment(id, boot_s=boot_s)
        for name, least in (
            ("VLLM_NEURON_COMPILATION_TIMEOUT", 600), ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", 300),
            ("VLLM_ENGINE_READY_TIMEOUT_S", 600), ("VLLM_NEURON_BARRIER_TIMEOUT", 3600),
        ):  # fmt: skip
            assert int(env[name]) >= max(least, boot_s), name
    assert environment("2b", compile_timeout_s=77)["VLLM_NEURON_COMPILATION_TIMEOUT"] == "77"


def test_variables_of_each_generation() -> None:
    assert environment("0")["VLLM_NEURON_FRAMEWORK"] == "neuronx-distributed-inference"
    for id in ("0", "1a", "1b", "1c", "H"):
        env = environment(id)
        assert env["NEURON_COMPILE_CACHE_URL"] == "/cache"
        assert env["NEURON_COMPILED_ARTIFACTS"] == "/art"
        assert not {"VLLM_CACHE_ROOT", "PROMETHEUS_MULTIPROC_DIR"} & env.keys()
    for id in ("2a", "2b"):
        env = environment(id)
        assert (env["VLLM_CACHE_ROOT"], env["PROMETHEUS_MULTIPROC_DIR"]) == ("/cache", "/prom")
        assert (
            not {"NEURON_COMPILE_CACHE_URL", "NEURON_COMPILED_ARTIFACTS", "VLLM_NEURON_ASSERT_CACHE_HIT"} & env.keys()
        )
        assert environment(id, require_cached=True)["VLLM_NEURON_ASSERT_CACHE_HIT"] == "1"
    assert "NEURON_SKIP_EFA_AFFINITY" not in environment("2b", instance="trn2.48xlarge")
    assert environment("2b", instance="trn2.3xlarge")["NEURON_SKIP_EFA_AFFINITY"] == "1"


def test_what_this_process_has_of_compilers_is_not_handed_on_and_what_the_point_says_is() -> None:
    base = {"NEURON_CC_FLAGS": "--optlevel=1", "VLLM_NEURON_CPU_MODE": "1", "XLA_USE_BF16": "1", "PATH": "/bin"}
    env = environment("2b", base, server_env={"NEURON_CC_FLAGS": "--optlevel=3"})
    assert env["NEURON_CC_FLAGS"] == "--optlevel=3"
    assert env["PATH"] == "/bin"
    assert not {"VLLM_NEURON_CPU_MODE", "XLA_USE_BF16"} & env.keys()
    assert command.dropped(base) == ["NEURON_CC_FLAGS", "VLLM_NEURON_CPU_MODE", "XLA_USE_BF16"]
    assert "NEURON_CC_FLAGS" in command.shown(env, settings())


def test_the_compile_cache_is_told_or_this_environments_or_the_usual_one() -> None:
    old, native = GENERATIONS["1b"], GENERATIONS["2b"]
    root = Path("/box")
    assert command.cache_folder(settings(compile_cache="/c"), old, root, {"NEURON_COMPILE_CACHE_URL": "/e"}) == "/c"
    assert command.cache_folder(settings(), old, root, {"NEURON_COMPILE_CACHE_URL": "s3://b/c"}) == "s3://b/c"
    assert command.cache_folder(settings(), old, root, {}) == "/box/var/tmp/neuron-compile-cache"
    assert command.cache_folder(settings(), native, root, {"VLLM_CACHE_ROOT": "/v"}) == "/v"
    assert command.compiled_in("s3://b/c", old) is None
    assert command.compiled_in("/v", native) == Path("/v/neuron/compile_cache")


# -- the made-up vLLM's parsers, whose options are those of the real ones


@pytest.fixture(scope="module")
def options() -> Any:
    spec = importlib.util.spec_from_file_location("fake_vllm_options", PACKAGES / "vllm/fake/options.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def takes(options: Any, version: str, line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the parser complains of; empty when it takes the line."""
    try:
        options.parser(version).parse_args([word.replace("{port}", "8000") for word in line])
    except SystemExit:
        return capsys.readouterr().err
    return ""


def test_each_line_is_taken_by_the_parsers_of_its_generation(options: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for id, generation in GENERATIONS.items():
        for version in generation.vllm:
            line = HEAD + words(id, buckets={} if id == "H" else {"prefill": [512, 2048]}, max_num_seqs=4)
            assert takes(options, version, line, capsys) == "", (id, version)


@pytest.mark.parametrize(
    ("version", "line", "complaint"),
    [
        ("0.11.0", ["--device", "neuron"], "unrecognized arguments: --device neuron"),
        ("0.16.0", ["--override-neuron-config", "{}"], "unrecognized arguments: --override-neuron-config"),
        ("0.16.0", ["--block-size", "4096"], "invalid choice"),
        ("0.9.2", ["--no-async-scheduling"], "unrecognized arguments"),
        ("0.24.0", ["--task", "generate"], "unrecognized arguments"),
        ("0.13.0", ["--max-num-seqs", "many"], "invalid"),
        ("0.24.0", ["--no-such-option"], "unrecognized arguments"),
    ],
)
def test_parsers_refuse_what_the_real_ones_refuse(
    options: Any, capsys: pytest.CaptureFixture[str], version: str, line: list[str], complaint: str
) -> None:
    assert complaint in takes(options, version, line, capsys)


def test_a_version_between_two_has_the_options_of_the_older(options: Any) -> None:
    assert options.nearest("0.13.2") == "0.13.0"
    assert options.nearest("0.15.1") == "0.13.0"
    assert options.nearest("0.32.0") == "0.24.0"
    assert options.nearest("0.7.3") == "0.9.2"
