"""`neuronbench report` as a user runs it: in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_receipts import Project, point, serving

from neuronbench.definitions import metric


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_last_session_is_reported_where_it_says(project: Project) -> None:
    project.put(point(concurrency=4), *serving())
    done = project.run("report")
    assert done.returncode == 0, done.stderr
    path = project.root / "mlruns" / "reports" / f"{project.session}.html"
    assert done.stdout.strip().endswith(str(path))
    assert "1 point of 1 receipt, " in done.stdout
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert 'href="../receipts/' in path.read_text(encoding="utf-8")


def test_markdown_by_its_name_or_on_standard_output(project: Project) -> None:
    project.put(point(concurrency=4), *serving())
    named = project.run("report", "--out", "deep/er/report.md")
    assert named.returncode == 0, named.stderr
    text = (project.root / "deep" / "er" / "report.md").read_text(encoding="utf-8")
    assert text.startswith(f"# neuronbench report: {project.session}\n")
    printed = project.run("report", "--format", "markdown", "--out", "-")
    assert printed.stdout.startswith(f"# neuronbench report: {project.session}\n")
    assert "](mlruns/receipts/" in printed.stdout


def test_it_can_be_judged_against_another_set(project: Project) -> None:
    for number, factor in ((1, 1.0), (2, 1.5)):
        session = project.begin(number)
        for repeat in range(1, 4):
            rate = metric("output_throughput", 100.0 * factor + repeat, n=9_000)
            project.put(point(concurrency=4), rate, repeat=repeat, session=session)
    done = project.run("report", "latest", "--compare", "latest~1", "--format", "markdown", "--out", "-")
    assert done.returncode == 0, done.stderr
    assert "## Comparison" in done.stdout
    assert "1 improved" in done.stdout


def test_a_lane_alone_with_the_boots_of_all(project: Project) -> None:
    project.put(point(concurrency=4), *serving())
    project.put(point("lora_sft", "lora_sft", batch_size=1), metric("train_throughput", 1000.0, n=39))
    project.put(point(), metric("boot_time", 23.5), kind="boot", name="boot-endpoint-1")
    done = project.run("report", "--lane", "lora_sft", "--format", "markdown", "--out", "-")
    assert done.returncode == 0, done.stderr
    assert "## serving" not in done.stdout
    assert "23.50" in done.stdout
    none = project.run("report", "--lane", "encoder", "--out", "-")
    assert none.returncode == 2
    assert "has no point of lane 'encoder'" in none.stderr


def test_a_damaged_receipt_is_told_and_left_out(project: Project) -> None:
    project.put(point(concurrency=4), *serving())
    broken = project.put(point(concurrency=8), *serving())
    (broken / "record.json").write_text('{"schema_version": 1, "point"')
    done = project.run("report", "--format", "markdown", "--out", "-")
    assert done.returncode == 0
    assert "left out:" in done.stderr
    assert broken.name in done.stderr
    assert "## Left out" in done.stdout


def test_a_damaged_table_costs_its_figures_and_nothing_else(project: Project) -> None:
    folder = project.put(point(concurrency=4), *serving(), tables={"requests": _requests()})
    (folder / "requests.parquet").write_bytes(b"PAR1 and no more")
    done = project.run("report", "--format", "markdown", "--out", "-")
    assert done.returncode == 0
    assert "expected a Parquet table" in done.stderr
    assert "distribution of" not in done.stdout
    assert "**Headline**" in done.stdout


def _requests() -> object:
    from synthetic_receipts import requests

    return requests(20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "pdf"), "--format 'pdf': expected html, markdown"),
        (("nothing",), "'nothing': expected a session, a receipt or a folder"),
        (("--lane", "nope"), "has no point of lane 'nope'; it has: serving"),
        (("--out", "."), "expected a file, found a folder"),
        (("--out", "week.pdf"), "--out week.pdf: expected a name ending in .html or .md, found '.pdf'"),
        (("latest", "--compare", "latest~7"), "expected 8 sessions"),
    ],
)
def test_a_wrong_call_says_what_was_expected(project: Project, arguments: tuple[str, ...], said: str) -> None:
    project.put(point(concurrency=4), *serving())
    done = project.run("report", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_nothing_measured_yet(project: Project) -> None:
    done = project.run("report")
    assert done.returncode == 2
    assert "pytest benchmarks -m cpu" in done.stderr


def test_help_teaches(project: Project) -> None:
    text = " ".join(project.run("report", "--help").stdout.split())
    for words in ("tag:NAME=VALUE", "--compare", "Requests are never pooled", "Exit status", "links are relative"):
        assert words in text
