"""A connection with TLS: encrypted bytes are read and stamped like any others, and decrypted through a memory BIO."""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING, ClassVar

from neuronbench.load.connection import CLOSED, HANDSHAKE, MORE_BYTES, Connection
from neuronbench.load.outcomes import Kind

if TYPE_CHECKING:
    from neuronbench.load.engine import Engine
    from neuronbench.load.stream import Stream


class TlsConnection(Connection):
    """As `Connection`; between being accepted and usable it is in state `HANDSHAKE`."""

    __slots__ = ("_bio_in", "_bio_out", "_tls")

    encrypted: ClassVar[bool] = True

    def __init__(self, engine: Engine, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        super().__init__(engine, sock)
        self._bio_in, self._bio_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._bio_in, self._bio_out, server_hostname=name)

    def _established(self) -> None:
        self.state = HANDSHAKE
        self._handshake()

    def send(self, stream: Stream, head: bytes, body: memoryview) -> None:
        self._begin(stream)
        now = time.monotonic_ns()
        self._tls.write(head)
        self._tls.write(body)
        self._out = [memoryview(self._bio_out.read())]
        stream.w = stream.w or now
        self._flush()

    def _handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._push()
            self._want_write(bool(self._out))
            return
        except ssl.SSLError as error:
            self._push()
            self.fail(Kind.TLS, str(error))
            return
        self._push()
        if self.state != CLOSED:
            self._connected()

    def _push(self) -> None:
        if self._bio_out.pending:
            self._out.append(memoryview(self._bio_out.read()))
            self._flush()

    def _arrived(self, data: bytes) -> None:
        self._bio_in.write(data)
        if self.state == HANDSHAKE:
            self._handshake()
            return
        while self.state not in (CLOSED, HANDSHAKE):
            try:
                plain = self._tls.read(MORE_BYTES)
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
            self._push()
