"""Environments of a Neuron image: told apart by what they hold and by what runs on the cores; made-up ones kept out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from neuronbench import BackendInfo, Stack, config
from neuronbench.model import FrozenMap
from neuronbench.testing.neuron import FakeBox

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import checks, hardware, stacks
from neuronbench_neuron.backend import NeuronBackend

SDK_2_28 = {"vllm": "0.13.0", "vllm-neuron": "0.4.1", "torch-neuronx": "2.9.0.2.11", "neuronx-cc": "2.23"}
BETA = {"vllm": "0.21.0", "vllm-neuron": "0.21.0.1.0.0", "torch-neuronx": "2.9.0.2.15", "neuronx-cc": "2.26"}
TRACE = {"torch-neuronx": "2.9.0.2.15", "neuronx-cc": "2.26"}
TRAIN = {**TRACE, "optimum-neuron": "0.4.3", "trl": "0.24.0", "peft": "0.17.0"}


class Image:
    """A box whose environments can import what they claim, and nothing of it does anything."""

    def __init__(self, box: FakeBox, modules: Path) -> None:
        self.box, self.modules = box, modules

    def venv(self, name: str, packages: Mapping[str, str], **more: Any) -> Path:
        folder = self.modules / name
        for package in (*packages, *more.get("placeholders", ())):
            module = folder / package.replace("-", "_")
            module.mkdir(parents=True)
            (module / "__init__.py").touch()
        return self.box.venv(f"aws_neuronx_venv_{name}", packages=packages, paths=[folder], **more)

    def stack(self, kind: str, backend: str = "", **stacks_: str) -> Stack:
        family = backend or self.box.shape.instance.family
        info = BackendInfo(name=family, title="", family="neuron", target="")
        settings = config.load(self.box.root, environ={}, overrides={"stacks": stacks_})
        return NeuronBackend(info, environ=self.box.environ()).stack(kind, settings)


@pytest.fixture
def inf2(tmp_path: Path) -> Iterator[Image]:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        yield Image(box, tmp_path / "modules")


@pytest.fixture
def trn2(tmp_path: Path) -> Iterator[Image]:
    with FakeBox("trn2.3xlarge", tmp_path / "box") as box:
        yield Image(box, tmp_path / "modules")


def test_environments_are_told_apart_by_what_they_hold_not_by_their_names(inf2: Image) -> None:
    train = inf2.venv("a", TRAIN)
    serve = inf2.venv("b", SDK_2_28)
    trace = inf2.venv("z", TRACE)
    assert inf2.stack("serving").python == serve / "bin" / "python"
    assert inf2.stack("train").python == train / "bin" / "python"
    assert inf2.stack("compile").python == trace / "bin" / "python"  # all three will do: the newest name
    assert inf2.stack("serving").packages["vllm-neuron"] == "0.4.1"


def test_of_two_the_one_that_runs_on_these_cores(inf2: Image) -> None:
    old, new = inf2.venv("vllm_0_13", SDK_2_28), inf2.venv("vllm_0_21", BETA)
    assert inf2.stack("serving").python == old / "bin" / "python"
    shutil.rmtree(old)
    assert inf2.stack("serving").python == new / "bin" / "python"  # the only one: its points say why they cannot run


def test_on_newer_cores_the_newer_one(trn2: Image) -> None:
    trn2.venv("vllm_0_13", SDK_2_28)
    new = trn2.venv("vllm_0_21", BETA)
    assert trn2.stack("serving").python == new / "bin" / "python"


def test_what_the_user_says_is_used_or_refused(inf2: Image) -> None:
    trace, serve = inf2.venv("trace", TRACE), inf2.venv("serve", SDK_2_28)
    assert inf2.stack("serving", serving=str(serve)).source == "--nb-stack"
    with pytest.raises(LookupError, match="no vllm"):
        inf2.stack("serving", serving=str(trace))


def test_placeholders_are_named(inf2: Image) -> None:
    inf2.venv("pip", {"vllm": "0.13.0"}, placeholders={"torch-neuronx": "1.0"})
    with pytest.raises(LookupError, match="torch-neuronx is only a placeholder"):
        inf2.stack("serving")


def test_a_placeholder_is_known_by_its_version_too(inf2: Image) -> None:
    inf2.venv("pip", {"torch-neuronx": "1.0"})
    with pytest.raises(LookupError, match="torch-neuronx is only a placeholder"):
        inf2.stack("compile")


def test_a_made_up_environment_on_a_real_host_is_refused(inf2: Image, tmp_path: Path) -> None:
    venv = inf2.venv("serve", SDK_2_28)
    settings = config.load(tmp_path, environ={}, overrides={"stacks": {"serving": str(venv)}})
    with pytest.raises(LookupError, match="is a made-up environment"):
        stacks.choose("serving", settings, (), made_up_host=False)
    assert stacks.choose("serving", settings, (), made_up_host=True).packages[stacks.FAKE] == "0"


def test_a_program_of_an_environment_finds_its_neighbours(inf2: Image) -> None:
    venv = inf2.venv("serve", SDK_2_28)
    tool = venv / "bin" / stacks.PJRT_TOOL
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    stack = inf2.stack("serving")
    environ = stacks.environment(stack, inf2.box.root, {"PATH": os.defpath, "PYTHONPATH": "/x", "KEPT": "1"})
    done = subprocess.run([stacks.PJRT_TOOL], env=environ, capture_output=True, text=True, timeout=20)
    assert done.stdout == "found\n"
    assert environ["PATH"].endswith("opt/aws/neuron/bin")
    assert "PYTHONPATH" not in environ
    assert environ["KEPT"] == "1"


def findings(image: Image, stack: Stack) -> dict[str, str]:
    found = hardware.look(image.box.root, environ=image.box.environ())
    return {check.found: check.status for check in checks.of_stack(found.family, found, stack)}


def test_doctor_names_an_environment_that_cannot_work(inf2: Image) -> None:
    inf2.venv("serve", BETA)
    said = findings(inf2, inf2.stack("serving"))
    assert said == dict.fromkeys(said, "fail")
    assert any("runs on NeuronCore-v3 (Trn2)" in text for text in said)


def test_doctor_names_a_missing_tool(inf2: Image) -> None:
    packages = FrozenMap({**SDK_2_28, "torch-xla": "2.9.0", "python": "3.10.12"})
    stack = Stack(kind="serving", python=inf2.box.root / "opt/x/bin/python", source="test", packages=packages)
    assert any("libneuronpjrt-path is not there" in text for text in findings(inf2, stack))
    tool = inf2.box.write("opt/x/bin/libneuronpjrt-path", "")
    assert tool.exists()
    assert findings(inf2, stack) == {}
