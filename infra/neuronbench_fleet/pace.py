"""Waiting, and the clock that waits are counted by.

`NEURONBENCH_FLEET_PACE` multiplies every wait (for tests: 0 does not wait at all). The clock counts what was asked for
and not what was slept, so that limits in time end where they would.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Final

ENVIRONMENT: Final = "NEURONBENCH_FLEET_PACE"


class Pace:
    """Sleeps and a monotonic clock, in seconds."""

    def __init__(self, factor: float | None = None, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._factor = float(os.environ.get(ENVIRONMENT) or 1.0) if factor is None else factor
        self._sleep = sleep
        self._skipped_s = 0.0

    def now_s(self) -> float:
        return time.monotonic() + self._skipped_s

    def wait(self, seconds: float) -> None:
        """Let so many seconds of this clock pass."""
        self._sleep(self.shortened(seconds))

    def shortened(self, seconds: float) -> float:
        """How long to sleep really, for someone else who does the sleeping; the clock has moved on by the rest."""
        slept = max(seconds, 0.0) * self._factor
        self._skipped_s += max(seconds, 0.0) - slept
        return slept


def backoff_s(attempt: int, *, base_s: float = 1.0, most_s: float = 30.0) -> float:
    """Seconds before attempt `attempt + 1` (counted from 1): doubling, jittered down to a half, bounded."""
    return float(min(most_s, base_s * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0))
