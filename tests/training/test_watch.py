"""What is said while a run goes on, and where its checkpoints live meanwhile."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuronbench import measure_training
from neuronbench.testing.toy_trainer import toy_job
from neuronbench.training import folders
from neuronbench.worker.trainer import Tail

STEP = {"kind": "step", "tokens": 500, "loss": 2.0}


def test_a_line_says_where_the_run_is_how_fast_and_for_how_long() -> None:
    said: list[str] = []
    copy = io.StringIO()
    watch = measure_training.Watch(said.append, toy_job(steps=100), copy)
    entries: list[dict[str, Any]] = [
        {"kind": "start", "data_shard": [0, 2]},
        {**STEP, "step": 1, "end_ns": 50 * 10**9},
        {**STEP, "step": 2, "end_ns": 51 * 10**9, "loss": "nan"},
        {**STEP, "step": 3, "end_ns": 52 * 10**9, "loss": 1.23456},
        {"kind": "checkpoint", "step": 3},
        {"kind": "step"},
        {"kind": "end"},
    ]
    for entry in entries:
        watch(entry)
    assert said == [
        "training 100 steps",
        "step 1/100  loss 2",
        "step 2/100  loss nan  1,000 tok/s  ETA 1:38",
        "step 3/100  loss 1.235  1,000 tok/s  ETA 1:37",
        "step 3/100  checkpoint",
    ]
    assert [json.loads(line) for line in copy.getvalue().splitlines()] == entries


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.2, "1:00"), (3725, "1:02:05")])
def test_times_left_read_as_on_a_clock(seconds: float, text: str) -> None:
    assert measure_training.clock(seconds) == text


def test_a_growing_log_is_heard_line_by_line_however_it_is_cut(tmp_path: Path) -> None:
    heard: list[Any] = []
    path = tmp_path / "steps-rank0.jsonl"
    tail = Tail(path, heard.append)
    tail.look()
    for piece in (b'{"a": 1}\n{"a"', b": 2}\nnonsense\n[1]\n", b'{"a": 3', b"}\n"):
        with path.open("ab") as file:
            file.write(piece)
        tail.look()
    assert heard == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_fresh_folder_is_empty_and_goes_with_the_point(tmp_path: Path) -> None:
    run = folders.fresh(tmp_path, "session/point--r1")
    (run / "checkpoint").write_text("x")
    assert list(folders.fresh(tmp_path, "session/point--r1").iterdir()) == []
    folders.discard(run)
    assert list((tmp_path / "training" / "runs").iterdir()) == []


def test_a_resumable_folder_keeps_what_was_cut_off_and_not_what_was_whole(tmp_path: Path) -> None:
    run = folders.resumable(tmp_path, {"job": "a"})
    log = run / "steps-rank0.jsonl"
    start = json.dumps({"kind": "start", "rank": 0, "world_size": 1}) + "\n"
    log.write_text(start)
    assert folders.resumable(tmp_path, {"job": "a"}) == run
    assert log.exists()
    assert folders.resumable(tmp_path, {"job": "b"}) != run
    log.write_text(start + json.dumps({"kind": "end", "train_begin_ns": 0}) + "\n")
    assert list(folders.resumable(tmp_path, {"job": "a"}).iterdir()) == []


HOLD = """
import sys, pathlib
from neuronbench.training import folders
folders.resumable(pathlib.Path(sys.argv[1]), {"job": "a"})
folders.fresh(pathlib.Path(sys.argv[1]), "other")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_in_use_by_another_process_is_not_touched_and_that_of_a_dead_one_is(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(folders.InUse, match=f"is used by process {holder.pid}"):
            folders.resumable(tmp_path, {"job": "a"})
        folders.fresh(tmp_path, "mine")
        other = tmp_path / "training" / "runs" / "other"
        assert other.is_dir()
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait(30)
    folders.fresh(tmp_path, "mine")
    assert not other.exists()
    assert folders.resumable(tmp_path, {"job": "a"}).is_dir()


def test_a_run_that_nobody_went_on_with_is_removed_after_a_while(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.DEVNULL) as holder:
        holder.wait(30)
    (folder,) = (tmp_path / "training" / "resumable").iterdir()
    folders.resumable(tmp_path, {"job": "b"})
    assert folder.exists()
    os.utime(folder, (1, 1))
    folders.resumable(tmp_path, {"job": "b"})
    assert not folder.exists()
