"""What a report is called: after the sessions whose records are in it, or after the set that was asked for."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from urllib.parse import unquote

import pytest
from report_receipts import Project, point, serving

from neuronbench import cli


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    project = Project(tmp_path)
    project.put(point(concurrency=4), *serving())
    return project


def made(project: Project, *arguments: str) -> tuple[str, str]:
    """Name of the only page there is, and its text."""
    assert cli.main(["--root", str(project.root), "report", *arguments]) == 0
    (path,) = (project.root / "mlruns" / "reports").iterdir()
    return path.name, path.read_text(encoding="utf-8")


def test_a_session_that_has_begun_gives_its_name_to_no_report(project: Project) -> None:
    measured = project.session
    begun = project.begin(9)
    assert begun > measured
    name, text = made(project)
    assert name == f"{measured}.html"
    assert f"<title>neuronbench report: {measured}</title>" in text
    assert f"<h1>neuronbench report: {measured}</h1>" in text
    assert begun not in text


@pytest.mark.parametrize(
    ("asked", "name", "title"),
    [
        ("last", "{0}", "{0}"),
        ("latest~0@backend=cpu", "{0}@backend=cpu", "{0}@backend=cpu"),
        ("tag:release=1.2", "tag-release=1.2", "tag:release=1.2"),
    ],
)
def test_what_was_asked_is_in_name_and_title(project: Project, asked: str, name: str, title: str) -> None:
    project.put(point(concurrency=8), *serving(), tags={"release": "1.2"})
    found, text = made(project, asked)
    wanted = name.format(project.session)
    assert found == f"{wanted}.html"
    assert f"<title>neuronbench report: {title.format(project.session)}</title>" in text


def test_links_work_in_what_the_readme_says_to_send(project: Project, tmp_path: Path) -> None:
    name, text = made(project)
    assert "Links are relative: they work where this page was written" in text
    data = project.root / "mlruns"
    with tarfile.open(tmp_path / "report.tar.gz", "w:gz") as sent:
        for path in (f"reports/{name}", f"receipts/{project.session}"):
            sent.add(data / path, path)
    away = tmp_path / "away"
    with tarfile.open(tmp_path / "report.tar.gz") as arrived:
        arrived.extractall(away, filter="data")
    links = {unquote(link) for link in re.findall(r'href="(\.\./[^"]+)"', text)}
    assert links
    assert all((away / "reports" / link).exists() for link in links)
