"""One HTTP/1.1 connection: a non-blocking socket, kernel receive stamps, and httptools. With TLS see `tls`.

`recvmsg` returns with the data the instant at which the kernel received its last segment. That instant, not the one at
which this process got round to reading, is what a chunk is stamped with; the difference is recorded for every read.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, ClassVar, Final

import httptools

from neuronbench.load import layout
from neuronbench.load.outcomes import Kind

if TYPE_CHECKING:
    from neuronbench.load.engine import Engine
    from neuronbench.load.stream import Fast, Stream

SO_TIMESTAMPNS: Final = 35
"""Option and control message type on Linux; the `socket` module does not name it."""
_ANCILLARY: Final = socket.CMSG_SPACE(16)
_unpack: Final = struct.Struct("qq").unpack
_now: Final = time.monotonic_ns
READ_BYTES: Final = 16 << 10
"""Of the first read; a read that is full is followed by larger ones."""
MORE_BYTES: Final = 256 << 10
_CHUNK_END: Final = b"\r\n"
_LAG_KEPT_NS: Final = 2_000_000_000
_PLAUSIBLE_LAG_NS: Final = 60_000_000_000
_RACE_NS: Final = 250_000_000
"""A reused connection that ends this soon after a request, with no byte of an answer, had been closed before it."""

CONNECTING, HANDSHAKE, IDLE, BUSY, CLOSED = range(5)


class Connection:
    """Owned by an engine; carries one request at a time."""

    __slots__ = (
        "_between", "_close_delimited", "_complete", "_fast", "_framed", "_keep", "_lag", "_now", "_out", "_parser",
        "_receive", "_stamped", "connect_due", "engine", "fd", "opened", "served", "sock", "state", "stream", "writing",
    )  # fmt: skip

    encrypted: ClassVar[bool] = False

    def __init__(self, engine: Engine, sock: socket.socket) -> None:
        self.engine, self.sock = engine, sock
        self.fd = sock.fileno()
        self.state = CONNECTING
        self.stream: Stream | None = None
        self.opened = time.monotonic_ns()
        self.connect_due = self.opened + engine.connect_ns
        self.served = 0
        self.writing = True
        self._receive = sock.recvmsg
        self._out: list[memoryview] = []
        self._now = self._lag = 0
        self._stamped = False
        self._complete = False
        self._framed = False
        self._between = False
        """The parser has just seen the end of a chunk."""
        self._fast: Fast | None = None
        """Set while the parser stands between two chunks and the next event is likely to be like the last."""
        self._close_delimited = False
        self._keep = False
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
            self._established()
            return
        if writable and self._out:
            self._flush()
        if readable and self.state != CLOSED:
            self.read()

    def _established(self) -> None:
        """The other end has accepted."""
        self._connected()

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
            self._fast = None
            self._parser = None  # type: ignore[assignment]  # it refers back to this object, and the collector is off while driving

    # -------------------------------------------------------------------------------------------------------- writing

    def send(self, stream: Stream, head: bytes, body: memoryview) -> None:
        """Write a request; the connection is idle. The stream's `w` is the instant before its first byte is written."""
        self._begin(stream)
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

    def _begin(self, stream: Stream) -> None:
        self.stream = stream
        self.state = BUSY
        self._complete = self._framed = self._close_delimited = False
        if self.served:
            stream.flags |= layout.REUSED

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

    def read(self) -> int:
        """Take in what has arrived; returns the instant of the read. The hot path: once per token of a stream.

        What costs here is less the number of steps than how much different code they touch: a client that wakes for
        every token finds its caches cold. So the usual case, one whole HTTP chunk with one event like the last, is
        decided by a comparison and one pattern, and the HTTP parser, which stands between two chunks, never sees it.
        """
        fast = self._fast
        size = self._expected() if fast is None else READ_BYTES
        receive = self._receive
        try:
            data, ancillary, _, _ = receive(size, _ANCILLARY)
        except BlockingIOError:
            return _now()
        except OSError as error:
            self._broken(error)
            return _now()
        now = _now()
        if fast is not None and ancillary:
            engine = self.engine
            seconds, nanoseconds = _unpack(ancillary[0][2])
            if seconds != engine.second:
                engine.second, engine.second_ns = seconds, seconds * 1_000_000_000 - engine.offset_ns
            at = engine.second_ns + nanoseconds
            lag = now - at
            if 0 <= lag < _LAG_KEPT_NS:
                found = len(data)
                heads, _, rest, append = fast
                head = heads[found] if found in heads else fast.head(found)
                if data.startswith(head) and rest(data, len(head)) is not None:
                    append(at)
                    engine.note_lag(lag)
                    stream = self.stream
                    assert stream is not None
                    stream.count += 1
                    stream.bytes += found + len(fast.prefix) - len(head) - 2
                    return now
        self._take(data, ancillary, now, size)
        return now

    def _expected(self) -> int:
        """How much to read at most, where it matters.

        A read that takes in several segments has the instant of the last. The first output of an answer is to have its
        own, however late we come to read it, so until there is one each event is read by itself.
        """
        stream = self.stream
        if stream is None or stream.f or self.encrypted or not stream.api.streaming:
            return READ_BYTES
        try:
            waiting = self.sock.recv(READ_BYTES, socket.MSG_PEEK)
        except OSError:
            return READ_BYTES  # reading will say what it is
        end = waiting.find(b"\n\n") + 2
        return end if 2 <= end < len(waiting) - len(_CHUNK_END) else READ_BYTES

    def _take(self, data: bytes, ancillary: list[tuple[int, int, bytes]], now: int, size: int) -> None:
        """Whatever it is that has arrived, and all there is of it; `size` is what was asked for."""
        while True:
            if not data:
                self._eof(now)
                return
            self._stamp(ancillary, now)
            self._arrived(data)
            if len(data) < size or self.state == CLOSED:
                return
            size = self._expected() if size < READ_BYTES else MORE_BYTES
            try:
                data, ancillary, _, _ = self._receive(size, _ANCILLARY)
            except BlockingIOError:
                return
            except OSError as error:
                self._broken(error)
                return
            now = _now()

    def _stamp(self, ancillary: list[tuple[int, int, bytes]], now: int) -> None:
        """Set the instant of a read: when the kernel received its last segment, if it says so."""
        engine = self.engine
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
            engine.note_lag(min(lag, _LAG_KEPT_NS))
            self._now, self._lag, self._stamped = now - lag, lag, True
        else:
            self._now, self._lag, self._stamped = now, 0, False

    def _arrived(self, data: bytes) -> None:
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        stream = self.stream
        if stream is None:
            # an answer nobody asked for, such as "408 Request Timeout" before the close
            self.close()
            return
        if not stream.r:
            stream.r = self._now
            if self._stamped:
                stream.flags |= layout.KERNEL_STAMPED
        self._fast, self._between = None, False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.state != CLOSED:
                self.fail(Kind.PROTOCOL, f"not HTTP/1.1: {error}", self._now)
            return
        if self._complete and self.state != CLOSED:
            self._finished()
        elif self._between and self._stamped and not self.encrypted and data.endswith(_CHUNK_END):
            self._fast = stream.expect()

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
                    Kind.TLS if self.encrypted else Kind.CONNECT_FAILED,
                    "closed by the server before it was usable",
                    now,
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

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete = True
