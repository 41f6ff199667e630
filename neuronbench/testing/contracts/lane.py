"""What is relied on in a lane."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from neuronbench import grid as grids
from neuronbench.config import variables
from neuronbench.definitions import of_key
from neuronbench.lane_benchmarks import folder_of, grid_dirs
from neuronbench.plugins import Plugins
from neuronbench.protocols import LaneInfo
from neuronbench.testing.contracts.base import PluginContract, _with_path

OF_THE_MACHINE = frozenset(
    {
        "client_lag", "client_cpu", "send_lag", "achieved_rate", "load_kept_up", "steady_state", "telemetry",
        "window_covered",
    }
)  # fmt: skip
"""Gates that a host fails which is busy with something else: no plugin's fault."""
PROJECT = '[tool.pytest]\nneuronbench = true\nstrict = true\nfilterwarnings = ["error"]\n'


class LaneContract(PluginContract):
    """`lane`: the name it is registered under; `runs`: arguments of a pytest run that is to leave valid receipts.

    `runs = ("-m", "cpu and mylane", "--nb-set", "size=1")`; empty where nothing can be run here. `conftest`: the text
    of a `conftest.py` for that run, such as one that registers a backend to run on.
    """

    lane: ClassVar[str]
    runs: ClassVar[Sequence[str]] = ()
    conftest: ClassVar[str] = ""
    deadline_s: ClassVar[float] = 300.0

    @pytest.fixture
    def info(self, plugins: Plugins) -> LaneInfo:
        return plugins.lanes[self.lane]

    @pytest.fixture
    def folder(self, info: LaneInfo) -> Path:
        found = folder_of(info)
        if found is None:
            pytest.skip(f"lane {self.lane!r} brings no benchmarks")
        return found

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        """An empty project in which what is installed is all there is."""
        (tmp_path / "benchmarks").mkdir()
        (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
        hooks = f"import neuronbench\nfrom {self.name} import *  # noqa: F403\n" if not self._installed() else ""
        (tmp_path / "conftest.py").write_text(hooks + self.conftest, encoding="utf-8")
        return tmp_path

    def _installed(self) -> bool:
        return Plugins().pm.is_registered(self.plugin)

    def pytest(self, project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A pytest run of that project, in a process of its own, with its own settings only."""
        command = [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:cacheprovider", "--nb-tracking-uri", "off"]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=self.deadline_s, cwd=project,
            env=_environment(),
        )  # fmt: skip

    def test_its_headline_is_in_a_defined_vocabulary(self, info: LaneInfo) -> None:
        """A column of a table whose meaning nobody has written down cannot be quoted."""
        assert info.headline, "a lane without headline metrics has an empty table"
        for key in info.headline:
            assert of_key(key, info.vocabulary) is not None, (
                f"{key!r}: no definition has this id and unit; define it in LaneInfo.definitions"
            )

    def test_its_definitions_say_what_is_meant(self, info: LaneInfo) -> None:
        """An id, a unit, which way is better, and in words what is divided by what."""
        for id_, (_, better, text) in info.definitions.items():
            assert id_.isidentifier(), f"{id_!r} is part of names of columns and metrics"
            assert better in ("lower", "higher", None)
            assert len(text.split()) >= 3, f"{id_}: {text!r} does not say how it is made"

    def test_its_benchmarks_say_what_they_do(self, folder: Path) -> None:
        """The docstring is what a reader of a receipt has of the benchmark."""
        found = 0
        for path in sorted(folder.rglob("bench_*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("bench_"):
                    found += 1
                    assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"
        assert found, f"{folder} has no bench_*.py with a bench_* function"

    def test_its_grids_can_be_read_for_every_backend_and_size(self, plugins: Plugins, info: LaneInfo) -> None:
        """A grid that fails on one backend fails all collection there."""
        for folder in grid_dirs([info]):
            for path in sorted(folder.rglob("*.toml")):
                if path.name == grids.MODELS_FILE:
                    continue
                read = grids.load(path)
                for backend in plugins.backends.names():
                    for size in {grids.DEFAULT_SIZE, grids.FULL_SIZE, *read.sizes}:
                        try:
                            assert read.expand(backend, size), f"{path.name}: no point on {backend} in size {size}"
                        except grids.GridError as error:
                            if "names no role" not in str(error):  # a role of the project that it is used in
                                raise

    def test_its_points_are_collected_and_have_its_marker(self, project: Path, folder: Path) -> None:
        """`pytest benchmarks -m LANE` is how users ask for it."""
        done = self.pytest(project, "--collect-only", "-q", "-m", self.lane)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "::bench_" in done.stdout, done.stdout

    def test_a_run_leaves_receipts_that_may_be_quoted(self, project: Path, folder: Path, info: LaneInfo) -> None:
        """Outcome `ok`, no gate against it but those of a busy host, and headline metrics that have values."""
        if not self.runs:
            pytest.skip("`runs` names no arguments")
        done = self.pytest(project, *self.runs)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        records = [record for record in _records(project) if record["kind"] == "point"]
        measured = [record for record in records if record["outcome"] in ("ok", "slo_miss")]
        assert measured, done.stdout[-4000:]
        seen = {key for record in measured for key, one in record["metrics"].items() if one["value"] is not None}
        assert seen & set(info.headline), f"none of the headline metrics was measured; there are: {sorted(seen)}"
        for record in measured:
            wrong = [gate for gate in record["gates"] if gate["passed"] is False and gate["severity"] == "invalid"]
            failed = [gate for gate in wrong if gate["id"] not in OF_THE_MACHINE]
            assert not failed, f"{record['name']}: {failed}"
            for key, one in record["metrics"].items():
                assert of_key(key, info.vocabulary), f"{record['name']}: metric {key!r} has no definition"
                assert one["value"] is not None or one["note"], f"{record['name']}: {key} is null and does not say why"


def _environment() -> dict[str, str]:
    """That of a child. Whoever has receipts elsewhere, or another grid, by a variable finds neither in the project."""
    own = variables() - {"NEURONBENCH_CACHE_DIR"}  # what was compiled once is not compiled again
    return {name: value for name, value in _with_path().items() if not name.startswith("PYTEST_") and name not in own}


def _records(project: Path) -> list[dict[str, Any]]:
    found = sorted((project / "mlruns" / "receipts").glob("*/*/record.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]
