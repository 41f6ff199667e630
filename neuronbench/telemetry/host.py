"""The machine as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil


class Host:
    """Sampler of the machine.

    `cpu_percent` and `steal_percent` of all cores together (0 to 100, since the read before), `load_1m`,
    `available_bytes`, `ctxt` (context switches since boot), and `frequency_mhz` at every tenth read, because asking
    each core costs milliseconds on a large machine. What a platform does not have is left out.
    """

    def __init__(self, frequency_every: int = 10) -> None:
        self._frequency_every = frequency_every
        self._reads = 0
        self._before: Any = None

    def read(self) -> Mapping[str, float | None]:
        times = psutil.cpu_times()
        values: dict[str, float | None] = {"cpu_percent": None}
        if self._before is not None:
            spent = {name: getattr(times, name) - getattr(self._before, name) for name in times._fields}
            # what guests used is part of user and nice already
            total = sum(seconds for name, seconds in spent.items() if name not in ("guest", "guest_nice"))
            if total > 0:
                idle = spent["idle"] + spent.get("iowait", 0.0)
                values["cpu_percent"] = min(100.0, max(0.0, 100 * (1 - idle / total)))
                if "steal" in spent:
                    values["steal_percent"] = min(100.0, max(0.0, 100 * spent["steal"] / total))
        self._before = times
        values["load_1m"] = psutil.getloadavg()[0]
        values["available_bytes"] = psutil.virtual_memory().available
        values["ctxt"] = psutil.cpu_stats().ctx_switches
        if self._reads % self._frequency_every == 0:
            frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
            if frequency is not None and frequency.current:
                values["frequency_mhz"] = frequency.current
        self._reads += 1
        return values
