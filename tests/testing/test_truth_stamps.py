"""When a request came is what the kernel says, although the server loses the CPU while it reads its clocks."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from neuronbench.testing.truth.connection import SO_TIMESTAMPNS, Connection, Incoming

AWAY_NS = 50_000_000


class NoLoop:
    def add(self, fd: int, mask: int, handler: Any) -> None: ...

    def remove(self, fd: int) -> None: ...


class Answerer:
    def __init__(self) -> None:
        self.came: list[Incoming] = []

    def handle(self, connection: Connection, request: Incoming) -> None:
        self.came.append(request)

    def lost(self, connection: Connection) -> None: ...


@pytest.fixture
def stamping() -> Iterator[None]:
    """The kernel begins to stamp a moment after the first socket has asked for it, and goes on while one does."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as there:
        here, _ = listener.accept()
        with here:
            here.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            stamped, until = False, time.monotonic() + 60
            while not stamped and time.monotonic() < until:
                there.sendall(b"?")
                stamped = bool(here.recvmsg(1, 64)[1])
            assert stamped
            yield


@pytest.mark.usefixtures("stamping")
@pytest.mark.parametrize("clock", ["time_ns", "monotonic_ns"])
def test_a_pause_between_two_readings_is_in_no_stamp(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answerer = Answerer()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        server, _ = listener.accept()
        server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        connection = Connection(NoLoop(), server, answerer, lambda gone: None)  # type: ignore[arg-type]
        before = time.monotonic_ns()
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sent = time.monotonic_ns()
        select.select([server], [], [], 60)
        read, away = getattr(time, clock), [True]

        def reading() -> int:
            """The first time, this process is not there for a while before its clock is read."""
            until = time.perf_counter_ns() + AWAY_NS
            while away and time.perf_counter_ns() < until:
                pass
            away.clear()
            return int(read())

        with monkeypatch.context() as patched:
            patched.setattr(time, clock, reading)
            connection._read()
        server.close()
    (request,) = answerer.came
    assert not away
    assert before <= request.received_ns + 1_000_000  # a stamp of one clock on another one
    assert request.received_ns <= sent + 1_000_000
