"""One HTTP/1.1 connection: a non-blocking socket, kernel receive stamps, optional TLS, and httptools.

`recvmsg` returns with the data the instant at which the kernel received its last segment. That instant, not the one at
which this process got round to reading, is what a chunk is stamped with; the difference is recorded for every read.
With TLS the same holds for the encrypted bytes, which are read here and decrypted through a memory BIO.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING, Final

import httptools

from neuronbench.load import layout
from neuronbench.load.outcomes import Kind

if TYPE_CHECKING:
    from neuronbench.load.engine import Engine
    from neuronbench.load.stream import Stream

SO_TIMESTAMPNS: Final = 35
"""Option and control message type on Linux; the `socket` module does not name it."""
_ANCILLARY: Final = socket.CMSG_SPACE(16)
_unpack: Final = struct.Struct("qq").unpack
_now: Final = time.monotonic_ns
READ_BYTES: Final = 256 << 10
_LAG_KEPT_NS: Final = 2_000_000_000
_PLAUSIBLE_LAG_NS: Final = 60_000_000_000
_RACE_NS: Final = 250_000_000
"""A reused connection that ends this soon after a request, with no byte of an answer, had been closed before it."""

CONNECTING, HANDSHAKE, IDLE, BUSY, CLOSED = range(5)


class Connection:
    """Owned by an engine; carries one request at a time."""

    __slots__ = (
        "_bio_in", "_bio_out", "_close_delimited", "_complete", "_framed", "_keep", "_lag", "_now", "_out", "_parser",
        "_receive", "_stamped", "_tls", "connect_due", "engine", "fd", "opened", "served", "sock", "state", "stream",
        "writing",
    )  # fmt: skip

    def __init__(self, engine: Engine, sock: socket.socket, tls: ssl.SSLContext | None, name: str) -> None:
        self.engine, self.sock = engine, sock
        self.fd = sock.fileno()
        self.state = CONNECTING
        self.stream: Stream | None = None
        self.opened = time.monotonic_ns()
        self.connect_due = self.opened + engine.connect_ns
        self.served = 0
        self.writing = True
        self._receive = sock.recvmsg_into
        self._out: list[memoryview] = []
        self._now = self._lag = 0
        self._stamped = False
        self._complete = False
        self._framed = False
        self._close_delimited = False
        self._keep = False
        self._tls: ssl.SSLObject | None = None
        if tls is not None:
            self._bio_in, self._bio_out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = tls.wrap_bio(self._bio_in, self._bio_out, server_hostname=name)
        self._parser = httptools.HttpResponseParser(self)

    # --------------------------------------------------------------------------------------------------------- events

    def ready(self, readable: bool, writable: bool) -> None:
        """The socket is readable, writable, or broken (then both are set)."""
        if self.state == CONNECTING:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.refused(code)
                return
            if not writable:
                return
            if self._tls is not None:
                self.state = HANDSHAKE
                self._handshake()
            else:
                self._connected()
            return
        if writable and self._out:
            self._flush()
        if readable and self.state != CLOSED:
            self.read()

    def _connected(self) -> None:
        self.state = BUSY if self.stream is not None else IDLE
        if not self._out:
            self._want_write(False)
        self.engine.connected(self)

    def refused(self, code: int) -> None:
        """Connecting failed with this error number."""
        kind = Kind.CONNECT_REFUSED if code == errno.ECONNREFUSED else Kind.CONNECT_FAILED
        if code == errno.ETIMEDOUT:
            kind = Kind.CONNECT_TIMEOUT
        self.fail(kind, os.strerror(code))

    def fail(self, kind: Kind, message: str, at: int = 0) -> None:
        """Close, and end the request that is on it."""
        stream, self.stream = self.stream, None
        was = self.state
        self.close()
        self.engine.failed(self, stream, kind, message, at or time.monotonic_ns(), was)

    def close(self) -> None:
        if self.state != CLOSED:
            self.state = CLOSED
            self.engine.forget(self)
            self.sock.close()
            self._parser = None  # type: ignore[assignment]  # it refers back to this object, and the collector is off while driving

    # -------------------------------------------------------------------------------------------------------- writing

    def send(self, stream: Stream, head: bytes, body: memoryview) -> None:
        """Write a request; the connection is idle. The stream's `w` is the instant before its first byte is written."""
        self.stream = stream
        self.state = BUSY
        self._complete = self._framed = self._close_delimited = False
        if self.served:
            stream.flags |= layout.REUSED
        if self._tls is not None:
            now = time.monotonic_ns()
            self._tls.write(head)
            self._tls.write(body)
            self._out = [memoryview(self._bio_out.read())]
            stream.w = stream.w or now
            self._flush()
            return
        now = time.monotonic_ns()
        stream.w = stream.w or now
        try:
            sent = self.sock.sendmsg((head, body))
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken(error)
            return
        if sent == len(head) + len(body):
            stream.w_end = now
            return
        if sent < len(head):
            self._out = [memoryview(head)[sent:], body]
        else:
            self._out = [body[sent - len(head) :]]
        self._want_write(True)

    def _flush(self) -> None:
        out = self._out
        while out:
            try:
                sent = self.sock.send(out[0])
            except BlockingIOError:
                self._want_write(True)
                return
            except OSError as error:
                self._broken(error)
                return
            if sent == len(out[0]):
                out.pop(0)
            else:
                out[0] = out[0][sent:]
        if self.stream is not None and self.state == BUSY and not self.stream.w_end:
            self.stream.w_end = time.monotonic_ns()
        self._want_write(False)

    def _want_write(self, wanted: bool) -> None:
        if wanted != self.writing:
            self.writing = wanted
            self.engine.watch(self)

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self) -> None:
        """Take in what has arrived. The hot path: once per token of a stream."""
        engine = self.engine
        more = True
        while more:
            try:
                size, ancillary, _, _ = self._receive(engine.read_views, _ANCILLARY)
            except BlockingIOError:
                return
            except OSError as error:
                self._broken(error)
                return
            now = _now()
            if size == 0:
                self._eof(now)
                return
            lag = -1
            if ancillary and ancillary[0][1] == SO_TIMESTAMPNS:
                seconds, nanoseconds = _unpack(ancillary[0][2])
                lag = now - (seconds * 1_000_000_000 + nanoseconds - engine.offset_ns)
                if -20_000 <= lag < 0:
                    lag = 0  # the two clocks are read some tens of nanoseconds apart
                elif not 0 <= lag <= _PLAUSIBLE_LAG_NS:
                    engine.odd_stamps += 1
                    lag = -1
            if lag >= 0:
                engine.lags.append(lag if lag < _LAG_KEPT_NS else _LAG_KEPT_NS)
                self._now, self._lag, self._stamped = now - lag, lag, True
            else:
                self._now, self._lag, self._stamped = now, 0, False
            data = engine.read_view[:size]
            if self._tls is None:
                self._parse(data)
            else:
                self._read_tls(data)
            more = size == READ_BYTES and self.state != CLOSED

    def _parse(self, data: memoryview | bytes) -> None:
        stream = self.stream
        if stream is None:
            # an answer nobody asked for, such as "408 Request Timeout" before the close
            self.close()
            return
        if not stream.r:
            stream.r = self._now
            if self._stamped:
                stream.flags |= layout.KERNEL_STAMPED
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.state != CLOSED:
                self.fail(Kind.PROTOCOL, f"not HTTP/1.1: {error}", self._now)
            return
        if self._complete and self.state != CLOSED:
            self._finished()

    def _finished(self) -> None:
        stream, self.stream = self.stream, None
        assert stream is not None
        self.served += 1
        keep = self._keep and not self._out
        if keep:
            self.state = IDLE
        else:
            self.close()
        stream.finish(self._now)
        self.engine.ended(stream, self if keep else None, self._now)

    def _eof(self, now: int) -> None:
        stream = self.stream
        if stream is None:
            if self.state in (CONNECTING, HANDSHAKE):
                self.fail(
                    Kind.TLS if self._tls else Kind.CONNECT_FAILED, "closed by the server before it was usable", now
                )
            self.close()
            return
        if self.state == HANDSHAKE:
            self.fail(Kind.TLS, "closed by the server during the handshake", now)
        elif self._close_delimited:
            self._now = now
            self._finished()
        else:
            self._lost("closed by the server before the answer was complete", now)

    def _broken(self, error: OSError) -> None:
        now = time.monotonic_ns()
        if self.stream is None:
            if self.state in (CONNECTING, HANDSHAKE):
                self.refused(error.errno or 0)
            else:
                self.close()
            return
        self._lost(f"connection broke: {error.strerror or error}", now)

    def _lost(self, message: str, now: int) -> None:
        stream = self.stream
        assert stream is not None
        if not stream.r and self.served and stream.attempts == 1 and now - stream.w < _RACE_NS:
            self.stream = None
            self.close()
            stream.attempts += 1
            self.engine.again(stream)
            return
        self.fail(Kind.DISCONNECTED, message, now)

    # ------------------------------------------------------------------------------------------- httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type" and self.stream is not None:
            self.stream.plain = not value.lower().startswith(b"text/event-stream")
        elif lower in (b"transfer-encoding", b"content-length"):
            self._framed = True

    def on_message_begin(self) -> None:
        if self.stream is not None:
            self.stream.plain = True
        self._framed = False

    def on_headers_complete(self) -> None:
        stream = self.stream
        if stream is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        stream.status = status
        if status != 200:
            stream.plain = True
        self._close_delimited = not self._framed and status not in (204, 304)
        # asked here: once the message is complete the parser no longer knows how it was framed
        self._keep = self._parser.should_keep_alive() and not self._close_delimited

    def on_body(self, data: bytes) -> None:
        stream = self.stream
        if stream is not None and stream.feed(data, self._now, self._lag):
            self.fail(Kind.CLIENT_CANCEL, "planned", self._now)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete = True

    # ------------------------------------------------------------------------------------------------------------ TLS

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._push_tls()
            self._want_write(bool(self._out))
            return
        except ssl.SSLError as error:
            self._push_tls()
            self.fail(Kind.TLS, str(error))
            return
        self._push_tls()
        if self.state != CLOSED:
            self._connected()

    def _push_tls(self) -> None:
        if self._bio_out.pending:
            self._out.append(memoryview(self._bio_out.read()))
            self._flush()

    def _read_tls(self, data: memoryview) -> None:
        assert self._tls is not None
        self._bio_in.write(data)
        if self.state == HANDSHAKE:
            self._handshake()
            return
        while self.state not in (CLOSED, HANDSHAKE):
            try:
                plain = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                if isinstance(error, ssl.SSLZeroReturnError):
                    self._eof(self._now)
                else:
                    self.fail(Kind.TLS, str(error), self._now)
                return
            if not plain:
                self._eof(self._now)
                return
            self._parse(plain)
        if self.state != CLOSED:
            self._push_tls()
