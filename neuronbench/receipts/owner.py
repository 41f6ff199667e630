"""Which process is measuring, and whether it still lives."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from neuronbench.model import Json

_SAME_START_S: Final = 2.0
"""Start times of one process, asked for twice, differ by the clock's corrections; those of two never by so little."""


def this_process() -> dict[str, Json]:
    """This process, told apart from a later one with the same number."""
    import psutil

    process = psutil.Process()
    return {"pid": process.pid, "create_time": process.create_time(), "host": socket.gethostname()}


def may_be_alive(owner: Mapping[str, Json]) -> bool:
    """Whether the process `owner` (of `this_process`) lives; one on another host cannot be judged and may."""
    import psutil

    pid, started = owner.get("pid"), owner.get("create_time")
    if not isinstance(pid, int):
        return False
    if owner.get("host") != socket.gethostname():
        return True
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return not isinstance(started, (int, float)) or abs(process.create_time() - started) <= _SAME_START_S
    except psutil.NoSuchProcess:
        return False
