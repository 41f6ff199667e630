"""When requests are sent. Plain descriptions; the plan turns them into instants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """A fixed number of requests in flight: the next is sent when one ends.

    The window opens after the warm-up and the ramp without draining, and closes after `duration_s` seconds or, when
    given, once `requests` requests that were scheduled inside it have ended.
    """

    concurrency: int
    duration_s: float | None = None
    requests: int | None = None
    ramp_s: float | None = None
    """The first `concurrency` requests are spread over this long; None chooses by concurrency."""


def closed_loop(
    concurrency: int, *, duration_s: float | None = None, requests: int | None = None, ramp_s: float | None = None
) -> ClosedLoop:
    """`concurrency` requests in flight for a window of `duration_s` seconds or `requests` requests."""
    if concurrency < 1:
        raise ValueError(f"concurrency: expected a whole number from 1, found {concurrency!r}")
    if duration_s is not None and not duration_s > 0:
        raise ValueError(f"duration_s: expected seconds above 0, found {duration_s!r}")
    if requests is not None and requests < 1:
        raise ValueError(f"requests: expected a whole number from 1, found {requests!r}")
    return ClosedLoop(concurrency=concurrency, duration_s=duration_s, requests=requests, ramp_s=ramp_s)
