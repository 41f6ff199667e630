"""pytest on the box: started under a guard, asked to end, and never left behind by an agent that was killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from neuronbench import guard
from neuronbench.processes import Process, spawn
from neuronbench_fleet.remote.state import Order, State

GRACE_S: Final = 120.0
"""What pytest gets to stop its servers and to close the open record."""
SPOT_GRACE_S: Final = 50.0
"""The same where the box is gone in two minutes, and the record has to be sent before."""
_LEFT_OVER_S: Final = 60.0
_NEURON_TOOLS: Final = "/opt/aws/neuron/bin"
_CHILD: Final = "child"


def command(order: Order) -> list[str]:
    """pytest's command line: what was asked for, and to go on where receipts are there already."""
    own = [] if any(a.split("=")[0] == "--nb-resume" for a in order.pytest_args) else ["--nb-resume=last"]
    return [sys.executable, "-m", "pytest", *order.pytest_args, *own]


def environment(order: Order, state: State, environ: Mapping[str, str]) -> dict[str, str]:
    """pytest's variables. The same on every box of the run, or points would not be found to be measured already."""
    path = environ.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    tracking = any(a.split("=")[0] == "--nb-tracking-uri" for a in order.pytest_args)
    return {
        **environ,
        **({} if tracking else {"NEURONBENCH_TRACKING_URI": "off"}),  # receipts go home, and are pushed from there
        **(order.environment or {}),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), path, _NEURON_TOOLS)),
        "NEURONBENCH_DATA_ROOT": str(state.data_root),
        "NEURONBENCH_RUN": order.run,
        "PYTHONUNBUFFERED": "1",
    }


def start(order: Order, state: State, boot: int) -> Process:
    """Start pytest; everything it prints goes to the console file of this boot."""
    process = spawn(
        command(order), env=environment(order, state, os.environ), cwd=order.code, log=state.console(boot),
        name=f"pytest of {order.run}", grace_s=GRACE_S,
    )  # fmt: skip
    try:  # the agent is spared where memory runs out; what it starts is not
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("0")
    except OSError:
        pass
    state.write(_CHILD, pid=process.pid, created=guard.created(process.pid))
    return process


def interrupt(process: Process) -> None:
    """Ask pytest to end as Ctrl-C does: the open record is closed as interrupted, servers are stopped."""
    try:
        os.kill(process.pid, signal.SIGINT)
    except ProcessLookupError:
        pass


def await_left_over(state: State) -> bool:
    """Wait until the pytest of an agent that was killed is gone (its guard ends it); True when there was one."""
    told = state.read(_CHILD)
    pid, born = told.get("pid"), told.get("created")
    if not isinstance(pid, int) or born is None or guard.created(pid) != born:
        return False
    deadline = time.monotonic() + _LEFT_OVER_S + GRACE_S
    while guard.created(pid) == born:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.1)
    return True
