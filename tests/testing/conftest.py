"""A client that hides nothing: raw sockets, every segment and HTTP chunk kept as it came."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from neuronbench.testing.truth_server import TruthServer

DEADLINE_S = 20.0


@dataclass(kw_only=True)
class Reply:
    """One response. `end`: complete, fin, reset, or open (nothing more within the time given)."""

    status: int = 0
    interim: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)
    segments: list[bytes] = field(default_factory=list)
    stamps_ns: list[int] = field(default_factory=list)
    end: str = "open"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Server-sent events as (name, data); data is JSON where it is an object, else the text."""
        found = []
        for block in self.body.replace(b"\r\n", b"\n").split(b"\n\n"):
            name, lines = "", []
            for line in block.split(b"\n"):
                key, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if key == b"event":
                    name = value.decode()
                elif key == b"data":
                    lines.append(value)
            data = b"\n".join(lines).decode()
            if lines:
                found.append((name, json.loads(data) if data.startswith("{") else data))
        return found

    @property
    def data(self) -> list[Any]:
        return [data for _, data in self.events]

    @property
    def texts(self) -> list[str]:
        """The text of every completions chunk, in order."""
        return [data["choices"][0]["text"] for data in self.data if isinstance(data, dict) and data.get("choices")]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        """Every chat delta, in order."""
        return [data["choices"][0]["delta"] for data in self.data if isinstance(data, dict) and data.get("choices")]

    @property
    def usages(self) -> list[dict[str, Any]]:
        return [data["usage"] for data in self.data if isinstance(data, dict) and data.get("usage")]


class Client:
    """One connection to a server."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._rest = b""

    def send(self, path: str, body: Any = None, *, method: str | None = None, headers: str = "") -> None:
        """Send one request; `headers` are complete lines."""
        data = b"" if body is None else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        head = f"{method} {path} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
        self.sock.sendall(head.encode() + data)

    def read(self, *, within_s: float = DEADLINE_S, until: Callable[[Reply], bool] | None = None) -> Reply:
        """Read one response to its end, or to the moment `until` holds, or for so long."""
        reply, raw, deadline = Reply(), self._rest, time.monotonic() + within_s
        while True:
            rest = _parse(reply, raw)
            if reply.end == "complete":
                self._rest = rest
                return reply
            self._rest = raw  # so that the next call goes on where this one stops
            if until is not None and until(reply):
                return reply
            left = deadline - time.monotonic()
            if left <= 0:
                return reply
            self.sock.settimeout(left)
            try:
                part = self.sock.recv(1 << 20)
            except TimeoutError:
                return reply
            except ConnectionResetError:
                reply.end = "reset"
                return reply
            if not part:
                reply.end = "fin"
                return reply
            reply.stamps_ns.append(time.monotonic_ns())
            reply.segments.append(part)
            raw += part

    def ask(self, path: str, body: Any = None, *, method: str | None = None, headers: str = "") -> Reply:
        self.send(path, body, method=method, headers=headers)
        return self.read()

    def gone(self) -> str:
        """How the connection ended: fin or reset; open if it did not."""
        self.sock.settimeout(DEADLINE_S)
        try:
            part = self.sock.recv(1 << 16)
        except TimeoutError:
            return "open"
        except ConnectionResetError:
            return "reset"
        return "open" if part else "fin"

    def close(self) -> None:
        self.sock.close()


def _parse(reply: Reply, raw: bytes) -> bytes:
    """Fill the reply from all bytes so far; returns what follows a complete response."""
    reply.interim.clear()
    while True:
        head, separator, rest = raw.partition(b"\r\n\r\n")
        if not separator:
            return b""
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        if status != 100:
            break
        reply.interim.append(status)
        raw = rest
    reply.status = status
    reply.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if reply.headers.get("transfer-encoding") != "chunked":
        length = int(reply.headers.get("content-length", 1 << 62))
        reply.body = rest[:length]
        if len(rest) >= length:
            reply.end = "complete"
        return rest[length:]
    reply.chunks = []
    while True:
        size_text, separator, after = rest.partition(b"\r\n")
        size = int(size_text, 16) if separator else 0
        if not separator or len(after) < size + 2:
            reply.body = b"".join(reply.chunks) + after[:size]
            return b""
        assert after[size : size + 2] == b"\r\n"
        rest = after[size + 2 :]
        if size == 0:
            reply.body, reply.end = b"".join(reply.chunks), "complete"
            return rest
        reply.chunks.append(after[:size])


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    """One quick server for all tests of a module."""
    with TruthServer(ttft_ms=4, tpot_ms=1, models=("org/model",)) as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Callable[[TruthServer], Client]]:
    """Opens connections and closes them after the test."""
    opened: list[Client] = []

    def open_one(server: TruthServer) -> Client:
        opened.append(Client(server.url))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def client(server: TruthServer, connect: Callable[[TruthServer], Client]) -> Client:
    """A connection to the module's server."""
    return connect(server)
