"""Ports on this host: a free one, and who holds one that is taken."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that listens on a port."""

    pid: int
    name: str


class PortInUse(Exception):
    """Something listens on `port` already; `owner` is None when it cannot be seen (another user's process)."""

    def __init__(self, port: int, owner: Owner | None) -> None:
        who = f"process {owner.pid} ({owner.name})" if owner else "a process that cannot be seen from here"
        super().__init__(f"port {port} is in use by {who}")
        self.port, self.owner = port, owner


def choose(port: int) -> int:
    """`port` when nothing listens there, a free one for 0. Raises `PortInUse`.

    The port is not held: whoever binds it first afterwards has it.
    """
    with socket.socket() as probe:
        # A server that was just stopped leaves connections in TIME_WAIT; those do not keep anyone from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError as error:
            raise PortInUse(port, owner_of(port)) from error
        return int(probe.getsockname()[1])


def owner_of(port: int) -> Owner | None:
    """Who listens on `port` of this host; None when nobody does or it cannot be seen."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return Owner(pid=connection.pid, name=psutil.Process(connection.pid).name())
            except psutil.Error:
                return Owner(pid=connection.pid, name="?")
    return None


def in_tree(pid: int, root: int) -> bool:
    """Whether `pid` is `root` or a descendant of it."""
    import psutil

    try:
        process = psutil.Process(pid)
        return pid == root or any(parent.pid == root for parent in process.parents())
    except psutil.Error:
        return False
