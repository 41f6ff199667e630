"""Ending what a killed session left behind, by its pid files.

The guard of a child ends the child's tree when the session goes, however it goes, and removes the pid file. What is
left for `reap` is the case that the guard was killed too (a container or the whole machine short of memory).
A process is only touched when pid *and* creation match what the file says and the session that owned it is dead.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from neuronbench import guard

GRACE_S: Final = 10.0
"""Between SIGTERM and SIGKILL."""
GUARD_S: Final = 60.0
"""How long a guard that still lives may take to end its tree."""


Action: TypeAlias = Literal["ended", "stale", "left", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class Reaped:
    """What was done about one pid file."""

    file: Path
    session: str
    name: str
    action: Action
    """`ended`: processes were running and are gone. `stale`: none was, the file is removed. `left`: not touched.
    `unreadable`: not touched, because the file says nothing sensible."""
    pids: tuple[int, ...] = ()
    """Processes that were ended (or would be, in a dry run)."""
    detail: str = ""


def reap(receipts_dir: Path, *, dry_run: bool = False) -> list[Reaped]:
    """End the children of dead sessions under `receipts_dir` and remove their pid files.

    With `dry_run` nothing is signalled or removed, and the list says what would be. Sessions that live, and files from
    another machine or container, are left alone and reported as such.
    """
    return [_reap_file(path, dry_run) for path in sorted(receipts_dir.glob("*/pids/*.json"))]


def _reap_file(path: Path, dry_run: bool) -> Reaped:
    session = path.parent.parent.name

    def result(action: Action, detail: str, pids: Iterable[int] = ()) -> Reaped:
        return Reaped(file=path, session=session, name=name, action=action, pids=tuple(pids), detail=detail)

    name = path.stem
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        name, machine = str(data["name"]), dict(data["machine"])
        owner, guardian, child = (_identity(data[role]) for role in ("owner", "guard", "child"))
    except FileNotFoundError:
        return result("stale", "its guard has removed the file in the meantime")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return result("unreadable", f"expected a pid file, found {error!r}; remove it by hand if it is of no use")

    here = guard.machine()
    rebooted = machine != here and machine.get("node") == here["node"] and machine.get("boot") != here["boot"]
    if machine != here and not rebooted:
        where = f"node {machine.get('node')!r}, boot {machine.get('boot')!r}, {machine.get('pid_namespace')!r}"
        return result("left", f"written in another machine or container ({where}); run reap there")
    if not rebooted and _runs(owner):
        return result("left", f"the session that owns it runs (pid {owner[0]})")

    targets = [] if rebooted else _tree(guardian, child, session=child)
    if not targets:
        if not dry_run:
            path.unlink(missing_ok=True)
        return result("stale", "the machine was restarted since" if rebooted else "its processes are long gone")
    pids = [pid for pid, _ in targets]
    if dry_run:
        return result("ended", "dry run: would be ended", pids)
    if _runs(guardian):
        _signal([guardian], signal.SIGTERM)
        _wait([guardian, *targets], GUARD_S)
        targets = [*{*targets, *_tree(guardian, child, session=child)}]
    _signal(targets, signal.SIGTERM)
    _signal(targets, signal.SIGCONT)
    _wait(targets, GRACE_S)
    _signal(targets, signal.SIGKILL)
    survivors = _wait(targets, GRACE_S)
    if survivors:
        names = ", ".join(str(pid) for pid, _ in survivors)
        return result("left", f"SIGKILL did not end {names}: they hang in the kernel")
    path.unlink(missing_ok=True)
    return result("ended", "its session is gone", pids)


def _identity(data: dict[str, Any]) -> tuple[int, str]:
    pid, created = data["pid"], data["created"]
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1 or not isinstance(created, str):
        raise ValueError(f"not a process: {data!r}")
    return pid, created


def _runs(process: tuple[int, str]) -> bool:
    return guard.created(process[0]) == process[1]


def _tree(*roots: tuple[int, str], session: tuple[int, str] | None = None) -> list[tuple[int, str]]:
    """Those of `roots` that run, with their descendants, each with its creation.

    `session` is the child, which leads a session of its own: when guard and child are both gone, what the child left is
    found by that session, which lasts, and keeps its number from being given again, as long as a member lives.
    """
    found: dict[int, str] = {}
    if session is not None and guard.created(session[0]) is None:
        for pid in _members(session[0], since=session[1]):
            if (created := guard.created(pid)) is not None:
                found[pid] = created
    for root in roots:
        if _runs(root):
            found[root[0]] = root[1]
            for pid in guard.descendants(root[0]):
                if (created := guard.created(pid)) is not None:
                    found[pid] = created
    found.pop(os.getpid(), None)
    return list(found.items())


def _signal(processes: Iterable[tuple[int, str]], number: int) -> None:
    for process in processes:
        if _runs(process):
            try:
                os.kill(process[0], number)
            except (ProcessLookupError, PermissionError):
                pass


def _wait(processes: list[tuple[int, str]], seconds: float) -> list[tuple[int, str]]:
    """Those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _members(session: int, *, since: str) -> list[int]:
    """Processes of a session whose leader was created at `since` (see `guard.created`); none where that is not told."""
    if not since.startswith("ticks:"):
        return []
    first, found = int(since.removeprefix("ticks:")), []
    for entry in os.listdir("/proc"):
        fields = guard.stat_fields(int(entry)) if entry.isdecimal() else None
        if fields is not None and int(fields[3]) == session and int(fields[19]) >= first:
            found.append(int(entry))
    return found
