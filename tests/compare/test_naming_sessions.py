"""Which session a word means, and what is said where there is none, or one in which nothing was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_helpers import Bench, point

from neuronbench import cli, config


class Project:
    """A project's folder, and the command run in it, in this process."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        (root / config.CONFIG_FILE).write_text("")
        self.bench = Bench(root / "mlruns" / "receipts")

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = cli.main(["--root", str(self.root), *arguments])
        said = self._capsys.readouterr()
        return status, said.out, said.err


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    return Project(tmp_path, capsys)


def test_history_without_sessions_says_so(project: Project) -> None:
    status, out, error = project.run("history", "serving")
    assert (status, out) == (2, "")
    assert f"expected sessions in {project.bench.store.root}, found none yet; to make one: pytest" in error
    assert "no point or lane" not in error
    project.bench.session("1")
    assert "found 1 without a receipt of a point yet" in project.run("history")[2]
    project.bench.series("20261101-000001-0001", [1.0], at=point(1, lane="encoder"))
    status, _, error = project.run("history", "serving")
    assert status == 2
    assert "no point of lane 'serving' in the last" in error
