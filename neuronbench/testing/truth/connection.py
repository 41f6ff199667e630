"""One client connection: requests in, bytes out, nothing copied that need not be."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import httptools

from neuronbench.epoch import clock_epoch
from neuronbench.testing.truth.loop import Loop

SO_TIMESTAMPNS = 35  # the socket module has no name for it
_TIMESPEC = struct.Struct("@qq")
_READ = select.EPOLLIN | select.EPOLLRDHUP
# All reads of the one thread go through one buffer; the parser copies what it keeps.
_BUFFER = bytearray(1 << 18)
_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)

STATUS = {
    100: b"Continue",
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    429: b"Too Many Requests",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


class Incoming:
    """A request as it came: `received_ns` by the kernel's clock, `parsed_ns` by ours (both CLOCK_MONOTONIC)."""

    __slots__ = ("body", "headers", "keep_alive", "method", "parsed_ns", "received_ns", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.keep_alive = True
        self.received_ns = 0
        self.parsed_ns = 0


class Handler(Protocol):
    """Who answers. `handle` is called for one request at a time per connection."""

    def handle(self, connection: Connection, request: Incoming) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Connection:
    """HTTP/1.1 on a non-blocking socket. Pipelined requests wait until the answer before them is complete."""

    def __init__(self, loop: Loop, sock: socket.socket, handler: Handler, closed: Callable[[Connection], None]) -> None:
        self.sock = sock
        self.send = sock.send
        self.backlog: deque[bytes] = deque()
        self.open = True
        self.drop_next = False
        self._loop = loop
        self._handler = handler
        self._closed = closed
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._incoming = Incoming()
        self._parts: list[bytes] = []
        self._waiting: deque[Incoming] = deque()
        self._busy = False
        self._closing = False
        self._received_ns = 0
        loop.add(sock.fileno(), _READ, self._ready)

    # -- reading ------------------------------------------------------------------------------------------------

    def _ready(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._flush()
        if self.open and mask & ~select.EPOLLOUT:
            self._read()

    def _read(self) -> None:
        try:
            size, ancillary, _, _ = self.sock.recvmsg_into([_BUFFER], _SPACE)
        except BlockingIOError:
            return
        except OSError:
            self.lose()
            return
        if size == 0:
            self.lose()
            return
        now = time.monotonic_ns()
        self._received_ns = now
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                # The stamp is wall-clock time; only its distance to now is used. "Now" is read on both clocks at once:
                # whoever loses the CPU between two readings would have received that much too early or too late.
                clocks = clock_epoch()
                age = clocks["utc_ns"] - (seconds * 1_000_000_000 + nanoseconds)
                if 0 <= age < 60_000_000_000:
                    self._received_ns = min(clocks["mono_ns"] - age, now)
        parser = self._parser
        assert parser is not None
        try:
            parser.feed_data(memoryview(_BUFFER)[:size])
        except httptools.HttpParserUpgrade:
            self.refuse(400, "this server does not upgrade connections")
        except httptools.HttpParserError as error:
            self.refuse(400, f"not an HTTP/1.1 request: {error}")

    def on_message_begin(self) -> None:
        self._incoming = Incoming()
        self._parts = []

    def on_url(self, url: bytes) -> None:
        self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        incoming, parser = self._incoming, self._parser
        assert parser is not None
        incoming.method = parser.get_method()
        incoming.keep_alive = parser.should_keep_alive()
        if incoming.headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        incoming = self._incoming
        incoming.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        incoming.received_ns = self._received_ns
        self._waiting.append(incoming)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        while self._waiting and not self._busy and self.open:
            if self.drop_next:
                self.close()
                return
            self._busy = True
            incoming = self._waiting.popleft()
            incoming.parsed_ns = time.monotonic_ns()
            self._handler.handle(self, incoming)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Hand bytes to the kernel, or keep what it does not take. False when the client is gone."""
        if not self.open:
            return False
        if self.backlog:
            self.backlog.append(data)
            return True
        try:
            sent = self.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.lose()
            return False
        if sent < len(data):
            self.keep(data[sent:])
        return True

    def keep(self, rest: bytes) -> None:
        """Queue bytes the kernel had no room for."""
        if not self.backlog:
            self._loop.change(self.sock.fileno(), _READ | select.EPOLLOUT)
        self.backlog.append(rest)

    def _flush(self) -> None:
        while self.backlog:
            data = self.backlog[0]
            try:
                sent = self.send(data)
            except BlockingIOError:
                return
            except OSError:
                self.lose()
                return
            if sent < len(data):
                self.backlog[0] = data[sent:]
                return
            self.backlog.popleft()
        if self._closing:
            self.close()
        else:
            self._loop.change(self.sock.fileno(), _READ)

    def respond(self, status: int, body: bytes, *, kind: bytes = b"application/json", extra: bytes = b"") -> None:
        """A whole response with its length. `extra` is complete header lines."""
        self.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b"
            % (status, STATUS[status], kind, len(body), extra, body)
        )

    def refuse(self, status: int, message: str) -> None:
        """Answer something unreadable and close."""
        self.respond(status, message.encode(), kind=b"text/plain", extra=b"connection: close\r\n")
        self.close_soon()

    def done(self, *, keep_alive: bool) -> None:
        """The answer is complete: take the next request, or close."""
        self._busy = False
        if not keep_alive:
            self.close_soon()
        elif self._waiting:
            self._next()

    # -- ending -------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """The client left."""
        if self.open:
            self._handler.lost(self)
            self.close()

    def close_soon(self) -> None:
        """Close once everything written has been handed to the kernel."""
        if self.backlog:
            self._closing = True
        else:
            self.close()

    def reset(self) -> None:
        """Close with a RST instead of a FIN."""
        if self.open:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self._loop.remove(self.sock.fileno())
        self.sock.close()
        self.backlog.clear()
        self._waiting.clear()
        self._parser = None  # it points back here, and the collector is off
        self._closed(self)
