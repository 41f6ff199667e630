"""What runs of pytester's inside this process leave behind for the tests after them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import importlib.metadata
import sys

import pytest

INSIDE = '''
import importlib_metadata
import mine
import numpy
import sqlalchemy

def test_inside():
    assert sqlalchemy.create_engine("sqlite://").connect().execute(sqlalchemy.text("select 3")).scalar() == 3
'''


def test_a_run_inside_is_the_first_to_import_libraries(pytester):
    assert not {"importlib_metadata", "numpy", "sqlalchemy"} & set(sys.modules)
    pytester.makepyfile(INSIDE)
    pytester.makepyfile(mine="")
    pytester.syspathinsert()
    pytester.inline_run("-p", "no:neuronbench").assertoutcome(passed=1)


def test_distributions_are_found():
    assert importlib.metadata.version("mlflow")


def test_libraries_work():
    import numpy
    import sqlalchemy

    table = sqlalchemy.Table("t", sqlalchemy.MetaData(), sqlalchemy.Column("a", sqlalchemy.Integer))
    assert str(sqlalchemy.select(table.c.a).compile()).split() == ["SELECT", "t.a", "FROM", "t"]
    assert numpy.arange(3).sum() == 3


def test_what_the_test_had_made_is_forgotten():
    assert "mine" not in sys.modules
"""
KEEP = "import inside_runs\ninside_runs.keep_libraries()\n"


@pytest.mark.parametrize(("conftest", "failed"), [(KEEP, 0), ("", 2)])
def test_libraries_are_loaded_once(tmp_path: Path, conftest: str, failed: int) -> None:
    (tmp_path / "test_after.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytester", "-p", "no:neuronbench", "-p", "no:cacheprovider", "-W",
         "ignore", "-c", os.devnull, "--rootdir", str(tmp_path), "test_after.py"],
        cwd=tmp_path, env={**environ, "PYTHONPATH": str(Path(__file__).parent)}, capture_output=True, text=True,
    )  # fmt: skip
    assert f"{4 - failed} passed" in done.stdout, done.stdout
    assert (f"{failed} failed" in done.stdout) is bool(failed)  # else nothing has to be kept any more
