"""Which session a word means, and what is said where there is none, or one in which nothing was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_helpers import Bench, point

from neuronbench import cli, config
from neuronbench.model import Failure, Outcome


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


# -- latest, last, the start of an id: the same everywhere


@pytest.fixture
def two(project: Project) -> Project:
    """Two sessions of one receipt each, and a younger one that has none yet."""
    for number in ("1", "2"):
        project.bench.series(project.bench.session(number), [float(number)])
    project.bench.session("3")
    return project


NAME = "serving.loop-cpu-c8--r1"


@pytest.mark.parametrize("word", ["latest", "last", "20261101-000002", "20261101-000002-0002"])
def test_a_session_has_the_same_names_everywhere(two: Project, word: str) -> None:
    status, out, error = two.run("list", "--session", word)
    assert (status, "20261101-000002-0002" in out) == (0, True), error
    for asked in (word, f"{word}/{NAME}"):
        side = two.bench.selector().side(asked)
        assert (side.label, side.sessions) == (asked, ("20261101-000002-0002",))
        assert side.named == asked.replace(word, "20261101-000002-0002")
    status, _, error = two.run("overlay", f"{word}/{NAME}", f"{word}/absent")
    assert (status, "20261101-000002-0002/" in error) == (1, True)
    assert "there is no session" not in error


@pytest.mark.parametrize("word", ["latest~1", "last~1"])
def test_the_one_before_has_a_name_everywhere(two: Project, word: str) -> None:
    assert "20261101-000001-0001" in two.run("list", "--session", word)[1]
    assert two.bench.selector().side(f"{word}/{NAME}").named == f"20261101-000001-0001/{NAME}"
    status, _, error = two.run("list", "--session", "latest~2")
    assert (status, "latest~2: expected 3 sessions with receipts in" in error) == (2, True)


def test_what_was_asked_is_told_with_ids_for_words(two: Project) -> None:
    side = two.bench.selector().side("latest@backend=cpu,latest~1,tag:x=1,20261101-000001")
    assert side.named == "20261101-000002-0002@backend=cpu,20261101-000001-0001,tag:x=1,20261101-000001-0001"
    assert side.only("x", lambda reading: True).named == side.named


def test_a_folder_is_taken_as_it_is_typed(two: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two.root)
    (two.root / "latest").symlink_to(two.bench.store.root / "20261101-000001-0001")
    side = two.bench.selector().side(f"latest/{NAME}")
    assert side.sessions == ("20261101-000001-0001",)


def test_a_resumed_run_takes_both_words(tmp_path: Path) -> None:
    found = [config.load(tmp_path, environ={}, overrides={"resume": word}).resume for word in ("latest", "last", "x")]
    assert found == ["last", "last", "x"]


# -- what has to be said of the choice


def test_a_session_without_receipts_is_named_and_not_chosen(two: Project) -> None:
    said = "20261101-000003-0003 has no receipt (yet): latest is 20261101-000002-0002\n"
    for words in (["compare"], ["report", "--format", "markdown", "--out", "-"], ["list", "--session", "latest"]):
        status, _, error = two.run(*words)
        assert (status, error) == (0, f"neuronbench: {said}"), words


def _typos(project: Project, *numbers: str) -> None:
    for number in numbers:
        session = project.bench.session(number)
        error = Failure(kind="bad_setting", phase="boot", message="m", causal_line="no model of that name")
        project.bench.put(session, outcome=Outcome.ERROR, error=error)
        project.bench.put(session, outcome=Outcome.SKIPPED, reason="no hardware", at=point(9))


def test_a_latest_without_results_says_so_and_how_to_name_the_one_before(two: Project) -> None:
    _typos(two, "4", "5")
    latest = "latest is 20261101-000005-0005, in which nothing was measured (1 error, 1 skipped)"
    before = "the youngest before it with results is 20261101-000002-0002: latest~2"
    status, out, error = two.run("report", "--format", "markdown", "--out", "-")
    assert (status, f"{latest}; {before}" in error) == (0, True), error
    assert "20261101-000005-0005" in out, "what was asked for, and nothing else"
    assert two.bench.selector().side("latest~2").sessions == ("20261101-000002-0002",)
    two.run("list", "--session", "latest")


def test_error_against_error_is_nothing_compared(two: Project) -> None:
    _typos(two, "4", "5")
    status, out, error = two.run("compare", "--fail-on", "regressed")
    assert status == 2
    assert "failing" in out, "how the points ended is still told"
    assert "no model of that name" in out
    assert "1 point failing on both sides" in out
    assert "nothing to compare: " in error
    assert "latest~1 is 20261101-000004-0004, in which nothing was measured" in error
    status, _, error = two.run("compare", "latest~3", "latest~2")
    assert (status, error) == (0, "neuronbench: 20261101-000003-0003 has no receipt (yet): latest~2 is "
                                  "20261101-000002-0002\n")  # fmt: skip


def test_where_no_session_has_results_that_is_said(project: Project) -> None:
    _typos(project, "1")
    assert "(1 error, 1 skipped); none before it has results" in project.run("report", "--out", "-")[2]


@pytest.mark.parametrize("word", ["latest", "last", "latest~1"])
def test_what_is_elsewhere_has_no_latest(two: Project, word: str) -> None:
    status, out, error = two.run("pull", "--session", word, "--from", str(two.bench.store.root))
    assert (status, out) == (2, "")
    assert f"--session {word}: expected the id of a session or the start of it" in error
