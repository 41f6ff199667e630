"""The archive of code: exactly what git sees, the same bytes for the same tree, and no secrets."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from fleet_project import git, project
from neuronbench_fleet import bundle
from neuronbench_fleet.errors import FleetError

from neuronbench.model import canonical_json


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


def members(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        return {member.name: member for member in archive}


def test_it_holds_the_tree_as_it_is_now_and_nothing_that_git_ignores(root: Path, tmp_path: Path) -> None:
    (root / "benchmarks" / "bench_tiny.py").write_text("changed = 1\n", encoding="utf-8")
    (root / "conftest.py").unlink()
    (root / "mlruns").mkdir()
    (root / "mlruns" / "secret-results.txt").touch()
    (root / "tool.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (root / "tool.sh").chmod(0o700)
    (root / "link").symlink_to("benchmarks/bench_tiny.py")
    (root / "way out").symlink_to("/etc/passwd")
    (root / "ünïcode näme.py").touch()
    made = bundle.make(root, tmp_path / "code.tar.gz")
    found = members(made.path)
    assert sorted(found) == [
        ".gitignore", "benchmarks/bench_tiny.py", "link", "new.txt", "pyproject.toml", "tool.sh", "ünïcode näme.py",
    ]  # fmt: skip
    assert (found["tool.sh"].mode, found["new.txt"].mode) == (0o755, 0o644)
    assert found["link"].linkname == "benchmarks/bench_tiny.py"
    assert {(one.uid, one.gid, one.mtime, one.uname) for one in found.values()} == {(0, 0, 0, "")}
    with tarfile.open(made.path) as archive:
        file = archive.extractfile("benchmarks/bench_tiny.py")
        assert file is not None
        assert file.read() == b"changed = 1\n"
    assert made.commit == git(root, "rev-parse", "HEAD")
    assert made.branch == "main"
    assert set(made.changed) == {
        "benchmarks/bench_tiny.py", "conftest.py", "link", "new.txt", "tool.sh", "way out", "ünïcode näme.py",
    }  # fmt: skip
    assert made.left_out == {"way out": "it is a link that leads out of the project"}
    assert (made.key, made.size_bytes) == (f"code/{made.sha256}.tar.gz", made.path.stat().st_size)


def test_the_same_tree_gives_the_same_bytes_and_another_one_does_not(root: Path, tmp_path: Path) -> None:
    first = bundle.make(root, tmp_path / "one.tar.gz")
    copy = tmp_path / "elsewhere"
    shutil.copytree(root, copy, symlinks=True)
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
    git(copy, "add", "-A")
    git(copy, "commit", "-q", "-m", "another commit, the same tree")
    second = bundle.make(copy, tmp_path / "two.tar.gz")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert (first.sha256, first.tree_sha256) == (second.sha256, second.tree_sha256)
    assert second.changed == []
    for change in (lambda: (copy / "new.txt").write_text("other"), lambda: (copy / "new.txt").chmod(0o755)):
        change()
        third = bundle.make(copy, tmp_path / "three.tar.gz")
        assert third.sha256 != second.sha256
        assert third.tree_sha256 != second.tree_sha256
        git(copy, "checkout", "-q", "new.txt")


@pytest.mark.parametrize(
    "name", [".env", ".env.local", "deploy/prod.env", "keys/id_rsa", "tls.pem", ".aws/config", "secrets.json", "A.KEY"]
)
def test_what_may_be_a_secret_stays_here_and_is_named(root: Path, tmp_path: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("PASSWORD=x\n", encoding="utf-8")
    git(root, "add", "-f", "-A")
    git(root, "commit", "-q", "-m", "a secret, even committed")
    made = bundle.make(root, tmp_path / "code.tar.gz")
    assert name not in members(made.path)
    assert made.left_out == {name: "it may hold a secret, by its name"}
    assert any(name in line and "left out" in line for line in bundle.describe(made))


@pytest.mark.parametrize("name", [".env.example", "neuronbench/secrets.py", "environment.py", "keyboard.txt"])
def test_what_only_sounds_like_one_goes_along(root: Path, tmp_path: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()
    assert name in members(bundle.make(root, tmp_path / "code.tar.gz").path)


def test_odd_names_and_links_arrive_as_they_are(root: Path, tmp_path: Path) -> None:
    (root / "..dots").mkdir()
    for name in (os.fsdecode(b"bad\xff.txt"), "new\nline.txt", "-dash", " blank ", "..dots/file", "a'\"$(x).py"):
        (root / name).write_bytes(os.urandom(8))
    (root / "to dots").symlink_to("..dots")
    (root / "to bad").symlink_to(os.fsdecode(b"bad\xff.txt"))
    made = bundle.make(root, tmp_path / "code.tar.gz")
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run(["tar", "-xzf", made.path, "-C", there, "--no-same-owner"], check=True, stderr=subprocess.DEVNULL)
    shutil.rmtree(root / ".git")
    assert subprocess.run(["diff", "-r", "--no-dereference", root, there]).returncode == 0
    canonical_json(made.to_json()).encode()  # names that are no UTF-8 can be told of
    assert "bad\\xff.txt" in made.changed
    assert made.left_out == {}


def test_a_state_that_git_cannot_tell_is_not_called_that_of_the_commit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "new.txt").unlink()
    other = project(tmp_path / "other")
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):  # as in a hook of another repository
        monkeypatch.setenv(name, str(other / ".git" / ("index" if "INDEX" in name else "")))
    assert bundle.make(root, tmp_path / "code.tar.gz").changed == []
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    git(root, "update-index", "--assume-unchanged", "conftest.py", "pyproject.toml")
    git(root, "update-index", "--skip-worktree", "benchmarks/bench_tiny.py")
    (root / "conftest.py").write_text("changed behind git's back\n", encoding="utf-8")
    (root / "benchmarks" / "bench_tiny.py").unlink()
    assert bundle.make(root, tmp_path / "code.tar.gz").changed == ["benchmarks/bench_tiny.py", "conftest.py"]
    (root / ".git" / "index").write_bytes(b"no index")
    with pytest.raises(FleetError, match="index file"):
        bundle.make(root, tmp_path / "code.tar.gz")


def test_a_part_of_a_checkout_is_a_project_of_its_own(root: Path, tmp_path: Path) -> None:
    made = bundle.make(root / "benchmarks", tmp_path / "code.tar.gz")
    assert sorted(members(made.path)) == ["bench_tiny.py"]
    assert made.changed == []
    (root / "benchmarks" / "bench_tiny.py").write_text("", encoding="utf-8")
    assert bundle.make(root / "benchmarks", tmp_path / "code.tar.gz").changed == ["bench_tiny.py"]


def test_results_are_no_code_though_git_does_not_ignore_them(root: Path, tmp_path: Path) -> None:
    (root / ".gitignore").unlink()
    (root / "mlruns" / "receipts").mkdir(parents=True)
    (root / "mlruns" / "README.md").write_text("tracked\n", encoding="utf-8")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "no rules")
    (root / "mlruns" / "receipts" / "record.json").write_text("{}", encoding="utf-8")
    made = bundle.make(root, tmp_path / "code.tar.gz", require_clean=True, results=root / "mlruns")
    assert [name for name in members(made.path) if name.startswith("mlruns")] == ["mlruns/README.md"]
    assert made.changed == []
    (root / "mlruns" / "README.md").write_text("changed\n", encoding="utf-8")
    elsewhere = bundle.make(root, tmp_path / "code.tar.gz", results=tmp_path / "mlruns")
    assert elsewhere.changed == ["mlruns/README.md", "mlruns/receipts/record.json"]


def test_what_is_refused_says_what_to_do(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "code.tar.gz"
    with pytest.raises(FleetError, match=r"differs from its commit in 1 files: new\.txt"):
        bundle.make(root, target, require_clean=True)
    (tmp_path / "bare").mkdir()
    with pytest.raises(FleetError, match="is in no git checkout"):
        bundle.make(tmp_path / "bare", target)
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 1000)
    (root / "weights.bin").write_bytes(bytes(5000))
    with pytest.raises(FleetError, match=r"the largest: weights\.bin \(0 MB\)[\s\S]*neuronbench weights put"):
        bundle.make(root, target)
    assert not target.exists()
    assert not list(tmp_path.glob(".code*"))


def test_a_nested_checkout_is_left_out_by_name(root: Path, tmp_path: Path) -> None:
    project(root / "nested")
    made = bundle.make(root, tmp_path / "code.tar.gz")
    assert "nested/" in made.left_out
    assert not [name for name in members(made.path) if name.startswith("nested")]
