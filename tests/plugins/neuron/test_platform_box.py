"""The made-up Neuron host itself: what it shows is what the plugin's real sources are documented to show."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from neuronbench import stacks
from neuronbench.catalog.instances import instance_of
from neuronbench.testing.neuron import SHAPES, FakeBox, shape_of

SAMPLES = Path(__file__).parents[2] / "data" / "neuron_ls"


def run(box: FakeBox, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=box.environ(), capture_output=True, text=True, timeout=60, **more)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_the_devices_of_the_catalogue(name: str, tmp_path: Path) -> None:
    instance = instance_of(name)
    assert instance is not None
    with FakeBox(name, tmp_path / "box") as box:
        done = run(box, "neuron-ls", "-j")
        assert not done.stdout.endswith("\n")  # as the real one
        devices = json.loads(done.stdout)
    assert len(devices) == instance.devices == len(list((box.root / "dev").glob("neuron*")))
    ids = [core for device in devices for core in device["neuroncore_ids"]]
    assert ids == list(range(instance.cores()))
    assert {device["memory_size"] for device in devices} == {instance.memory_gib * 2**30}
    assert all(len(device["neuroncore_ids"]) == device["nc_count"] for device in devices)
    for device in devices:  # links are mutual
        for other in device["connected_to"] or ():
            assert device["neuron_device"] in devices[other]["connected_to"]


@pytest.mark.parametrize(
    ("name", "sample"),
    [("inf2.xlarge", "inf2_xlarge.json"), ("trn1.2xlarge", "trn1_2xlarge.json"), ("trn2.3xlarge", "trn2_3xlarge.json")],
)
def test_the_tool_answers_as_the_real_ones_did(name: str, sample: str, tmp_path: Path) -> None:
    (real,) = json.loads((SAMPLES / sample).read_text(encoding="utf-8"))
    box = FakeBox(name, tmp_path / "box")
    (fake,) = box.devices
    assert list(fake) == list(real)
    for key in ("neuron_device", "connected_to", "nc_count", "memory_size", "neuroncore_ids", "numa_node"):
        assert fake[key] == real[key], key


def test_a_torus_is_wired_as_documented() -> None:
    shape = shape_of("trn2.48xlarge")
    real = json.loads((SAMPLES / "trn2_busy_three_devices.json").read_text(encoding="utf-8"))
    for device in real:
        assert shape.links(device["neuron_device"]) == device["connected_to"]


@pytest.mark.parametrize(
    ("fault", "status", "out", "err"),
    [
        ("no_device", 1, "", "failed to discover Neuron devices"),
        ("crash", 2, "", "panic"),
        ("garbage", 0, "+-----", ""),
        ("truncated", 0, "[", ""),
    ],
)
def test_faults_of_the_tool(fault: Any, status: int, out: str, err: str, tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        box.neuron_ls(fault)
        done = run(box, "neuron-ls", "-j")
    assert done.returncode == status
    assert done.stdout.startswith(out)
    assert err in done.stderr
    if fault in ("garbage", "truncated"):
        with pytest.raises(ValueError):
            json.loads(done.stdout)


def test_an_unknown_flag_is_refused_on_standard_output(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        done = run(box, "neuron-ls", "--frobnicate")
    assert (done.returncode, done.stderr) == (1, "")
    assert "--frobnicate" in done.stdout


def test_the_tool_does_not_answer_to_whom_does_not_name_its_box(tmp_path: Path) -> None:
    """A fake that is left on a real host's PATH must not be believed."""
    box = FakeBox("inf2.xlarge", tmp_path / "box")
    done = subprocess.run([box.bin / "neuron-ls", "-j"], capture_output=True, text=True, env={}, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is a fake of the box" in done.stderr


def test_without_tools_there_are_none(tmp_path: Path) -> None:
    assert not (FakeBox("inf2.xlarge", tmp_path / "box", tools=False).bin / "neuron-ls").exists()


def test_holders_are_shown_as_long_as_they_run(tmp_path: Path) -> None:
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box, subprocess.Popen(["sleep", "60"]) as child:
        box.hold([2, 3], pid=child.pid, command="sleep 60", static=False)
        held = json.loads(run(box, "neuron-ls", "-j").stdout)
        assert [bool(device["neuron_processes"]) for device in held] == [False, True, False, False, False, False]
        assert held[1]["neuron_processes"][0]["pid"] == child.pid
        child.kill()
        child.wait()
        freed = json.loads(run(box, "neuron-ls", "-j").stdout)
    assert not any(device["neuron_processes"] for device in freed)


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_the_metadata_service_wants_a_token(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box", region="eu-north-1", life_cycle="spot") as box:
        url = box.imds.url
        assert ask(url, "/latest/meta-data/placement/region")[0] == 401
        assert ask(url, "/latest/api/token", "PUT")[0] == 400  # no lifetime named
        status, token = ask(url, "/latest/api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        assert status == 200
        told = {"X-aws-ec2-metadata-token": token}
        assert ask(url, "/latest/meta-data/placement/region", **told) == (200, "eu-north-1")
        assert ask(url, "/latest/meta-data/instance-life-cycle", **told) == (200, "spot")
        assert ask(url, "/latest/meta-data/nothing", **told)[0] == 404
    with pytest.raises(RuntimeError, match="use the box as a context manager"):
        box.imds.url  # noqa: B018


def test_the_environment_speaks_of_this_box_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "7")
    monkeypatch.setenv("NEURONBENCH_INSTANCE_TYPE", "trn1.2xlarge")
    monkeypatch.setenv("NEURONBENCH_REPEATS", "2")
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        environ = box.environ(EXTRA="1")
    assert "NEURON_RT_VISIBLE_CORES" not in environ
    assert "NEURONBENCH_INSTANCE_TYPE" not in environ
    assert (environ["NEURONBENCH_REPEATS"], environ["EXTRA"]) == ("2", "1")
    assert environ["PATH"].startswith(str(box.bin))


def test_an_environment_claims_packages_and_has_those_of_its_interpreter(tmp_path: Path) -> None:
    fakes = tmp_path / "fakes"
    (fakes / "torch_neuronx").mkdir(parents=True)
    (fakes / "torch_neuronx" / "__init__.py").write_text("WHO = 'fake'\n")
    box = FakeBox("inf2.xlarge", tmp_path / "box")
    venv = box.venv(
        "aws_neuronx_venv_pytorch",
        packages={"torch-neuronx": "2.9.0.2.15", "pytest": "0.0.1"},
        placeholders={"nki": "0.0.1"},
        paths=[fakes],
    )
    code = "import sys, torch_neuronx, packaging; print(torch_neuronx.WHO, sys.prefix, sys.executable)"
    done = subprocess.run([venv / "bin" / "python", "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["fake", str(venv), str(venv / "bin" / "python")], done.stderr
    found = stacks.inspect(
        venv / "bin" / "python", packages=["torch-neuronx", "nki", "pytest", "pluggy"], modules=["torch_neuronx"]
    )
    assert found.error == ""
    assert found.packages["torch-neuronx"] == "2.9.0.2.15"
    assert found.packages["pytest"] == "0.0.1"  # what is claimed goes before what is there
    assert "pluggy" in found.packages
    assert found.placeholders == ("nki",)
    assert found.modules == ("torch_neuronx",)
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected one of inf2\.xlarge, .*found 'inf2\.xlarg'"):
        FakeBox("inf2.xlarg", tmp_path / "a")
    with pytest.raises(ValueError, match="offers 1, found 2"):
        FakeBox("inf2.xlarge", tmp_path / "b", logical_core_config=2)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "file").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        FakeBox("inf2.xlarge", tmp_path / "c")
