"""`neuronbench compare` and `neuronbench history` as a user runs them: in a process of their own."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from compare_helpers import Bench, point

from neuronbench.definitions import metric
from neuronbench.model import Failure, Outcome
from neuronbench.report.comparison import _size

ROOT = Path(__file__).resolve().parents[2]


class Project:
    """A project's folder with sessions in it, and the command run there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "neuronbench.toml").write_text("")
        self.bench = Bench(root / "mlruns" / "receipts")

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NEURONBENCH_")}
        env = {**inherited, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **environ}
        command = [sys.executable, "-m", "neuronbench", "--root", str(self.root), *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, cwd=self.root)
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two sessions: c1 as before, c8 12 % slower, c32 broken, and another lane unchanged. Only to be read."""
    project = Project(tmp_path_factory.mktemp("filled"))
    draw = random.Random(8)
    for name, slower in (("1", 1.0), ("2", 1.12)):
        session = project.bench.session(name)
        for repeat in range(1, 7):
            for concurrency in (1, 8, 32):
                factor = slower if concurrency == 8 else 1.0
                value = 100 * factor * (1 + draw.uniform(-0.005, 0.005))
                broken = concurrency == 32 and name == "2"
                error = Failure(kind="host_oom", phase="window", message="m", causal_line="Killed <9>")
                project.bench.put(
                    session, metric("ttft", value, stat="p50", n=400), metric("error_rate", 0.0), at=point(concurrency),
                    repeat=repeat, outcome=Outcome.ERROR if broken else Outcome.OK, error=error if broken else None,
                )  # fmt: skip
        project.bench.series(session, [5.0, 5.01, 4.99], at=point(1, lane="encoder"))
    return project


def test_the_last_session_against_the_one_before(filled: Project) -> None:
    done = filled.run("compare")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("A  latest~1 = 20261101-000001-0001, 21 receipts")
    (row,) = (line for line in lines if "regressed" in line and "ttft_p50_ms" in line)
    assert "serving.loop-cpu-c8" in row
    assert "6:6" in row
    assert "+1" in row
    assert any("broken" in line and "serving.loop-cpu-c32" in line and "Killed <9>" in line for line in lines)
    order = [next(i for i, line in enumerate(lines) if word in line) for word in ("broken", "regressed", "unchanged")]
    assert order == sorted(order)
    assert lines[-1].startswith("1 point ended worse, 1 regressed")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--fail-on", "regressed"], 1),
        (["--fail-on", "outcome"], 1),
        (["--fail-on", "regressed,outcome", "--lane", "encoder"], 0),
        (["--fail-on", "incomparable"], 0),
        (["--fail-on", "regressed", "--noise-floor", "ttft=20"], 0),
        (["--fail-on", "regressed", "--noise-floor", "20"], 0),
        (["--fail-on", "worse"], 2),
        (["--format", "pdf"], 2),
        (["--lane", "cooking"], 2),
        (["--noise-floor", "ttft=lots"], 2),
        (["nowhere", "latest"], 2),
        (["latest", "mlflow:nothing"], 2),
        (["latest", "--by", "backend"], 2),
        (["latest", "--by", "concurrency", "--lane", "encoder"], 2),
        (["--metric", "ttft_p5_ms", "--fail-on", "regressed"], 2),
        (["--metric", "ttft", "--metric", "nosuch"], 2),
        (["--metric", "ttft_*", "--lane", "serving"], 0),
        (["20261101-000001@lane=serving", "latest@lane=encoder"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_its_exit_status(filled: Project, arguments: list[str], status: int) -> None:
    done = filled.run("compare", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    assert (done.stderr != "") is (status != 0)


def test_nothing_in_common_says_what_there_is(filled: Project) -> None:
    done = filled.run("compare", "20261101-000001@lane=serving", "latest@lane=encoder")
    assert "no point in common" in done.stderr
    assert "gone: serving.loop-cpu-c1" in done.stderr
    assert "--by" in done.stderr


def test_a_metric_that_nothing_has_is_no_pass(filled: Project) -> None:
    done = filled.run("compare", "--metric", "ttft_p5_ms", "--fail-on", "regressed")
    assert done.stdout == ""
    assert "--metric 'ttft_p5_ms': no record has a metric of that name (did you mean 'ttft_p50_ms'?)" in done.stderr


def test_a_set_against_itself_is_said(filled: Project) -> None:
    done = filled.run("compare", "latest", "latest~1,latest", "--lane", "serving", "--fail-on", "regressed")
    assert "18 receipts are on both sides (latest and latest~1,latest)" in done.stderr
    assert done.returncode == 0


def test_a_lane_is_chosen_before_it_is_split(project: Project) -> None:
    session = project.bench.session("1")
    for lane, concurrencies in (("serving", (1, 8)), ("encoder", (2, 4))):
        for concurrency in concurrencies:
            for repeat in (1, 2):
                ttft = metric("ttft", 100.0 * concurrency + repeat, stat="p50", n=400)
                project.bench.put(session, ttft, at=point(concurrency, lane=lane), repeat=repeat)
    done = project.run("compare", "latest", "--by", "concurrency", "--lane", "serving")
    assert done.returncode == 0, done.stderr
    assert "latest@concurrency=1" in done.stdout
    assert "latest@concurrency=8" in done.stdout
    assert "encoder" not in done.stdout


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.5, "0.5 %"), (12.34, "12 %"), (214.6, "215 %"), (899, "899 %"), (4400, "× 45"), (1e9, "× 1e+07")],
)
def test_how_large_a_change_would_have_to_be(change: float, text: str) -> None:
    assert _size(math.log1p(change / 100)) == text


def test_markdown_fits_a_comment(filled: Project) -> None:
    done = filled.run("compare", "--format", "markdown")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("### neuronbench: 1 point ended worse, 1 regressed")
    assert any(line.startswith("| 🔴 | serving.loop-cpu-c8 | ttft\\_p50\\_ms |") for line in lines)
    assert "Killed &lt;9&gt;" in done.stdout
    assert done.stdout.count("<details>") == done.stdout.count("</details>")
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.count("|") in (4, 10) for line in tables), tables


def test_markdown_of_very_many_rows_is_cut(project: Project) -> None:
    from compare_helpers import of, readings

    from neuronbench.compare import compare
    from neuronbench.report.comparison_files import LIMIT, markdown

    sides = [
        of(*(readings([f, f, f * 1.001], at=point(c, name="n" * 300)) for c in range(400))) for f in (1.0, 1.5)
    ]  # fmt: skip
    text = markdown(compare(*sides))
    assert len(text) <= LIMIT
    assert "more are not shown" in text


def test_json_is_complete(filled: Project) -> None:
    document = json.loads(filled.run("compare", "--format", "json").stdout)
    rows = {(row["point"], row["metric"]): row for row in document["rows"]}
    row = rows["serving.loop-cpu-c8", "ttft_p50_ms"]
    assert row["verdict"] == "regressed"
    assert row["low"] < row["change"] < row["high"]
    assert row["change"] == pytest.approx(1.12, abs=0.01)
    assert (row["base"]["n"], len(row["head"]["repeats"])) == (6, 6)
    assert row["p"] <= row["p_adjusted"] < 0.05
    assert row["noise_floor"]["source"] == "3 % (default for p50)"
    assert document["outcomes"][0]["kind"] == "broken"


def test_junit_has_a_case_for_each_metric_of_each_point(filled: Project, tmp_path: Path) -> None:
    out = tmp_path / "made" / "compare.xml"
    done = filled.run("compare", "--format", "junit", "--out", str(out), "--fail-on", "regressed,outcome")
    assert done.returncode == 1
    assert str(out) in done.stdout
    suite = ElementTree.parse(out).getroot()[0]
    cases = {(case.get("classname"), case.get("name")): case for case in suite}
    assert int(suite.get("tests", "0")) == len(suite) == len(cases)
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert failed == {("serving.loop-cpu-c8", "ttft_p50_ms"), ("serving.loop-cpu-c32", "outcome")}
    assert suite.get("failures") == "2"
    told = cases["serving.loop-cpu-c32", "outcome"].find("failure")
    assert told is not None
    assert "Killed <9>" in (told.text or "")


def test_inconclusive_and_incomparable_are_skipped_in_junit(project: Project) -> None:
    project.bench.series(project.bench.session("1"), [1.0])
    project.bench.series(project.bench.session("2"), [1.0])
    project.bench.series(project.bench.session("3"), [1.0], facts={"stack.vllm": "9"})
    for pair, message in (
        (("latest~2", "latest~1"), "inconclusive (2 more)"),
        (("latest~1", "latest"), "incomparable"),
    ):
        (suite,) = ElementTree.fromstring(project.run("compare", *pair, "--format", "junit").stdout)
        (case,) = suite
        told = case.find("skipped")
        assert told is not None
        assert told.get("message") == message
    strict = project.run("compare", "--format", "junit", "--fail-on", "incomparable")
    assert strict.returncode == 1
    assert "<failure" in strict.stdout


def test_incomparable_says_how_to_compare_all_the_same(project: Project) -> None:
    project.bench.series(project.bench.session("1"), [1.0, 1.01, 1.02])
    project.bench.series(project.bench.session("2"), [1.0, 1.01, 1.02], facts={"stack.vllm": "9"})
    done = project.run("compare")
    assert "stack.vllm: 0.31.0 → 9" in done.stdout
    assert "in spite of that: --allow stack.vllm" in done.stdout
    again = project.run("compare", "--allow", "stack.vllm")
    assert "incomparable" not in again.stdout
    assert "stack.vllm: 0.31.0 → 9 (--allow stack.vllm)" in again.stdout


def test_damaged_receipts_are_named_and_left_out(filled: Project, project: Project) -> None:
    shutil.copytree(filled.bench.store.root, project.bench.store.root)
    broken = project.bench.store.root / "20261101-000002-0002" / "serving.loop-cpu-c1--r1" / "record.json"
    broken.write_text(broken.read_text()[:500])
    done = project.run("compare")
    assert done.returncode == 0
    assert done.stderr.startswith(f"neuronbench: left out: {broken}: ")
    assert len(done.stderr.splitlines()) == 1
    assert "6:5" in done.stdout


def test_many_rows_are_counted_and_not_shown(project: Project) -> None:
    for name in ("1", "2"):
        session = project.bench.session(name)
        for concurrency in range(40):
            values = [metric("ttft", 9.0, stat="p50"), metric("tpot", 9.0, stat="p50")]
            project.bench.put(session, *values, at=point(concurrency))
    done = project.run("compare")
    assert "20 more rows are not shown (20 inconclusive): --all shows them" in done.stdout
    assert "more rows" not in project.run("compare", "--all").stdout


def test_plugins_say_what_noise_is(project: Project) -> None:
    (project.root / "noisy.py").write_text(
        "from neuronbench import hookimpl\n"
        "@hookimpl\n"
        "def comparison_policy(metric, lane):\n"
        "    if metric == 'tpot_p50_ms':\n"
        "        raise RuntimeError('no idea')\n"
        "    return {'band': 0.5} if metric == 'ttft_p50_ms' else None\n"
    )
    (project.root / "noisy-1.dist-info").mkdir()
    (project.root / "noisy-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1\n")
    (project.root / "noisy-1.dist-info" / "entry_points.txt").write_text("[neuronbench]\nnoisy = noisy\n")
    for name, factor in (("1", 1.0), ("2", 1.2)):
        session = project.bench.session(name)
        for repeat, value in enumerate((10.0, 10.1, 9.9), start=1):
            values = [metric(id_, factor * value, stat="p50") for id_ in ("ttft", "tpot")]
            project.bench.put(session, *values, repeat=repeat)
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(project.root)])}
    done = project.run("compare", "--format", "json", **environ)
    rows = {row["metric"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["ttft_p50_ms"]["noise_floor"]["source"] == "50 % (policy of a plugin for ttft_p50_ms)"
    assert rows["ttft_p50_ms"]["verdict"] == "unchanged"
    assert rows["tpot_p50_ms"]["verdict"] == "regressed"
    assert done.stderr.count("RuntimeError: no idea") == 1


def test_history_shows_where_it_jumped(project: Project) -> None:
    draw = random.Random(9)
    for number in range(1, 11):
        late = number > 5
        facts = {"stack.vllm": "0.32.0"} if late else {}
        value = (60.0 if late else 50.0) * (1 + draw.uniform(-0.01, 0.01))
        session = project.bench.session(str(number))
        project.bench.put(session, metric("ttft", value, stat="p50"), metric("tpot", 9.0, stat="p50"), facts=facts)
    one = project.run("history", "serving.loop-cpu-c8", "--metric", "ttft")
    assert one.returncode == 0, one.stderr
    (step,) = (line for line in one.stdout.splitlines() if "◀" in line)
    assert step.split()[0] == "20261101-000006-0006"
    assert "from 20261101-000006-0006 on; changed with it: stack.vllm: 0.31.0 → 0.32.0" in one.stdout
    both = project.run("history", "serving")
    assert "at 20261101-000006-0006" in both.stdout
    document = json.loads(project.run("history", "--format", "json").stdout)
    steps = {series["metric"]: [step["session"] for step in series["steps"]] for series in document}
    assert steps == {"ttft_p50_ms": ["20261101-000006-0006"], "tpot_p50_ms": []}
    assert project.run("history", "--fail-on-step").returncode == 1
    assert project.run("history", "--fail-on-step", "--metric", "tpot").returncode == 0
    assert "| serving.loop-cpu-c8 | ttft\\_p50\\_ms | 10 |" in project.run("history", "--format", "markdown").stdout


@pytest.mark.parametrize("arguments", [["serving"], ["--metric", "mfu"], ["--format", "xml"]], ids=" ".join)
def test_history_of_nothing(project: Project, arguments: list[str]) -> None:
    project.bench.series(project.bench.session("1"), [1.0], at=point(1, lane="encoder"))
    done = project.run("history", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["compare", "history"])
def test_help_teaches(project: Project, command: str) -> None:
    done = project.run(command, "--help", COLUMNS="120")
    assert done.returncode == 0
    assert f"neuronbench {command}  " in done.stdout
    assert "Exit status:" in done.stdout
