"""Lock files of compile caches: who holds one, and taking away those that nobody does.

A compiler that was killed leaves its lock behind, and the next one waits for it. A lock is taken away only when it is
certain that nobody holds it: no lock of the operating system on the file, no living process in its text, no process
that is at work on the module. Where that cannot be known (another host's lock, a file system of the network) it stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from neuronbench import keylocks
from neuronbench.caches import CacheLock

GRACE_S: Final = 60.0
"""A lock is made first and held then: younger ones are left alone."""
NETWORK: Final = frozenset(
    {"nfs", "nfs4", "lustre", "efs", "cifs", "smb3", "smbfs", "9p", "ceph", "beegfs", "gpfs", "glusterfs", "afs"}
)
"""File systems on which a lock of the operating system may be of another host, and not be seen here."""
_PID_HOST: Final = re.compile(r"^(?P<pid>\d+)\s*(?:[\s@:,]\s*(?P<host>[\w.-]+))?$")
_HOST_PID: Final = re.compile(r"^(?P<host>[A-Za-z][\w.-]*)[\s@:,]+(?P<pid>\d+)$")


def locks(folder: Path, *, now: float | None = None, grace_s: float = GRACE_S) -> list[CacheLock]:
    """Every `*.lock` below `folder` and whether anybody holds it."""
    found = sorted(folder.rglob("*.lock")) if folder.is_dir() else []
    commands = _commands() if found else []
    network = _network(folder) if found else ""
    at = time.time() if now is None else now
    return [lock for path in found if (lock := _judged(path, folder, at, grace_s, commands, network)) is not None]


def remove(lock: CacheLock, folder: Path, *, grace_s: float = GRACE_S) -> bool:
    """Take a lock away that nobody holds; False when somebody does by now, or it is gone. Holds it while it goes."""
    with contextlib.suppress(OSError):
        descriptor = os.open(lock.path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            again = _judged(lock.path, folder, time.time(), grace_s, _commands(), _network(folder), flocked_by_us=True)
            same = os.fstat(descriptor).st_ino == os.stat(lock.path).st_ino
            if again is not None and again.state == "stale" and same:
                os.unlink(lock.path)
                return True
        finally:
            os.close(descriptor)
    return False


def _judged(
    path: Path,
    folder: Path,
    now: float,
    grace_s: float,
    commands: Sequence[tuple[int, str]],
    network: str,
    *,
    flocked_by_us: bool = False,
) -> CacheLock | None:
    try:
        stat = path.stat()
        text = path.read_text(encoding="utf-8", errors="replace")[:2000].strip()
    except OSError:
        return None  # gone meanwhile
    age_s = max(now - stat.st_mtime, 0.0)

    def said(state: Any, why: str) -> CacheLock:
        return CacheLock(path=path, key=_key(path, folder), state=state, why=why, age_s=age_s)

    if not flocked_by_us and keylocks.is_held(path):
        return said("held", "a process has it locked")
    if not flocked_by_us and _posix_held(path):
        return said("held", "a process has it locked (POSIX)")
    pid, host = owner(text)
    if host and host.partition(".")[0] != socket.gethostname().partition(".")[0]:
        return said("unknown", f"it is of {f'process {pid} on ' if pid else ''}another host, {host}")
    if pid is not None:
        if _alive(pid, stat.st_mtime):
            return said("held", f"process {pid} runs")
        if not network:
            return said("stale", f"process {pid}, which made it, has ended")
    module = path.parent.name
    worker = next((other for other, command in commands if module in command), None)
    if worker is not None:
        return said("held", f"process {worker} is at work on {module}")
    if network:
        return said("unknown", f"{folder} is on a file system of the network ({network}): its owner may be elsewhere")
    if age_s < grace_s:
        return said("unknown", f"it is {age_s:.0f} s old: its owner may not have locked it yet")
    return said("stale", "no process has it locked")


def owner(text: str) -> tuple[int | None, str]:
    """Process and host in a lock's text, in any of the ways libraries write them; None and empty where not told."""
    with contextlib.suppress(ValueError):
        told = json.loads(text)
        if isinstance(told, dict):
            pid = told.get("pid")
            host = told.get("hostname") or told.get("host") or ""
            return (pid if isinstance(pid, int) else None), str(host)
    lines = " ".join(text.split())
    for pattern in (_PID_HOST, _HOST_PID):
        found = pattern.match(lines)
        if found:
            return int(found["pid"]), found["host"] or ""
    return None, ""


def _alive(pid: int, locked_at: float) -> bool:
    """Whether the process that made the lock runs: one that began after it is another with the same number."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= locked_at + 2.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _posix_held(path: Path) -> bool:
    """Whether another process holds a POSIX lock (`lockf`) on the file."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _commands() -> list[tuple[int, str]]:
    """Command lines of other processes of this host, as far as they may be seen."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid():
            found.append((process.pid, " ".join(process.info["cmdline"] or ())))
    return found


def _network(folder: Path) -> str:
    """The type of the file system if it is one of the network, else empty."""
    best, kind = "", ""
    resolved = str(folder.resolve())
    for partition in _partitions():
        point = partition.mountpoint.rstrip("/") or "/"
        inside = resolved == point or resolved.startswith(point if point == "/" else point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, partition.fstype
    return kind if kind in NETWORK or kind.startswith("fuse.") else ""


def _partitions() -> Sequence[Any]:
    return list(psutil.disk_partitions(all=True))


def _key(path: Path, folder: Path) -> str:
    return path.parent.relative_to(folder).as_posix()
