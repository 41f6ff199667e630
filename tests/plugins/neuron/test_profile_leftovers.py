"""Traces of a session that was killed are shown and removed by `neuronbench cache`; those of one that runs are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neuronbench_neuron.profile.leftovers import FOLDER, ProfileLeftovers, new_folder

from neuronbench.protocols import Cache


@pytest.fixture
def ended() -> int:
    """The pid of a process that was, and is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def leave(cache_dir: Path, pid: int, size: int) -> Path:
    folder = cache_dir / FOLDER / f"{pid}-1764500000000000000"
    (folder / "rank_0").mkdir(parents=True)
    (folder / "rank_0" / "trace.ntff").write_bytes(bytes(size))
    return folder


def cache(root: Path, *words: str) -> str:
    """What `neuronbench cache` prints, with the user's cache below `root`."""
    done = subprocess.run(
        [sys.executable, "-m", "neuronbench", "--root", str(root), "cache", *words], cwd=root, text=True, check=True,
        stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": str(root / "cache")},
    )  # fmt: skip
    return done.stdout


def test_what_a_killed_session_left_is_shown_and_pruned_and_nothing_else(tmp_path: Path, ended: int) -> None:
    home = tmp_path / "cache" / "neuronbench"
    left, used, other = leave(home, ended, 5_000_000), leave(home, os.getpid(), 1000), home / FOLDER / "notes"
    other.mkdir()
    told: list[dict[str, Any]] = json.loads(cache(tmp_path, "status", "--json"))
    (mine,) = (each for each in told if each["name"] == "neuron-profiles")
    assert {each["key"]: (each["bytes"], each["in_use"]) for each in mine["entries"]} == {
        left.name: (5_000_000, False),
        used.name: (1000, True),
    }
    shown = cache(tmp_path, "status")
    assert "traces of Neuron servers" in shown
    assert "5.0 MB" in shown
    cache(tmp_path, "prune", "--max-size", "0")
    assert not left.exists()
    assert (used / "rank_0" / "trace.ntff").exists()
    assert other.exists()


def test_nothing_is_said_where_nothing_was_profiled(tmp_path: Path) -> None:
    assert "traces of Neuron" not in cache(tmp_path, "status")


def test_a_cache_like_others(tmp_path: Path, ended: int) -> None:
    left = ProfileLeftovers(tmp_path)
    assert isinstance(left, Cache)
    assert left.entries() == []
    mine = new_folder(tmp_path)
    assert [(each.key, each.in_use) for each in left.entries()] == [(mine.name, True)]
    assert left.remove(mine.name) is False
    assert left.remove(leave(tmp_path, ended, 1).name) is True
    assert left.damage(mine.name) == ""
    with pytest.raises(ValueError, match="not an entry"):
        left.remove("../artifacts")
