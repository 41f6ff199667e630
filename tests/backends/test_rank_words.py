"""What is said of ranks that ended badly: real torchrun, ranks that end as ranks do. Needs a stack (`make stack`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from neuronbench.worker.handlers.training import launch

STACK = Path(os.environ.get("NEURONBENCH_TEST_STACK") or Path(__file__).parents[2] / ".venv-cpu")
RANK = """
import importlib.util, os, pathlib, sys, time
spec = importlib.util.spec_from_file_location("nb_launch", sys.argv[1])
launch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
folder, rank, how = pathlib.Path(sys.argv[2]), os.environ["RANK"], sys.argv[3]

def see(name):
    while not (folder / name).exists():
        time.sleep(0.02)

if rank == "0":
    (folder / "began").touch()
    if how == "aborts":  # and the other misses it before torchrun does
        see("gone")
        try:
            raise RuntimeError("Connection closed by peer")
        except RuntimeError as error:
            launch.leave(folder, rank, f"RuntimeError: {error}")
            raise
    time.sleep(600)
see("began")
if how == "aborts":
    (folder / "gone").touch()
    os.abort()
os._exit(7)
"""


@pytest.mark.parametrize(
    ("how", "first"), [("aborts", "rank 1: ended by SIGABRT"), ("exits", "rank 1: ended with status 7")]
)
def test_a_rank_that_could_not_speak_is_named_first_with_what_ended_it(tmp_path: Path, how: str, first: str) -> None:
    if not (STACK / "bin" / "torchrun").exists():
        pytest.skip(f"no torch in {STACK}: make stack")
    program = tmp_path / "rank.py"
    program.write_text(RANK, encoding="utf-8")
    arguments = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", "--monitor-interval", "0.1"]
    command = [STACK / "bin" / "python", launch.__file__, tmp_path, *arguments, program, launch.__file__, tmp_path, how]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    told = launch.words(tmp_path)
    assert told[0] == first, done.stderr
    assert len(told) == {"aborts": 2, "exits": 1}[how]  # that torchrun ended the other is no news


def test_torchrun_itself_may_be_what_failed(tmp_path: Path) -> None:
    if not (STACK / "bin" / "torchrun").exists():
        pytest.skip(f"no torch in {STACK}: make stack")
    arguments = ["--rdzv-backend", "nothing-like-it", "--rdzv-endpoint", "127.0.0.1:0", "--nproc-per-node", "2"]
    command = [STACK / "bin" / "python", launch.__file__, tmp_path, *arguments, tmp_path / "rank.py"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    (told,) = launch.words(tmp_path)
    assert told.startswith("torchrun: ValueError: "), told
    assert "nothing-like-it" in told


def test_nothing_is_said_where_nothing_failed(tmp_path: Path) -> None:
    assert launch.words(tmp_path) == []
