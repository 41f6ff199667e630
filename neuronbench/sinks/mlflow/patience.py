"""How long a server is waited for, and in which steps: a delivery that is tried again comes to the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait, in seconds."""

    first_s: int = 4
    """For the first answer of a server."""
    request_s: int = 10
    """For each later answer."""
    retries: int = 0
    """Of a single request that failed or was refused for the moment; `Retry-After` is heeded."""
    outage_s: float = 0.0
    """For a server that has answered before and is away, or too busy, to come back."""
    busy_s: float = 2.0
    """For SQLite to be free."""
    lock_s: float = 15.0
    """For another process of this data root that is delivering; once, not for each receipt."""
    rival_s: float = 5.0
    """For a run that somebody else, on another host, has begun and not ended."""


LIVE: Final = Patience()
"""While benchmarks run: a server that does not answer costs seconds once."""
PUSH: Final = Patience(first_s=30, request_s=60, retries=2, outage_s=180.0, busy_s=20.0, lock_s=120.0, rival_s=30.0)
"""When somebody waits for the push."""


class Outage:
    """A server that is away: how long since, and when to ask again.

    Pauses double up to 15 s and are drawn at random, so that a hundred boxes do not come back in the same moment.
    """

    def __init__(self, limit_s: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.limit_s = limit_s
        self._sleep = sleep
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def over(self) -> None:
        """It has answered."""
        self._since, self._pause_s = None, _FIRST_PAUSE_S

    def wait(self, say: Callable[[str], None]) -> bool:
        """Wait before the next try; False, at once, when the limit is reached."""
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        left_s = self.limit_s - (now - self._since)
        if left_s <= 0:
            return False
        pause_s = min(left_s, random.uniform(0.5, 1.0) * self._pause_s)
        say(f"trying again in {pause_s:.1f} s, for {left_s:.0f} s more")
        self._sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True
