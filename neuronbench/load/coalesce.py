"""Leaving arrived data unread for a moment, so that one wake-up serves many streams.

Waking up costs several times what reading an event does. Where the kernel stamps what arrives, nothing is measured by
when it is read, and a short sleep before each look gathers the events of several streams. It must stay small beside
what it could disturb: two chunks of a stream that are read together would have the instant of the second, and in a
closed loop the end of an answer that is noticed late delays the next request. So it is chosen anew every quarter of a
second by what that was like, is nothing while few streams are open, and never lasts beyond the instant at which a
request is due.
"""

from __future__ import annotations

import time
from typing import Final

REVIEW_NS: Final = 250_000_000
LEAST_NS: Final = 200_000
"""A shorter sleep costs as much as it saves."""
GAIN: Final = 2
"""Events that a sleep has to gather."""
GAP_SHARE: Final = 8
"""It is at most this part of the time between two chunks of a stream."""
LIFE_SHARE: Final = 400
"""And this part of a request's life."""
EARLY_NS: Final = 100_000
"""It ends this long before something is due: sleeping is not exact."""


def choose(most_ns: int, *, during_ns: int, streams: int, reads: int, ended: int) -> int:
    """The pause by what was seen in `during_ns`: streams open, stamped reads, requests that ended; 0 for none."""
    if reads <= 0:
        return 0
    busy = streams * during_ns
    pause = min(most_ns, busy // reads // GAP_SHARE)
    if ended:
        pause = min(pause, busy // ended // LIFE_SHARE)
    return pause if pause >= LEAST_NS and reads * pause >= GAIN * during_ns else 0


class Coalescing:
    """The pause of one engine. Reads without a stamp of the kernel's are not counted, so without them there is none."""

    def __init__(self, most_ns: int) -> None:
        self.most_ns = most_ns
        """0: never pause."""
        self.pause_ns = 0
        """What is taken at present."""
        self.ended = 0
        """Requests that have ended."""
        self.longest_ns = 0
        """The longest pause taken."""
        self.taken = 0
        self._at = self._reads = self._ended = 0

    def review(self, now: int, streams: int, reads: int) -> None:
        """Choose again if it is time; `reads`: stamped reads noted and not yet written down."""
        if not self.most_ns or now - self._at < REVIEW_NS:
            return
        during, count, ended = now - self._at, reads - self._reads, self.ended - self._ended
        first = not self._at
        self._at, self._reads, self._ended = now, reads, self.ended
        if not first and count >= 0:  # below 0 they were written down in between
            self.pause_ns = choose(self.most_ns, during_ns=during, streams=streams, reads=count, ended=ended)

    def gather(self, due: int) -> None:
        """Sleep; be back before `due` (0 for nothing due)."""
        pause = self.pause_ns
        if due:
            pause = min(pause, due - time.monotonic_ns() - EARLY_NS)
        if pause >= LEAST_NS:
            self.taken += 1
            if pause > self.longest_ns:
                self.longest_ns = pause
            time.sleep(pause * 1e-9)
