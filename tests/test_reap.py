"""Reaping, with real processes that lost their session and their guard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronbench import guard
from neuronbench.processes import spawn
from neuronbench.reap import reap


def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child of its own, as left behind by a session and a guard that were both killed."""
    process = subprocess.Popen(["sh", "-c", "sleep 120 & wait"], start_new_session=True)
    until(lambda: guard.descendants(process.pid), "the orphan's child")
    yield process
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@pytest.fixture
def dead() -> dict[str, Any]:
    """Identity of a process that has ended."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    identity = {"pid": process.pid, "created": guard.created(process.pid)}
    process.communicate()
    return identity


def me() -> dict[str, Any]:
    return {"pid": os.getpid(), "created": guard.created(os.getpid())}


def pid_file(receipts: Path, *, owner: dict[str, Any], guardian: dict[str, Any], child: Any, **more: Any) -> Path:
    path = receipts / "20260101-120000-abcd" / "pids" / "server.json"
    path.parent.mkdir(parents=True)
    content = {"name": "server", "machine": guard.machine(), "owner": owner, "guard": guardian, "child": child}
    path.write_text(json.dumps({**content, **more}))
    return path


def test_a_dead_owner_s_child_is_ended(tmp_path: Path, orphan: subprocess.Popen[bytes], dead: dict[str, Any]) -> None:
    child = {"pid": orphan.pid, "created": guard.created(orphan.pid)}
    (below,) = guard.descendants(orphan.pid)
    path = pid_file(tmp_path, owner=dead, guardian=dead, child=child)

    (planned,) = reap(tmp_path, dry_run=True)
    assert (planned.action, planned.pids) == ("ended", (orphan.pid, below))
    assert orphan.poll() is None
    assert path.exists()

    (done,) = reap(tmp_path)
    assert (done.action, done.session, done.name) == ("ended", "20260101-120000-abcd", "server")
    assert done.pids == (orphan.pid, below)
    assert orphan.wait(20) == -signal.SIGTERM
    assert guard.created(below) is None
    assert not path.exists()
    assert reap(tmp_path) == []


def test_a_live_owner_s_child_is_left(tmp_path: Path, orphan: subprocess.Popen[bytes], dead: dict[str, Any]) -> None:
    child = {"pid": orphan.pid, "created": guard.created(orphan.pid)}
    path = pid_file(tmp_path, owner=me(), guardian=dead, child=child)
    (done,) = reap(tmp_path)
    assert done.action == "left"
    assert f"runs (pid {os.getpid()})" in done.detail
    assert orphan.poll() is None
    assert path.exists()


def test_a_recycled_pid_is_left(tmp_path: Path, orphan: subprocess.Popen[bytes], dead: dict[str, Any]) -> None:
    path = pid_file(tmp_path, owner=dead, guardian=dead, child={"pid": orphan.pid, "created": "ticks:1"})
    (done,) = reap(tmp_path)
    assert (done.action, done.pids) == ("stale", ())
    assert orphan.poll() is None
    assert not path.exists()


def test_a_recycled_owner_is_dead(tmp_path: Path, orphan: subprocess.Popen[bytes], dead: dict[str, Any]) -> None:
    owner = {"pid": os.getpid(), "created": "ticks:1"}
    child = {"pid": orphan.pid, "created": guard.created(orphan.pid)}
    pid_file(tmp_path, owner=owner, guardian=dead, child=child)
    assert [done.action for done in reap(tmp_path)] == ["ended"]
    assert orphan.wait(20) == -signal.SIGTERM


def test_a_stale_file_is_removed(tmp_path: Path, dead: dict[str, Any]) -> None:
    path = pid_file(tmp_path, owner=dead, guardian=dead, child=dead)
    assert [done.action for done in reap(tmp_path, dry_run=True)] == ["stale"]
    assert path.exists()
    assert [done.action for done in reap(tmp_path)] == ["stale"]
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "action"),
    [
        ({"node": "another"}, "left"),
        ({"pid_namespace": "pid:[1]"}, "left"),
        ({"boot": "before"}, "stale"),
        ({"boot": "before", "node": "another"}, "left"),
    ],
)
def test_pids_mean_nothing_elsewhere(
    tmp_path: Path, orphan: subprocess.Popen[bytes], dead: dict[str, Any], change: dict[str, str], action: str
) -> None:
    child = {"pid": orphan.pid, "created": guard.created(orphan.pid)}
    machine = {**guard.machine(), **change}
    path = pid_file(tmp_path, owner=dead, guardian=dead, child=child, machine=machine)
    assert [done.action for done in reap(tmp_path)] == [action]
    assert orphan.poll() is None
    assert path.exists() == (action == "left")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "server", "machine": {}, "owner": {"pid": 0}}'])
def test_an_unreadable_file_is_reported_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "session" / "pids" / "server.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (done,) = reap(tmp_path)
    assert (done.action, done.name) == ("unreadable", "server")
    assert path.exists()


def test_a_guard_that_still_works_is_waited_for(tmp_path: Path) -> None:
    """The session was just killed and its guard is in the time of grace."""
    pids = tmp_path / "session" / "pids"
    code = """
import sys, time
from pathlib import Path
from neuronbench.processes import PIPE, spawn
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
child = spawn([sys.executable, "-c", stubborn], name="server", pid_dir=Path(sys.argv[1]), stdout=PIPE, grace_s=1)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(120)
"""
    session = subprocess.Popen([sys.executable, "-c", code, str(pids)], stdout=subprocess.PIPE)
    assert session.stdout is not None
    child = int(session.stdout.readline())
    session.kill()
    session.wait()
    session.stdout.close()
    (done,) = reap(tmp_path)
    assert done.action == "ended"
    assert child in done.pids
    assert guard.created(child) is None
    assert not list(pids.iterdir())


def test_a_running_session_in_this_process(tmp_path: Path) -> None:
    with spawn(["sleep", "60"], name="server", pid_dir=tmp_path / "session" / "pids") as process:
        assert [done.action for done in reap(tmp_path)] == ["left"]
        assert process.alive()
    assert reap(tmp_path) == []
