"""What runs of pytester's inside this process leave behind for the tests after them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INSIDE = """
import sys
{first}
before = list(sys.meta_path)
import importlib_metadata  # as MLflow does
sys.meta_path[:] = before  # as pytester does at the end of a run
import importlib.metadata
print(importlib.metadata.version("mlflow"))
"""


@pytest.mark.parametrize(("first", "found"), [("import conftest", True), ("", False)])
def test_distributions_are_found_after_a_run_inside(first: str, found: bool) -> None:
    code = INSIDE.format(first=first)
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert (done.returncode == 0) is found, done.stderr
    assert found or "PackageNotFoundError" in done.stderr  # else tests/conftest.py needs that line no more
