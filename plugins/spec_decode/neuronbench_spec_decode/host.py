"""How much of the host other programs took while something was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """CPU seconds spent until now: by the whole host (idle and waiting left out), by the server, by this process."""

    at: float
    host: float
    server: float | None
    own: float

    @classmethod
    def now(cls, pids: Sequence[int]) -> Self:
        """`pids`: roots of the server's process trees; none for one on another machine."""
        times = psutil.cpu_times()
        # Linux counts guests within user; what is idle or waits for a disk is nobody's.
        whole = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
        mine = os.times()
        return cls(at=time.monotonic(), host=whole, server=_tree(pids), own=mine.user + mine.system)

    def others_pct(self, since: CpuTimes) -> float | None:
        """What neither the server nor this process used, 100 % being one core; None where the server cannot be seen."""
        if self.server is None or since.server is None or self.at <= since.at:
            return None
        used = (self.host - since.host) - (self.server - since.server) - (self.own - since.own)
        return max(100.0 * used / (self.at - since.at), 0.0)


def _tree(pids: Sequence[int]) -> float | None:
    total, seen = 0.0, False
    for pid in pids:
        try:
            root = psutil.Process(pid)
            family = [root, *root.children(recursive=True)]
        except psutil.Error:
            continue
        for process in family:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total, seen = total + times.user + times.system, True
    return total if seen else None
