"""Ctrl-C and SIGTERM of a command that sends load from nodes: the load ends in order, and then the command.

While a load is under way, the first signal ends its drivers as their own end would, and their records come back. So
there is a result of what was sent until then, of status `killed`. At any other time, and the second time, what goes on
is given up (`KeyboardInterrupt`), and agents are let go of. Either way the command ends with 128 + the signal's number.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Final

from neuronbench.commands import host

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """What a command does on signals, from `begin` to `close`. Nothing at all until `begin`."""

    def __init__(self) -> None:
        self.number = 0
        """Of the signal that came first; 0 while none has."""
        self.under_way: Callable[[], None] | None = None
        """Ends the load that goes on; None when there is none. Called in a thread of its own."""
        self.loads = 0
        """How many there were."""
        self.given_up = False
        """Something was broken off, instead of ended."""
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        """Take signals from here on. Outside of the main thread they cannot be taken, and stay as they are."""
        if not self._before and threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._received) for number in SIGNALS}

    def check(self) -> None:
        """Raise `KeyboardInterrupt` when a signal has come: nothing more is to begin."""
        if self.number:
            raise KeyboardInterrupt(self.name)

    def close(self) -> None:
        """Put signals back as they were. Raises `CommandError` with the command's exit status when one came."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self.number:
            if not self.loads:
                left = "nothing had been sent yet"
            elif self.given_up:
                left = "what was not in the folder of --out by then is lost"
            else:
                left = "the result is what was measured until then; of a search there is none"
            raise host.CommandError(f"ended by {self.name}: {left}", status=128 + self.number)

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name if self.number else ""

    def _received(self, number: int, frame: object) -> None:
        again, self.number = self.number, self.number or number
        if again or self.under_way is None:
            self.given_up = True
            raise KeyboardInterrupt(self.name)
        # not here: a handler runs in the middle of anything, and calls of Ray take locks
        threading.Thread(target=self.under_way, name="end-of-load", daemon=True).start()
