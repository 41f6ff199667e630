"""A lane that brings its benchmarks: installing its distribution is all it takes, and removing it undoes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LANE = """
from neuronbench import LaneInfo, hookimpl

@hookimpl
def register_lanes(register):
    register(LaneInfo(name="{name}", title="Tasting", benchmarks="{package}"))
"""
BENCH = '''
import neuronbench as nb

@nb.bench(lane="{name}", grid="{name}/soup", backends=["fake"])
def bench_soup(measure, point):
    """Tastes."""
'''


class Site:
    """A folder of installed distributions, on the path of the pytest that is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, *, package: str = "", files: bool = True) -> Path:
        """A distribution `acme-NAME` with a lane of that name; returns the folder of its benchmarks."""
        root = self.folder / f"acme_{name}"
        folder = root / "benchmarks"
        (folder / "grids" / name).mkdir(parents=True)
        (root / "__init__.py").write_text(LANE.format(name=name, package=package or f"acme_{name}.benchmarks"))
        if files:
            (folder / "__init__.py").write_text("")
            (folder / f"bench_{name}.py").write_text(BENCH.format(name=name))
            (folder / "grids" / name / "soup.toml").write_text("[axes]\nsalt = [1, 2]\n")
        info = self.folder / f"acme_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[neuronbench]\n{name} = acme_{name}\n")
        return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Site(folder)


@pytest.fixture
def tasted(project: Any) -> Any:
    """The throw-away project with a `benchmarks` folder of its own, run in a process of its own."""
    project.in_process = False
    benchmarks = project.path / "benchmarks"
    benchmarks.mkdir()
    (benchmarks / "bench_own.py").write_text(
        'import neuronbench as nb\n@nb.bench(lane="toy")\ndef bench_own(measure, point):\n    """Own."""\n'
    )
    return project


def test_installing_a_lane_brings_its_benchmarks_and_removing_it_takes_them(site: Site, tasted: Any) -> None:
    tasted.run("benchmarks", "-m", "tasting").stderr.fnmatch_lines(["*Unknown marker*tasting*"])
    folder = site.install("tasting")
    result = tasted.run("benchmarks", "-m", "fake and tasting")
    result.assert_outcomes(passed=2)
    points = {record["point"]["id"]: record["point"]["benchmark"] for record in tasted.records()}
    assert points == {
        f"tasting.soup-fake-salt={salt}": "acme_tasting.benchmarks/bench_tasting.py::bench_soup" for salt in (1, 2)
    }
    (folder.parent.parent / "acme_tasting-1.0.dist-info" / "entry_points.txt").unlink()
    tasted.run("benchmarks", "-m", "tasting").stderr.fnmatch_lines(["*Unknown marker*tasting*"])


def test_they_are_left_alone_where_something_else_is_named(site: Site, tasted: Any) -> None:
    folder = site.install("tasting")
    named = tasted.run("benchmarks/bench_own.py", "--collect-only", "-q", "-m", "fake")
    named.stdout.no_fnmatch_line("*bench_soup*")
    named.stdout.fnmatch_lines(["*bench_own*"])
    twice = tasted.run("benchmarks", str(folder), "--collect-only", "-q", "-m", "fake and tasting")
    twice.stdout.fnmatch_lines(["2/* tests collected*"])


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("acme_none.benchmarks", "cannot be found"),
        ("json", None),
        ("json.tool", "found a module"),
        ("acme_x", "nothing"),
    ],
)
def test_a_lane_whose_benchmarks_are_not_there_is_left_out_and_says_why(
    site: Site, tasted: Any, package: str, why: str | None
) -> None:
    site.install("tasting", package=package)
    result = tasted.run("benchmarks", "--collect-only", "-m", "fake")
    if why is None:  # a package without benchmarks is no error
        result.stdout.no_fnmatch_line("*left out*")
    else:
        result.stdout.fnmatch_lines([f"*'tasting' is left out*{why}*"])
    result.stdout.fnmatch_lines(["*bench_own?fake?*"])
