"""A project as a user has one: a git checkout, and three points on the fake backend, each held by a gate."""

from __future__ import annotations

import subprocess
from pathlib import Path

CONFTEST = "from neuronbench.testing.fake_backend import register_backends, register_resources  # noqa: F401\n"
BENCH = '''
import os
import pathlib
import time

import pytest

HELD = pathlib.Path(os.environ["TINY_GATES"])


@pytest.mark.parametrize("n", [1, 2, 3])
def bench_tiny(measure, n):
    """Waits for its gate, and counts how often it was measured to the end."""
    with (HELD / "begun.txt").open("a") as file:
        file.write(f"{n}\\n")
    print(f"point {n} waits")
    while not (HELD / f"open-{n}").exists():
        time.sleep(0.02)
    if (HELD / f"fail-{n}").exists():
        raise AssertionError("it was to fail")
    measure.metric("speed", 100.0 + n, unit="toys/s")
    with (HELD / "ended.txt").open("a") as file:
        file.write(f"{n}\\n")
'''


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(["git", "-C", str(root), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def project(root: Path) -> Path:
    """Make it at `root`, committed but for one file."""
    (root / "benchmarks").mkdir(parents=True)
    files = {
        "conftest.py": CONFTEST, "benchmarks/bench_tiny.py": BENCH, ".gitignore": "mlruns/\n.cache/\n",
        "pyproject.toml": "[tool.pytest.ini_options]\npython_files = ['bench_*.py']\npython_functions = ['bench_*']\n"
        "addopts = ['-ra', '-p', 'no:cacheprovider', '-s']\n",
    }  # fmt: skip
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "one")
    (root / "new.txt").write_text("not committed\n", encoding="utf-8")
    return root


class Gates:
    """What holds the points, and what they say of themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def open(self, *points: int) -> None:
        for point in points:
            (self.folder / f"open-{point}").touch()

    def fail(self, *points: int) -> None:
        for point in points:
            (self.folder / f"fail-{point}").touch()

    def _counts(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def begun(self) -> list[int]:
        return self._counts("begun.txt")

    @property
    def ended(self) -> list[int]:
        return self._counts("ended.txt")
