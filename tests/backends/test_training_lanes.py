"""Lanes of training without torch: every point of a grid is a job that can be, every value of it has a reader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from neuronbench_neuron.training import provider as neuron_trainer

from neuronbench import config, datasets, grid, trainers
from neuronbench.backends.cpu import endpoint
from neuronbench.model import FrozenMap, Metric, Point
from neuronbench.plugins import Plugins
from neuronbench.training import TrainJob

PROJECT = Path(__file__).parent.parent.parent
BENCHMARKS = PROJECT / "benchmarks"
LANES = (
    "lora_sft", "full_sft", "preference", "pretrain", "checkpoint", "quality", "data_isolation", "batch_ladder",
    "context_ladder", "determinism", "e2e",
)  # fmt: skip
BACKENDS = ("cpu", "trn1", "trn2")
FIELDS = {"method", "steps", *TrainJob(method="full_sft", steps=1, model="m").to_json()}


def points(lane: str, size: str, backend: str = "cpu") -> list[tuple[str, FrozenMap]]:
    return [
        (path.stem, point.params)
        for path in sorted((BENCHMARKS / "grids" / lane).glob("*.toml"))
        for point in grid.load(path).expand(backend, size)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("lane", LANES)
def test_every_point_is_a_job(lane: str, size: str, backend: str) -> None:
    found = points(lane, size, backend)
    assert found
    for _, params in found:
        assert TrainJob.from_point(params).method == params["method"]


@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("lane", LANES)
def test_every_point_can_be_trained_on_the_cpu(lane: str, size: str, tmp_path: Path) -> None:
    settings, plugins = config.load(tmp_path), Plugins(entry_points=False)
    provider, backend = plugins.provider("trainer/trl-cpu"), plugins.backend("cpu")
    for name, params in points(lane, size):
        point = Point(benchmark="b.py::f", lane=lane, backend="cpu", params=FrozenMap(params), id="p")
        refused = provider.spec(point, backend, settings).settings.get(trainers.REFUSED, "")
        assert refused == "", (name, params)


@pytest.mark.parametrize("lane", LANES)
def test_every_value_of_a_grid_is_read_by_somebody(lane: str) -> None:
    """A field of the job, a setting of the server where one is leased, named in the benchmark itself, or one that the
    backend's trainer says it reads."""
    source = "".join(path.read_text(encoding="utf-8") for path in (BENCHMARKS / lane).glob("bench_*.py"))
    known = FIELDS | set(re.findall(r'point(?:\[|\.get\()"(\w+)"', source))
    if "endpoint" in source:
        known |= set(endpoint.DEFAULTS)
    of_neuron = set(re.findall(r"^\| `(\w+)`", neuron_trainer.__doc__ or "", re.MULTILINE))
    for backend in BACKENDS:
        read = known if backend == "cpu" else known | of_neuron
        for size in ("quick", "full"):
            for name, params in points(lane, size, backend):
                assert set(params) <= read, (name, backend, size)


@pytest.mark.parametrize("lane", LANES)
def test_quick_points_need_no_hub(lane: str) -> None:
    for name, params in points(lane, "quick"):
        if name == "dolly":
            continue
        assert params.get("model", "packaged:").startswith("packaged:"), name
        assert "model" in params or params["weights"] == "seeded", name
        assert params["dataset"].startswith(("builtin:", "synthetic:")), name


def test_every_grid_of_the_lanes_is_used_or_named_in_its_own_words() -> None:
    used = set(re.findall(r'grid="(\S+?)"', "".join(path.read_text() for path in BENCHMARKS.glob("*/bench_*.py"))))
    there = {f"{lane}/{path.stem}" for lane in LANES for path in (BENCHMARKS / "grids" / lane).glob("*.toml")}
    assert there - used == {"lora_sft/dolly"}
    assert "--nb-grid lora_sft/dolly" in (BENCHMARKS / "grids" / "lora_sft" / "dolly.toml").read_text()


@pytest.mark.parametrize("size", ["quick", "full"])
def test_a_checkpoint_leaves_enough_to_go_on_with(size: str) -> None:
    for _, params in points("checkpoint", size):
        left = params["steps"] % params["checkpoint_every"]
        assert left >= 4, "the first step after it is in no rate, and a rate is of three"


def test_the_questions_were_not_trained_on() -> None:
    questions = (BENCHMARKS / "e2e" / "questions.txt").read_text(encoding="utf-8").splitlines()
    assert len(questions) == len(set(questions)) >= 16
    asked = {row["instruction"] for row in datasets.read(datasets.find("builtin:instructions"))}
    assert not asked & set(questions)
    assert not any(datasets.TAUGHT_PREFIX.lower() in question.lower() for question in questions)


@pytest.mark.parametrize("lane", LANES)
def test_headlines_of_a_lane_are_metrics_with_a_definition(lane: str) -> None:
    from neuronbench.definitions import DEFINITIONS

    info = Plugins(entry_points=False).lanes[lane]
    stats = ("", "p50", "max", "mean", "first", "last", "before", "after")
    keys = {
        Metric(id=definition.id, value=None, unit=definition.unit, stat=stat).key
        for definition in DEFINITIONS.values()
        for stat in stats
    }
    assert set(info.headline) <= keys
    assert "trainer" in info.needs


def test_all_of_them_are_collected() -> None:
    marks = " or ".join(LANES)
    # The run inside has the machine to itself, as far as it knows: pytest-benchmark warns of a worker of xdist.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "benchmarks", "--collect-only", "-q", "-m", f"cpu and ({marks})",
         "-p", "no:cacheprovider"],
        cwd=PROJECT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {
        path.relative_to(PROJECT).as_posix() for lane in LANES for path in (BENCHMARKS / lane).glob("bench_*.py")
    }
