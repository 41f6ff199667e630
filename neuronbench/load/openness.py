"""Whether a load that is called open was open: nothing but the schedule may decide when a request is sent.

For results of which only totals are known: how many requests in what time, and how many at once at most. A measurement
of ours has its schedule and checks every instant (`gates`).
"""

from __future__ import annotations

import math
from typing import Final

from neuronbench.model import Gate

RATE_LIMIT: Final = 0.01
SIGMAS: Final = 3.0
"""Poisson arrivals of n requests are off by 1/√n on their own: so many of those are allowed."""


def achieved_rate_gate(requests: int, sending_s: float, rate: float) -> Gate:
    """The rate at which `requests` were sent, over the time in which they were, against the rate that was declared."""
    if requests < 1 or sending_s <= 0 or rate <= 0:
        return Gate(id="achieved_rate", passed=None, unit="req/s", message="no request was sent, or no rate declared")
    achieved = requests / sending_s
    allowed = max(RATE_LIMIT, SIGMAS / math.sqrt(requests))
    return Gate(
        id="achieved_rate",
        passed=abs(achieved - rate) <= allowed * rate,
        observed=achieved,
        limit=rate,
        unit="req/s",
        message=f"{requests} requests sent in {sending_s:.4g} s, within {allowed:.1%} of the rate declared",
    )


def in_flight_gate(highest: int | None, cap: int | None) -> Gate:
    """A cap on requests in flight that was reached makes a closed loop of an open one."""
    if highest is None or cap is None:
        return Gate(id="in_flight_cap", passed=None, unit="requests", message="the cap or the highest is not told")
    reached = highest >= cap
    return Gate(
        id="in_flight_cap",
        passed=not reached,
        observed=highest,
        limit=cap,
        unit="requests",
        message="as many in flight as the client can have: requests waited in it, and their latency leaves that out"
        if reached
        else "highest number in flight, below what the client can have",
    )
