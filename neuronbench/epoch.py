"""Two clocks at one instant: instants of a record are monotonic, and whoever reads it wants the time of day."""

from __future__ import annotations

import time


def clock_epoch() -> dict[str, int]:
    """The same instant on the monotonic and on the wall clock, both in ns, so that one can be told from the other.

    The wall clock is read between two reads of the monotonic one; of several tries the tightest is kept.
    """
    best: tuple[int, int, int] | None = None
    for _ in range(9):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, wall)
    assert best is not None
    return {"mono_ns": best[1], "utc_ns": best[2], "uncertainty_ns": best[0]}
