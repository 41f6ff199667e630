"""When requests are sent. Plain descriptions; the plan turns them into instants.

Closed loop: a fixed number in flight. Open: at instants that do not depend on the server, given by a law (how the gaps
between arrivals are spread) and a profile (how the rate goes over time); or by a trace; or sessions of several turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Law: TypeAlias = Literal["constant", "poisson", "gamma", "burst"]


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
    """The first `concurrency` requests are spread over this long; None: over a typical request of the warm-up."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of time in which the rate goes linearly from `start` to `end` requests per second."""

    seconds: float
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class OpenLoop:
    """Requests at instants of their own, whatever became of those before.

    The profile's first rate holds during `lead_s` seconds before the window, its last one during at most `tail_s`
    seconds after it, while the requests of the window are followed to their end.
    """

    law: Law
    profile: tuple[Segment, ...]
    """The window: its length is the sum of the segments'."""
    shape: float = 1.0
    """Gamma: shape of the gaps; their coefficient of variation is 1/√shape (1: Poisson, below 1: burstier)."""
    size: int = 1
    """Burst: requests that arrive at the same instant."""
    lead_s: float = 2.0
    tail_s: float = 30.0
    turns: int = 1
    """Turns of each arrival; more than one makes it a session, and the rate that of sessions."""
    think_s: float = 0.0
    """Mean of the exponential pause between an answer and the session's next turn."""

    @property
    def duration_s(self) -> float:
        return sum(segment.seconds for segment in self.profile)

    @property
    def rate(self) -> float:
        """Mean over the window, arrivals per second."""
        return sum(s.seconds * (s.start + s.end) / 2 for s in self.profile) / self.duration_s


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Arrivals and lengths from a file; use it as arrivals and as workload at once.

    `mooncake`: JSON lines with `timestamp` (ms), `input_length`, `output_length` and optional `hash_ids` (one per 512
    prompt tokens; equal ids mean equal tokens). `azure`: CSV with `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
    `jsonl`: JSON lines with `at_s`, `input_tokens`, `output_tokens`. All instants are absolute, not gaps.
    """

    path: str
    format: Literal["mooncake", "azure", "jsonl"]
    speed: float = 1.0
    """2 replays it in half the time."""
    start_s: float = 0.0
    """Skip what comes before, in the trace's own time."""
    duration_s: float | None = None
    """Length of what is replayed, in the trace's own time; None: to the end."""
    lead_s: float = 0.0
    """The window opens this long after the first arrival, in replayed time."""


Arrivals: TypeAlias = ClosedLoop | OpenLoop | Trace


def closed_loop(
    concurrency: int, *, duration_s: float | None = None, requests: int | None = None, ramp_s: float | None = None
) -> ClosedLoop:
    """`concurrency` requests in flight for a window of `duration_s` seconds or `requests` requests."""
    if concurrency < 1:
        raise ValueError(f"concurrency: expected a whole number from 1, found {concurrency!r}")
    if duration_s is not None:
        _above_zero("duration_s", duration_s)
    if requests is not None and requests < 1:
        raise ValueError(f"requests: expected a whole number from 1, found {requests!r}")
    if ramp_s is not None and ramp_s < 0:
        raise ValueError(f"ramp_s: expected seconds from 0, found {ramp_s!r}")
    if duration_s is not None and requests is not None:
        raise ValueError("closed_loop: give duration_s or requests, not both")
    return ClosedLoop(concurrency=concurrency, duration_s=duration_s, requests=requests, ramp_s=ramp_s)


def constant(rate: float, *, duration_s: float, lead_s: float = 2.0, tail_s: float = 30.0) -> OpenLoop:
    """Equal gaps: one request every 1/`rate` seconds."""
    return _open("constant", [(rate, rate, duration_s)], lead_s=lead_s, tail_s=tail_s)


def poisson(rate: float, *, duration_s: float, lead_s: float = 2.0, tail_s: float = 30.0) -> OpenLoop:
    """Independent arrivals, `rate` per second on average."""
    return _open("poisson", [(rate, rate, duration_s)], lead_s=lead_s, tail_s=tail_s)


def gamma(rate: float, *, shape: float, duration_s: float, lead_s: float = 2.0, tail_s: float = 30.0) -> OpenLoop:
    """Gamma-distributed gaps; `shape` below 1 is burstier than Poisson, above 1 smoother."""
    _above_zero("shape", shape)
    return _open("gamma", [(rate, rate, duration_s)], shape=shape, lead_s=lead_s, tail_s=tail_s)


def burst(rate: float, *, size: int, duration_s: float, lead_s: float = 2.0, tail_s: float = 30.0) -> OpenLoop:
    """`size` requests at the same instant, so often that the mean rate is `rate` requests per second."""
    if size < 1:
        raise ValueError(f"size: expected a whole number from 1, found {size!r}")
    return _open("burst", [(rate, rate, duration_s)], size=size, lead_s=lead_s, tail_s=tail_s)


def ramp(
    start: float,
    end: float,
    *,
    duration_s: float,
    law: Literal["constant", "poisson"] = "poisson",
    lead_s: float = 2.0,
    tail_s: float = 30.0,
) -> OpenLoop:
    """The rate goes linearly from `start` to `end` requests per second."""
    return _open(law, [(start, end, duration_s)], lead_s=lead_s, tail_s=tail_s)


def steps(
    rates: Sequence[float],
    *,
    seconds: float,
    law: Literal["constant", "poisson"] = "poisson",
    lead_s: float = 2.0,
    tail_s: float = 30.0,
) -> OpenLoop:
    """One rate after the other, each for `seconds`."""
    return _open(law, [(rate, rate, seconds) for rate in rates], lead_s=lead_s, tail_s=tail_s)


def sessions(
    rate: float,
    *,
    turns: int,
    think_s: float,
    duration_s: float,
    law: Literal["constant", "poisson"] = "poisson",
    lead_s: float = 2.0,
    tail_s: float = 30.0,
) -> OpenLoop:
    """`rate` sessions begin per second; each has `turns` turns, `think_s` seconds apart on average.

    Every turn's prompt begins with all of the session so far; a session ends early when one of its turns fails.
    """
    if turns < 1:
        raise ValueError(f"turns: expected a whole number from 1, found {turns!r}")
    if think_s < 0:
        raise ValueError(f"think_s: expected seconds from 0, found {think_s!r}")
    return _open(law, [(rate, rate, duration_s)], lead_s=lead_s, tail_s=tail_s, turns=turns, think_s=think_s)


def trace(
    path: str | Path,
    *,
    format: Literal["mooncake", "azure", "jsonl"],
    speed: float = 1.0,
    start_s: float = 0.0,
    duration_s: float | None = None,
    lead_s: float = 0.0,
) -> Trace:
    """Replay a trace; pass the same object as arrivals and as workload."""
    _above_zero("speed", speed)
    if duration_s is not None:
        _above_zero("duration_s", duration_s)
    return Trace(path=str(path), format=format, speed=speed, start_s=start_s, duration_s=duration_s, lead_s=lead_s)


def _open(
    law: Law,
    profile: Sequence[tuple[float, float, float]],
    *,
    shape: float = 1.0,
    size: int = 1,
    lead_s: float,
    tail_s: float,
    turns: int = 1,
    think_s: float = 0.0,
) -> OpenLoop:
    if not profile:
        raise ValueError("rates: expected at least one, found none")
    for start, end, seconds in profile:
        _above_zero("duration_s", seconds)
        if min(start, end) < 0 or start + end <= 0:
            raise ValueError(f"rate: expected requests per second above 0, found {start!r} to {end!r}")
    for name, value in (("lead_s", lead_s), ("tail_s", tail_s)):
        if value < 0:
            raise ValueError(f"{name}: expected seconds from 0, found {value!r}")
    segments = tuple(Segment(seconds=seconds, start=start, end=end) for start, end, seconds in profile)
    return OpenLoop(
        law=law,
        profile=segments,
        shape=shape,
        size=size,
        lead_s=lead_s,
        tail_s=tail_s,
        turns=turns,
        think_s=think_s,
    )


def _above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name}: expected a number above 0, found {value!r}")
