"""The CPU's compiled models without torch: what makes an artifact another, what is refused before anything boots."""

from __future__ import annotations

import dataclasses
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuronbench import artifacts, config, processes
from neuronbench.backends.cpu import compiled, processor
from neuronbench.compiled import DEFAULTS
from neuronbench.config import Settings
from neuronbench.model import FrozenMap, Point
from neuronbench.plugins import Plugins
from neuronbench.protocols import BootContext, BootError, Provider, Stack

ARCHITECTURE = {"model_type": "bert", "hidden_size": 32}


def point(**params: Any) -> Point:
    return Point(benchmark="b.py::f", lane="encoder", backend="cpu", params=FrozenMap(params), id="p")


@pytest.fixture
def plugins() -> Plugins:
    return Plugins(entry_points=False)


@pytest.fixture
def provider(plugins: Plugins) -> Provider:
    info = plugins.provider_for("compiled_model", "cpu")
    assert info is not None
    found = plugins.provider(info.name)
    assert isinstance(found, Provider)
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    loaded = config.load(tmp_path, environ={}, overrides={"stacks": {"compile": sys.executable}})
    return dataclasses.replace(loaded, cache_dir=tmp_path / "cache")


@pytest.fixture
def given(provider: Provider, plugins: Plugins, settings: Settings) -> FrozenMap:
    return provider.spec(point(model="m"), plugins.backend("cpu"), settings).settings


STACK = Stack(
    kind="compile", python=Path("/s/bin/python"), source="test",
    packages=FrozenMap(torch="2.13.0", transformers="5.19.0", python="3.11.7"),
)  # fmt: skip
IDENTITY = {"digest": "abc", "config": "def", "weights": "pretrained", "seed": 0}


def key(given: FrozenMap, stack: Stack = STACK, identity: dict[str, Any] = IDENTITY, **changes: Any) -> str:
    return artifacts.key_of(compiled.key_parts(FrozenMap({**given, **changes}), stack, identity))


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 2}, {"sequence_length": 64}, {"dtype": "bfloat16"}, {"threads": 2}, {"task": "other"},
        {"compiler_flags": {"max_autotune": True}}, {"worker_env": {"X": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_the_compiler_sees_makes_another_artifact(given: FrozenMap, change: dict[str, Any]) -> None:
    assert key(given) == key(given)
    assert key(given, **change) != key(given)


def test_other_weights_another_torch_another_processor_or_handler_make_another_artifact(
    given: FrozenMap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = key(given)
    assert key(given, identity={**IDENTITY, "digest": "abd"}) != before
    assert key(given, identity={**IDENTITY, "weights": "seeded"}) != before
    newer = dataclasses.replace(STACK, packages=FrozenMap({**STACK.packages, "torch": "2.14.0"}))
    assert key(given, newer) != before
    elsewhere = dataclasses.replace(STACK, python=Path("/other/bin/python"), source="elsewhere")
    assert key(given, elsewhere) == before  # where the interpreter lies makes no difference
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "cpu_flags", lambda: ("avx2",))
        assert key(given) != before
    copies = tmp_path / "handlers"
    copies.mkdir()
    for path in compiled.HANDLERS.glob("*.py"):
        (copies / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(compiled, "HANDLERS", copies)
    assert key(given) == before
    (copies / "aoti.py").write_text("changed")
    assert key(given) != before


def test_a_spec_has_every_default_written_out(provider: Provider, plugins: Plugins, settings: Settings) -> None:
    spec = provider.spec(point(model="m", calls=100, window_s=3), plugins.backend("cpu"), settings)
    assert spec.kind == "compiled_model"
    assert dict(spec.settings) == {**DEFAULTS, "model": "m"}
    other = provider.spec(point(model="m", calls=200), plugins.backend("cpu"), settings)
    assert other == spec  # how it is measured is no part of what it is


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": None}, "neither `model` nor `architecture`"),
        ({"model": None, "architecture": {"hidden_size": 3}}, "with model_type"),
        ({"model": None, "architecture": ARCHITECTURE}, "weights = 'seeded'"),
        ({"architecture": ARCHITECTURE}, "not both"),
        ({"weights": "trained"}, "'pretrained' or 'seeded'"),
        ({"family": "enc"}, "family: expected one of"),
        ({"dtype": "int8"}, "dtype: expected one of float32"),
        ({"batch_size": 0}, "batch_size: expected a whole number"),
        ({"sequence_length": 2.5}, "sequence_length: expected a whole number"),
        ({"threads": 10_000}, "this process may use"),
        ({"compiler_flags": ["x"]}, "compiler_flags: expected a table"),
        ({"model": "minilm", "sequence_length": 4096}, "above the 256 tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_said_before_anything_boots(
    provider: Provider, plugins: Plugins, settings: Settings, changes: dict[str, Any], reason: str
) -> None:
    backend = plugins.backend("cpu")
    verdict = provider.check(provider.spec(point(**{"model": "m", **changes}), backend, settings), backend, settings)
    assert verdict is not None
    assert reason in verdict.reason


def test_a_missing_stack_or_compiler_is_a_reason_to_skip(
    provider: Provider, plugins: Plugins, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = plugins.backend("cpu")
    spec = provider.spec(point(model="m"), backend, settings)
    verdict = provider.check(spec, backend, settings)
    assert verdict is not None
    assert "no torch" in verdict.reason  # of this interpreter, named as the stack
    monkeypatch.setattr(type(backend), "stack", lambda self, kind, settings: STACK)
    assert provider.check(spec, backend, settings) is None
    monkeypatch.setattr(compiled, "cxx", lambda: "")
    verdict = provider.check(spec, backend, settings)
    assert verdict is not None
    assert "C++ compiler" in verdict.reason


def test_a_stack_that_cannot_import_its_torch_fails_the_boot_with_the_cause_and_leaves_nothing(
    provider: Provider, plugins: Plugins, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = plugins.backend("cpu")
    here = dataclasses.replace(STACK, python=Path(sys.executable))
    monkeypatch.setattr(type(backend), "stack", lambda self, kind, settings: here)
    folder = tmp_path / "boot"
    folder.mkdir()
    context = BootContext(
        backend=backend, settings=settings, folder=folder, deadline_s=120.0, progress=lambda text: None,
        spawn=partial(processes.spawn, pid_dir=tmp_path / "pids"),
    )  # fmt: skip
    spec = provider.spec(point(architecture=ARCHITECTURE, weights="seeded"), backend, settings)
    with pytest.raises(BootError) as caught:
        provider.boot(spec, context)
    assert caught.value.failure.kind == "missing_module"
    assert caught.value.failure.phase == "boot"
    assert "torch" in caught.value.failure.causal_line
    assert caught.value.facts["model"]["note"] == "seeded random weights"
    assert list((tmp_path / "pids").iterdir()) == []
    assert [path.name for path in folder.iterdir()] == [f"{spec.id}-compiler.log"]
    events = [event["event"] for event in artifacts.ArtifactCache(settings.cache_dir).journal()]
    assert events == ["miss", "failed"]


def test_a_worker_has_its_threads_and_every_cache_in_its_own_folder(given: FrozenMap, tmp_path: Path) -> None:
    env = compiled.environment(
        FrozenMap({**given, "threads": 3, "worker_env": {"OMP_WAIT_POLICY": "passive"}}), tmp_path
    )
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "3"
    assert env["OMP_WAIT_POLICY"] == "passive"
    assert env["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
    assert env["TMPDIR"] == str(tmp_path)
    assert "PYTHONPATH" not in env


def test_copies_get_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 2, 3, 5})
    assert [processor.cores_of(index, 2) for index in range(2)] == [[2, 3], [5, 7]]
    assert processor.cores_of(3, 1) == [7]


def test_the_floor_rises_with_the_operations_and_falls_with_the_cores() -> None:
    one = processor.floor(1e9, "float32", 1, flags=("avx2",))
    assert one.seconds == pytest.approx(1e9 / (64 * 6e9))
    assert processor.floor(1e9, "float32", 4, flags=()).seconds == pytest.approx(one.seconds / 4)
    assert processor.floor(1e9, "bfloat16", 1, flags=("amx_bf16",)).seconds < one.seconds / 10
    assert processor.floor(1.0, "float32", 1, flags=()).seconds == pytest.approx(1e-6)
    assert "6 GHz" in one.source


def test_instruction_sets_are_read_from_the_kernel(tmp_path: Path) -> None:
    assert processor.cpu_flags(tmp_path) == ()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nflags\t\t: sse avx2\n")
    processor.cpu_flags.cache_clear()
    assert processor.cpu_flags(tmp_path) == ("avx2", "sse")
