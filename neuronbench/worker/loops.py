"""The timed loops. Standard library only; they run in the worker, next to the model, with nothing between the two.

A call counts as done when `call` returns. Whether it really was done is not taken on trust: after the last call the
output is brought to the host (`fetch`), which no device can do before it has computed it. The wall of the loop up to
there, less what the timers saw, is time that escaped them.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PROBE_CALLS = 8
PROBE_LOOPS = 3
PROBE_S = 0.3
"""About how long one short loop of the probe may take."""
SPIN_NS = 2_000_000
"""The start of a window is awaited asleep up to this long before it, then awake."""

Timed = tuple[dict[str, int], "array[int]", Any]
"""Facts of the loop, a number per call, and the last output."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without garbage collections, whose pauses are the interpreter's and not the device's."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _nothing() -> None:
    return None


def spin(call: Callable[[], Any], durations: array[int]) -> tuple[int, int, Any]:
    """Fill `durations` with the time of each call, in ns; returns when the loop began and stopped, and the last output.

    This is the measured path: two readings of the clock and a store around each call.
    """
    clock = time.perf_counter_ns
    output = None
    begun = clock()
    for index in range(len(durations)):
        start = clock()
        output = call()
        durations[index] = clock() - start
    return begun, clock(), output


def bookkeeping_ns(calls: int = 2000) -> float:
    """What one turn of `spin` takes outside its timers, in ns: the least of three tries."""
    best = None
    for _ in range(3):
        durations = array("q", bytes(8 * calls))
        begun, stopped, _output = spin(_nothing, durations)
        found = (stopped - begun - sum(durations)) / calls
        best = found if best is None else min(best, found)
    assert best is not None
    return max(best, 0.0)


def barrier(fetch: Callable[[Any], Any], output: Any) -> tuple[int, int]:
    """Bring the output to the host. Returns when it was there, and how long it takes to bring a finished one, in ns."""
    clock = time.perf_counter_ns
    fetch(output)
    ended = clock()
    fetch(output)
    return ended, clock() - ended


def latency(call: Callable[[], Any], fetch: Callable[[Any], Any], calls: int, warmup: int) -> Timed:
    """Time `calls` calls one after the other, after `warmup` untimed ones.

    Returns instants and sums in ns of this process's clock, and the durations. `probe_escape_ppm` is the share of the
    wall that escaped the timers in short loops (the least of some): a queue of a few calls that hides in a long loop
    is most of a short one.
    """
    for _ in range(max(warmup, 1)):
        output = call()
    fetch(output)
    with undisturbed():
        each_ns = bookkeeping_ns()
        escape, _ = probe(call, fetch, min(calls, PROBE_CALLS), each_ns)
        durations = array("q", bytes(8 * calls))
        begun, stopped, output = spin(call, durations)
        ended, transfer = barrier(fetch, output)
    facts = {
        "begun_ns": begun,
        "stopped_ns": stopped,
        "ended_ns": ended,
        "transfer_ns": transfer,
        "bookkeeping_ns": round(each_ns * calls),
        "probe_escape_ppm": round(1e6 * escape),
    }
    return facts, durations, output


def probe(
    call: Callable[[], Any], fetch: Callable[[Any], Any], calls: int = PROBE_CALLS, each_ns: float | None = None
) -> tuple[float, int]:
    """Short loops: the least share of their wall that escaped the timers, and the least wall of a call in ns."""
    each_ns = bookkeeping_ns() if each_ns is None else each_ns
    escape, fastest = 1.0, 1 << 62
    for _ in range(PROBE_LOOPS):
        durations = array("q", bytes(8 * calls))
        begun, stopped, output = spin(call, durations)
        ended, transfer = barrier(fetch, output)
        wall = max(ended - begun - transfer, 1)
        escape = min(escape, max(wall - sum(durations) - each_ns * calls, 0.0) / wall)
        fastest = min(fastest, wall // calls)
        if stopped - begun > PROBE_S * 1e9:
            calls = max(2, calls // 2)
    return escape, max(fastest, 1)


def window(
    call: Callable[[], Any], fetch: Callable[[Any], Any], go_ns: int, close_ns: int, capacity: int, limit: int = 1 << 40
) -> Timed:
    """Call without a pause from `go_ns` until a call has ended after `close_ns`, both instants of this process's clock.

    Returns instants in ns and the instant at which each call ended. `capacity`: how many calls to expect; more are
    taken, at the price of growing the array, up to `limit`: a device that takes calls without doing them would
    otherwise be given work for hours.
    """
    clock = time.perf_counter_ns
    with undisturbed():
        each_ns = bookkeeping_ns()
        stamps = array("q", bytes(8 * max(min(capacity, limit), 1)))
        asleep_s = (go_ns - clock() - SPIN_NS) / 1e9
        if asleep_s > 0:
            time.sleep(asleep_s)
        while clock() < go_ns:
            pass
        room = len(stamps)
        count = 0
        begun = clock()
        while True:
            output = call()
            now = clock()
            stamps[count] = now
            count += 1
            if now >= close_ns:
                break
            if count == room:
                if count >= limit:
                    break
                more = min(room, limit - room)
                stamps.frombytes(bytes(8 * more))
                room += more
        ended, transfer = barrier(fetch, output)
    del stamps[count:]
    facts = {
        "begun_ns": begun,
        "stopped_ns": stamps[-1],
        "ended_ns": ended,
        "transfer_ns": transfer,
        "bookkeeping_ns": round(each_ns * count),
    }
    return facts, stamps, output
