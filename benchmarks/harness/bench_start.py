"""What pytest pays for having neuronbench installed: collection of many points, and the import of the plugin."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

POINTS, TURNS = 1000, 5
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = "[tool.pytest]\nstrict = true\n"


def seconds(*arguments: str, cwd: Path) -> float:
    """Wall time of an interpreter of our own kind, in a project of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NEURONBENCH_TRACKING_URI": "off"}
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    ended = time.perf_counter()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert arguments[0] != "-m" or f"{POINTS} tests collected" in done.stdout or f"{POINTS}/" in done.stdout, (
        done.stdout
    )
    return ended - begun


def bench_collection(board, tmp_path: Path) -> None:
    """`pytest --collect-only` of 1,000 points of a grid against as many parameters of a bare test."""
    points, bare = tmp_path / "points", tmp_path / "bare"
    for folder in (points, bare):
        folder.mkdir()
        (folder / "pyproject.toml").write_text(SETTINGS + ("neuronbench = true\n" if folder is points else ""))
    (points / "benchmarks" / "grids").mkdir(parents=True)
    axes = "[axes]\n" + "".join(f"{name} = [{', '.join(map(str, range(10)))}]\n" for name in "abc")
    (points / "benchmarks" / "grids" / "many.toml").write_text('title = "many"\n[settings]\nmodel = "x"\n' + axes)
    (points / "bench_many.py").write_text(
        "import neuronbench as nb\n@nb.bench(lane='serving', grid='many', backends=['cpu'])\n"
        "def bench_many(endpoint, measure, point):\n    pass\n"
    )
    (bare / "test_many.py").write_text(
        "import pytest\n@pytest.mark.parametrize('a', range(10))\n@pytest.mark.parametrize('b', range(10))\n"
        "@pytest.mark.parametrize('c', range(10))\ndef test_many(a, b, c):\n    pass\n"
    )
    collect = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    mine, reference = [], []
    for _ in range(TURNS):
        mine.append(seconds(*collect, cwd=points))
        reference.append(seconds(*collect, "-p", "no:neuronbench", cwd=bare))
    ratios = [ours / theirs for ours, theirs in zip(mine, reference, strict=True)]
    board.report(
        what="collecting 1,000 points", unit="s", value=statistics.median(mine), turns=mine,
        bare=statistics.median(reference),
    )  # fmt: skip
    board.report(
        what="collecting, ratio to bare tests", unit="×", value=statistics.median(ratios), turns=ratios, budget=1.5,
        bare=1.0,
    )  # fmt: skip


def bench_import(board, tmp_path: Path) -> None:
    """What importing the plugin adds to a pytest that runs anyway."""

    def milliseconds(module: str) -> float:
        code = f"import pytest, time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return 1000 * float(done.stdout)

    mine, reference = [], []
    for _ in range(2 * TURNS):
        mine.append(milliseconds("neuronbench.pytest_plugin"))
        reference.append(milliseconds("pytest_benchmark.plugin"))
    board.report(
        what="importing the pytest plugin", unit="ms", value=statistics.median(mine), turns=mine, budget=100.0,
        bare=statistics.median(reference), note="bare: pytest-benchmark's plugin",
    )  # fmt: skip
