"""What has to start fast imports nothing heavy: each import happens in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "torch", "vllm", "transformers", "mlflow", "boto3", "pandas", "numpy", "scipy", "pyarrow", "matplotlib",
    "huggingface_hub", "httptools",
)  # fmt: skip


def heavy_after(code: str) -> list[str]:
    """Those of HEAVY that are loaded after running `code`."""
    script = f"import sys\n{code}\nimport json\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("NEURONBENCH_")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "module",
    [
        "neuronbench",
        "neuronbench.model",
        "neuronbench.protocols",
        "neuronbench.config",
        "neuronbench.plugins",
        "neuronbench.pytest_plugin",
        "neuronbench.session",
        "neuronbench.receipts",
        "neuronbench.cli",
        "neuronbench.doctor",
        "neuronbench.load.arrivals",
        "neuronbench.load.workload",
    ],
)
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    assert heavy_after(f"import {module}") == []


def test_the_check_can_fail() -> None:
    assert heavy_after("import numpy") == ["numpy"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["plugins"], ["list"], ["doctor", "--help"], ["fleet", "--help"]], ids=" ".join
)
def test_running_it_loads_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = f"from neuronbench.cli import main\nassert main(['--root', {str(tmp_path)!r}, *{arguments!r}]) == 0"
    assert heavy_after(code) == []


def test_loading_every_plugin_loads_nothing_heavy() -> None:
    assert heavy_after("from neuronbench.plugins import Plugins\nPlugins()") == []
