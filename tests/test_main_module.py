"""`python -m neuronbench` and the installed command are one: the same words, the same exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("arguments", [["--version"], ["list", "--session", "nothing-of-that-name"], ["no-command"]])
def test_both_ways_to_start_end_alike(arguments: list[str], tmp_path: Path) -> None:
    installed = Path(sys.executable).with_name("neuronbench")
    (tmp_path / "pyproject.toml").write_text("")
    ends = [
        subprocess.run([*how, *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
        for how in ([str(installed)], [sys.executable, "-m", "neuronbench"], [sys.executable, "-m", "neuronbench.cli"])
    ]
    assert len({(end.returncode, end.stdout, end.stderr) for end in ends}) == 1
    assert (ends[0].returncode == 0) == (arguments == ["--version"])
