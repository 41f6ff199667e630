"""The driver's event loop: epoll, an absolute timer, a pool of connected sockets.

One thread, no coroutines: an event costs one dictionary look-up and one call. Whoever owns the engine gives it three
callbacks and is told of every request exactly once.
"""

from __future__ import annotations

import errno
import heapq
import select
import socket
import ssl
import time
from array import array
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from neuronbench.load import clock
from neuronbench.load.coalesce import Coalescing
from neuronbench.load.connection import (
    BUSY,
    CLOSED,
    CONNECTING,
    HANDSHAKE,
    IDLE,
    SO_TIMESTAMPNS,
    Connection,
)
from neuronbench.load.outcomes import Kind
from neuronbench.load.stream import Stream
from neuronbench.load.tls import TlsConnection

_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
_SWEEP_NS: Final = 50_000_000
_IDLE_POLL_S: Final = 1.0
_EVENTS: Final = 1024


class Target(NamedTuple):
    """Where requests go."""

    host: str
    port: int
    tls: bool
    prefix: str
    """Path before the API's own, without a slash at its end."""

    @classmethod
    def parse(cls, base_url: str) -> Target:
        """Raises `ValueError` that says what a base URL looks like."""
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ValueError(f"base URL: expected http(s)://host[:port][/prefix], found {base_url!r}")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix.removesuffix("/v1"))


class Limits(NamedTuple):
    """Time-outs by phase, ns."""

    connect: int
    first_token: int
    inter_token: int
    total: int


class Engine:
    """Sends streams and reports their ends. `ended(stream, t)` is called once per stream, at the instant it ended."""

    def __init__(
        self,
        target: Target,
        limits: Limits,
        *,
        head: bytes,
        bodies: Callable[[int], memoryview],
        ended: Callable[[Stream, int], None],
        max_connections: int,
        ca_file: str | None = None,
        verify: bool = True,
        stamps: bool = True,
        coalesce_ns: int = 0,
    ) -> None:
        """`coalesce_ns`: how long arrived data may be left unread at most; see `neuronbench.load.coalesce`."""
        self.target, self.limits = target, limits
        self.connect_ns = limits.connect
        self._head, self._bodies, self._on_end = head, bodies, ended
        self._stamps = stamps
        self.max_connections = max_connections
        self.set_offset(clock.realtime_offset_ns())
        self.lags = array("i")
        self.note_lag = self.lags.append
        self.odd_stamps = 0
        self.refusals = 0
        """Failed attempts to connect since one last worked."""
        self.refused_since = 0
        self.in_flight: dict[int, Stream] = {}
        self._connections: dict[int, Connection] = {}
        self._idle: list[Connection] = []
        self._waiting: list[Stream] = []
        self._again: list[Stream] = []
        """Those that wait for a connection nobody has used: one more that was closed while idle would be their end."""
        self._carriers: dict[int, Connection] = {}
        self._timers: list[tuple[int, int, Callable[..., None], Any]] = []
        self._timer_count = 0
        self._next_sweep = 0
        self._opening = 0
        self.coalescing = Coalescing(0 if target.tls or not stamps else coalesce_ns)
        self._attached: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._timer = clock.Timer()
        if self._timer.fd >= 0:
            self._epoll.register(self._timer.fd, _IN)
        self._tls: ssl.SSLContext | None = None
        if target.tls:
            self._tls = ssl.create_default_context(cafile=ca_file)
            if not verify:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        info = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)[0]
        self._family, self._address = info[0], info[4]

    def set_offset(self, offset_ns: int) -> None:
        """CLOCK_REALTIME − CLOCK_MONOTONIC is that much from now on."""
        self.offset_ns = offset_ns
        self.second, self.second_ns = -1, 0
        """The second of the last stamp, and the monotonic instant at which it began."""

    # -------------------------------------------------------------------------------------------------------- sending

    def preconnect(self, count: int) -> None:
        """Have at least `count` connections open or opening."""
        for _ in range(min(count, self.max_connections) - len(self._connections)):
            self._open()

    def submit(self, stream: Stream) -> None:
        """Send now: on an idle connection if there is one, else on a new one."""
        self.in_flight[stream.seq] = stream
        while self._idle:
            connection = self._idle.pop()
            if connection.state == IDLE:
                self._put(connection, stream)
                return
        if len(self._connections) >= self.max_connections:
            self._end(stream, Kind.NOT_SENT, f"all {self.max_connections} connections in use", time.monotonic_ns())
            return
        self._waiting.append(stream)
        if self._opening < len(self._waiting) + len(self._again):
            self._open()

    def again(self, stream: Stream) -> None:
        """Send it a second time: its first connection had been closed while idle. Its clock runs on."""
        self._carriers.pop(stream.seq, None)
        stream.reset()
        self._again.append(stream)
        self._open()

    def _put(self, connection: Connection, stream: Stream) -> None:
        body = self._bodies(stream.body)
        self._carriers[stream.seq] = connection
        connection.send(stream, b"%s%d\r\n\r\n" % (self._head, len(body)), body)

    def _open(self) -> None:
        try:
            sock = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            if waiting := self._again or self._waiting:
                self._end(waiting.pop(0), Kind.NOT_SENT, f"no socket: {error.strerror}", time.monotonic_ns())
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._stamps:
            try:
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            except OSError:
                pass  # then the instant of the read has to do, and the record says so
        connection = (
            Connection(self, sock) if self._tls is None else TlsConnection(self, sock, self._tls, self.target.host)
        )
        self._connections[connection.fd] = connection
        self._opening += 1
        self._epoll.register(connection.fd, _IN | _OUT)
        code = sock.connect_ex(self._address)
        if code not in (0, errno.EINPROGRESS, errno.EAGAIN):
            connection.refused(code)

    # ---------------------------------------------------------------------------------------- told by the connections

    def connected(self, connection: Connection) -> None:
        self._opening -= 1
        self.refusals = 0
        self.refused_since = 0
        if self._again:
            self._put(connection, self._again.pop(0))
        else:
            self._offer(connection)

    def _offer(self, connection: Connection) -> None:
        if self._waiting:
            self._put(connection, self._waiting.pop(0))
        else:
            self._idle.append(connection)

    def ended(self, stream: Stream, connection: Connection | None, t: int) -> None:
        """The answer is complete; `connection` can carry another request unless None."""
        self.in_flight.pop(stream.seq, None)
        self._carriers.pop(stream.seq, None)
        self.coalescing.ended += 1
        if connection is not None:
            self._offer(connection)
        self._on_end(stream, t)

    def failed(self, connection: Connection, stream: Stream | None, kind: Kind, message: str, t: int, was: int) -> None:
        if was in (CONNECTING, HANDSHAKE):
            self._opening -= 1
            self.refusals += 1
            self.refused_since = self.refused_since or t
            if stream is None and (waiting := self._again or self._waiting):
                stream = waiting.pop(0)
        if stream is not None:
            self._end(stream, kind, message, t)

    def _end(self, stream: Stream, kind: Kind, message: str, t: int) -> None:
        self.in_flight.pop(stream.seq, None)
        self._carriers.pop(stream.seq, None)
        stream.break_off(kind, t, message)
        self._on_end(stream, t)

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.fd, None)
        self._epoll.unregister(connection.fd)

    def watch(self, connection: Connection) -> None:
        self._epoll.modify(connection.fd, _IN | _OUT if connection.writing else _IN)

    # ----------------------------------------------------------------------------------------------------------- loop

    def call(self, due_ns: int, function: Callable[..., None], *args: Any) -> None:
        """Call `function(*args)` at `due_ns`, or as soon after it as the loop is free."""
        self._timer_count += 1
        heapq.heappush(self._timers, (due_ns, self._timer_count, function, args))

    def attach(self, fd: int, readable: Callable[[], None]) -> None:
        """Call `readable` whenever `fd` has something to read."""
        self._attached[fd] = readable
        self._epoll.register(fd, _IN)

    def detach(self, fd: int) -> None:
        if self._attached.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def carried(self) -> int:
        """Requests that are on a connection."""
        return len(self._carriers)

    def turn(self) -> None:
        """Wait for the next event or due call, and do what is to be done."""
        timers = self._timers
        timer = self._timer
        timeout = _IDLE_POLL_S
        if timers:
            due = timers[0][0]
            if due != timer.due:
                now = time.monotonic_ns()
                if due <= now:
                    timeout = 0.0
                elif timer.fd >= 0:
                    timer.arm(due)
                else:
                    timeout = min(timeout, (due - now) / 1e9)
        if timeout and self.coalescing.pause_ns and not (self._waiting or self._again):
            self.coalescing.gather(timers[0][0] if timers else 0)
        connections = self._connections
        now = 0
        for fd, mask in self._epoll.poll(timeout, _EVENTS):
            if fd in connections:
                connection = connections[fd]
                if mask == _IN and connection.state == BUSY:
                    now = connection.read()
                else:
                    broken = mask & _BROKEN
                    connection.ready(bool(mask & _IN or broken), bool(mask & _OUT or broken))
                    now = time.monotonic_ns()
                if timers and timers[0][0] <= now:
                    self._due(time.monotonic_ns())
            elif fd == timer.fd:
                timer.clear()
            elif fd in self._attached:
                self._attached[fd]()
        if not now:
            now = time.monotonic_ns()
        if now >= self._next_sweep or (timers and timers[0][0] <= now):
            self._due(now)

    def _due(self, now: int) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, function, args = heapq.heappop(timers)
            function(*args)
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_NS
            self._sweep(now)

    def _sweep(self, now: int) -> None:
        self.coalescing.review(now, len(self.in_flight), len(self.lags))
        limits = self.limits
        for connection in [c for c in self._connections.values() if c.state in (CONNECTING, HANDSHAKE)]:
            if now >= connection.connect_due:
                connection.fail(
                    Kind.CONNECT_TIMEOUT, f"no connection within {limits.connect / 1e9:g} s", connection.connect_due
                )
        for stream in list(self.in_flight.values()):
            start = stream.w
            if not start:
                continue
            # the limit that was first to be passed, however late this looks: not the one that is asked about first
            due, kind = start + limits.total, Kind.TOTAL_TIMEOUT
            if stream.count:
                if stream.api.streaming:
                    due, kind = min((stream.last() + limits.inter_token, Kind.INTER_TOKEN_TIMEOUT), (due, kind))
            elif stream.api.generates:
                due, kind = min((start + limits.first_token, Kind.FIRST_TOKEN_TIMEOUT), (due, kind))
            if now > due:
                self._cut(stream, kind, due)

    def _cut(self, stream: Stream, kind: Kind, t: int) -> None:
        connection = self._carriers.get(stream.seq)
        if connection is not None and connection.state != CLOSED:
            connection.fail(kind, "", t)
        else:
            for waiting in (self._again, self._waiting):
                if stream in waiting:
                    waiting.remove(stream)
            self._end(stream, kind, "", t)

    def abandon(self, t: int) -> None:
        """Hang up on everything in flight."""
        for stream in list(self.in_flight.values()):
            self._cut(stream, Kind.ABANDONED, t)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            connection.close()
        self._timer.close()
        self._epoll.close()
