"""Kernels of NKI on a made-up host: simulated first, held against numpy, and timed by a clock that is not ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from neuron_boxes import PROJECT, stacked
from neuronbench_neuron.backend import NeuronBackend
from neuronbench_neuron.compiled import kernels
from neuronbench_neuron.compiled.boot import HANDLERS
from neuronbench_neuron.compiled.provider import NeuronCompiledProvider

from neuronbench import BackendInfo, Point, ProviderInfo, config
from neuronbench.model import FrozenMap
from neuronbench.testing.neuron import FakeBox

IN_STACK = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("kernels", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
found = {}
for kernel in sorted(kernels.REFERENCES):
    handler = kernels.Handler(lambda text: None, kernel, 256, 96)
    try:
        made = handler.compile(sys.argv[2], 3, ["--target=trn1"])
        found[kernel] = made["parts"][kernel]["simulated_error"]
    except Exception as error:
        found[kernel] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeBox]:
    with FakeBox("trn1.2xlarge", tmp_path_factory.mktemp("nki") / "box") as made:
        stacked(made)
        yield made


def compiled(box: FakeBox, folder: Path, **env: str) -> Any:
    """What compiling every kernel gives: the simulator's error, or what it was refused for."""
    folder.mkdir()
    python = box.root / "opt" / "aws_neuronx_venv_pytorch_2_9" / "bin" / "python"
    done = subprocess.run(
        [python, "-W", "ignore", "-c", IN_STACK, HANDLERS / "kernels.py", folder], env=box.environ(**env),
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_kernel_is_what_numpy_has_by_the_simulator(box: FakeBox, tmp_path: Path) -> None:
    found = compiled(box, tmp_path / "good")
    assert sorted(found) == sorted(kernels.KERNELS)
    assert all(error < 1e-5 for error in found.values()), found
    assert (tmp_path / "good" / "kernel.neff").is_file()


def test_a_kernel_that_the_simulator_finds_wrong_never_runs(box: FakeBox, tmp_path: Path) -> None:
    found = compiled(box, tmp_path / "wrong", NEURONBENCH_FAKE_NKI_SIMULATED="1.01")
    for text in found.values():
        assert text.startswith("SimulationDiffers: the simulator's ")
        assert "was not run on the device" in text
    assert list((tmp_path / "wrong").iterdir()) == []


def test_a_benchmark_records_the_sdks_times_as_the_sdks(box: FakeBox, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", PROJECT / "benchmarks" / "nki", "-m", "trn1", "-p", "no:cacheprovider",
            "-q", "--nb-data-root", tmp_path / "data", "--nb-tracking-uri", "off", "--nb-set", "task=softmax",
            "--nb-set", "iterations=200",
        ],
        env=box.environ(NEURONBENCH_CACHE_DIR=str(tmp_path / "cache")), cwd=PROJECT, capture_output=True, text=True,
        timeout=240, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "data" / "receipts").rglob("record.json"))]
    boot, record = records if "compile-" in records[0]["name"] else records[::-1]
    assert (record["outcome"], record["validity"], record["provenance"]) == ("ok", "provisional", "simulated")
    p50, p99 = (record["metrics"][f"kernel_time_{stat}_us"] for stat in ("p50", "p99"))
    assert p50["value"] > 0
    assert "nki.benchmark" in p50["note"]
    assert p99["value"] is None  # 200 executions are no p99
    assert "it takes 1000" in p99["note"]
    assert {gate["id"]: gate["passed"] for gate in record["gates"]}["foreign_timer"] is False
    assert record["metrics"]["max_abs_err"]["value"] < 1e-6
    told = boot["resource"]["facts"]
    assert told["neuron"]["simulated_error"] < 1e-5
    assert told["weights"] == "none"
    assert told["neuron"]["neff"]["bytes"] > 0


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"task": "conv"}, "task: expected a kernel, one of add"),
        ({"rows": 100}, "rows: expected a multiple of 128"),
        ({"columns": 0}, "columns: expected a multiple of 1"),
        ({"dtype": "bfloat16"}, "kernels are of float32"),
        ({"auto_cast": "x"}, "auto_cast: expected one of"),
        ({}, ""),
    ],
    ids=str,
)
def test_what_is_no_kernel_is_refused_before_anything_boots(
    box: FakeBox, tmp_path: Path, params: dict[str, Any], reason: str
) -> None:
    backend = NeuronBackend(BackendInfo(name="trn1", title="", family="neuron", target=""), root=box.root)
    info = ProviderInfo(name="compiled_model/neuron", kind="compiled_model", families=("neuron",), target="")
    provider, settings = NeuronCompiledProvider(info), config.load(tmp_path, environ={})
    given = {"family": "nki", "task": "softmax", **params}
    point = Point(benchmark="b.py::f", lane="nki", backend="trn1", params=FrozenMap(given), id="p")
    verdict = provider.check(provider.spec(point, backend, settings), backend, settings)
    assert (reason in verdict.reason) if reason else verdict is None
