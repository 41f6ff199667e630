"""The end of a run on its box: the unit is not started again, and the box is stopped, terminated, or stays."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from neuronbench_fleet.remote.state import Order, State

SHUTDOWN: Final = "NEURONBENCH_SHUTDOWN"
"""The command that ends the box (default: shutdown -h now). Whether that stops or terminates it is the box's setting,
which `neuronbench fleet run --after` has seen to."""


def leave(order: Order, state: State) -> None:
    """Stop or terminate the box after a run that is done, unless something of the run is nowhere else, or it was
    cancelled: then the box is to stay."""
    _call(["systemctl", "disable", f"neuronbench-run-{order.run}.service"])
    if order.after != "keep" and not state.read("done").get("refused") and not state.cancelled():
        _call(shlex.split(os.environ.get(SHUTDOWN) or "shutdown -h now"))


def _call(command: Sequence[str]) -> None:
    """Run a command of the system; what it has to say is in the journal, and never ends the agent."""
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{shlex.join(command)}: {error}", file=sys.stderr, flush=True)
