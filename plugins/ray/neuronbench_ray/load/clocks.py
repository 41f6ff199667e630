"""How far a node's monotonic clock is from the head's: round trips as NTP makes them, of which the fastest counts.

With t0 and t3 read on the node before and after, and t1 and t2 on the head between, the head's clock minus the node's
is ((t1 − t0) + (t2 − t3)) / 2. It cannot be further from that than half of what the way took, (t3 − t0) − (t2 − t1),
however the two directions share it (Mills, RFC 5905, section 8). So the fastest round trip gives the best answer and
its own bound; nothing is averaged.
"""

from __future__ import annotations

import contextlib
import random
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

Clock = Callable[[], int]
Exchange = Callable[[], tuple[int, int]]
"""Asks the head: when it heard of it, when it answered; both by its clock."""

PAIR: Final = struct.Struct("<qq")
ROUNDS: Final = 48
GRANULARITY_NS: Final = 1_000
"""Added to every bound: reading a clock takes as long."""
TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The head's clock minus the node's, to within the bound, at `at_ns` of the node's clock."""

    at_ns: int
    offset_ns: int
    bound_ns: int
    rounds: int = 1
    how: str = "tcp"

    @property
    def low(self) -> int:
        return self.offset_ns - self.bound_ns

    @property
    def high(self) -> int:
        return self.offset_ns + self.bound_ns


def one(t0: int, t1: int, t2: int, t3: int, how: str = "tcp") -> Reading:
    """What one round trip says."""
    way = max((t3 - t0) - (t2 - t1), 0)
    return Reading(at_ns=t3, offset_ns=((t1 - t0) + (t2 - t3)) // 2, bound_ns=-(-way // 2) + GRANULARITY_NS, how=how)


def best(readings: Iterable[Reading]) -> Reading:
    """The one with the least bound, with the number of all of them. Raises `ValueError` for none."""
    given = list(readings)
    if not given:
        raise ValueError("no round trip to the head's clock came back")
    least = min(given, key=lambda reading: reading.bound_ns)
    return Reading(
        at_ns=least.at_ns, offset_ns=least.offset_ns, bound_ns=least.bound_ns, rounds=len(given), how=least.how
    )


def measure(exchange: Exchange, *, rounds: int = ROUNDS, clock: Clock = time.monotonic_ns, how: str = "tcp") -> Reading:
    """Make `rounds` round trips, with short pauses of uneven length so that they meet no rhythm of either host."""
    readings = []
    for number in range(rounds):
        if number:
            time.sleep(random.uniform(0.0002, 0.003))
        t0 = clock()
        t1, t2 = exchange()
        readings.append(one(t0, t1, t2, clock(), how))
    return best(readings)


@dataclass(frozen=True, kw_only=True)
class Span:
    """The clock over a whole run: the offset that instants were translated by, and how wrong it was at most."""

    offset_ns: int
    bound_ns: int | None
    """None when the clock was not read again after the run: what it did meanwhile is not known."""
    drift_ns: int | None
    """From the first reading to the last."""


def over(readings: Sequence[Reading], *, closed: bool = True) -> Span:
    """From the readings of a run, in order; the first is what instants were translated by.

    The offset stays the first one's, so that differences between instants are as they were measured. The bound covers
    the first and the last reading with all they may be wrong by, and every reading between them as far as it says that
    the clock was elsewhere. `closed`: the last of them was made after the run.
    """
    first, last = readings[0], readings[-1]
    if not closed:
        return Span(offset_ns=first.offset_ns, bound_ns=None, drift_ns=None)
    bound = max(first.bound_ns, last.high - first.offset_ns, first.offset_ns - last.low)
    for reading in readings[1:-1]:
        bound = max(bound, reading.low - first.offset_ns, first.offset_ns - reading.high)
    return Span(offset_ns=first.offset_ns, bound_ns=bound, drift_ns=first.offset_ns - last.offset_ns)


# --------------------------------------------------------------------------------------------------------------------
# over TCP: a small server on the head, a connection from each node


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while self.request.recv(1):
                heard = time.monotonic_ns()
                self.request.sendall(PAIR.pack(heard, time.monotonic_ns()))


class Echo(socketserver.ThreadingTCPServer):
    """Says what time it is to whoever connects; on `address` alone, at a port of the system's choice."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Handler)
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.2}, name="clock-echo", daemon=True
        ).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A node that went away is noticed elsewhere."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()


def ask(address: str, port: int, *, rounds: int = ROUNDS, clock: Clock = time.monotonic_ns) -> Reading:
    """On a node: read the clock of the head's `Echo`. Raises `OSError` when it cannot be reached."""
    with socket.create_connection((address, port), timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def exchange() -> tuple[int, int]:
            connection.sendall(b"?")
            data = b""
            while len(data) < PAIR.size:
                part = connection.recv(PAIR.size - len(data))
                if not part:
                    raise ConnectionError("the head closed the connection")
                data += part
            heard, said = PAIR.unpack(data)
            return heard, said

        return measure(exchange, rounds=rounds, clock=clock)
