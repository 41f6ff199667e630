"""A stack that the user named and that is no Python is a usage error; one that lacks a package skips what needs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = "def bench_served(endpoint):\n    pass\n\ndef bench_trained(trainer):\n    pass\n"


def place(folder: Path, kind: str) -> Path:
    """Something that is no interpreter, of each kind."""
    path = folder / "named"
    if kind == "empty":
        path.mkdir()
    elif kind == "text":
        path.write_text("no program\n")
    elif kind == "program":
        path.write_text("#!/bin/sh\necho hello\n")
        path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("nothing", "nothing there"),
        ("empty", "a folder without bin/python"),
        ("text", "a file that cannot be run"),
        ("program", "is not a Python interpreter"),
    ],
)
def test_a_named_place_that_is_no_python_is_a_usage_error(project, kind: str, found: str) -> None:
    project.bench(BENCH)
    path = place(project.path, kind)
    result = project.run("-m", "fake", "--nb-stack", f"serving={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stdout.str() + result.stderr.str()
    assert f"--nb-stack: serving={path}: expected a Python interpreter, or a venv with one in bin/, found " in said
    assert found in said
    assert "correct it, or leave it out" in said
    assert not project.receipts.exists()


def test_a_place_in_the_settings_counts_where_a_point_of_this_machine_needs_it(project) -> None:
    project.bench(BENCH)
    (project.path / "neuronbench.toml").write_text('[stacks]\nserving = "nowhere"\n')
    assert project.run("--collect-only", "-m", "absent").ret == 0
    assert project.run("--collect-only", "-m", "fake", "-k", "trained").ret == 0
    result = project.run("--collect-only", "-m", "fake")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stdout.str() + result.stderr.str()
    assert f"neuronbench.toml: serving={project.path / 'nowhere'}: expected" in said


def test_one_for_all_kinds_counts_unless_the_kind_has_its_own(project) -> None:
    project.bench(BENCH)
    (project.path / "neuronbench.toml").write_text(f'[stacks]\nserving = "{sys.executable}"\nany = "nowhere"\n')
    assert project.run("--collect-only", "-m", "fake", "-k", "served").ret == 0
    assert project.run("--collect-only", "-m", "fake", "-k", "trained").ret == pytest.ExitCode.USAGE_ERROR


def test_a_python_that_lacks_a_package_is_no_usage_error(project) -> None:
    project.bench(BENCH)
    assert project.run("--collect-only", "-m", "fake", "--nb-stack", f"any={sys.executable}").ret == 0


def test_a_misspelt_kind_is_a_usage_error(project) -> None:
    project.bench(BENCH)
    result = project.run("-m", "fake", "--nb-stack", f"servin={sys.executable}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stdout.str() + result.stderr.str()
    assert "expected a stack for serving, compile, train or any, found 'servin' (did you mean 'serving'?)" in said
