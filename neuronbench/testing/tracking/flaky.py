"""A proxy that fails as those between a box and its server do: before the request has come through, and after.

The worst is a connection that is reset when the server has done what was asked: the client must ask again, and
whatever cannot be made twice without harm shows.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

RESET_BEFORE: Final = "reset before"
RESET_AFTER: Final = "reset after"
KINDS: Final = (RESET_BEFORE, RESET_AFTER, "429", "502", "503")
"""`429` and `503` come with `Retry-After: 1`; numbers are answered without asking the server."""
Choose = Callable[[str, str], str]
"""Method and path → a kind, or empty for a request that goes through."""


def at_random(share: float, *, seed: int = 1, kinds: tuple[str, ...] = KINDS) -> Choose:
    """That share of all requests fails, in one of the `kinds`."""
    chance, lock = random.Random(seed), threading.Lock()

    def choose(method: str, path: str) -> str:
        with lock:
            return chance.choice(kinds) if chance.random() < share else ""

    return choose


def first_of_each(kind: str) -> Choose:
    """The first request of each sort fails: ids and names of files aside, each method and path."""
    seen: set[str] = set()
    lock = threading.Lock()

    def choose(method: str, path: str) -> str:
        plain = path.partition("?")[0].partition("/artifacts/")[0]
        sort = f"{method} " + re.sub(r"[0-9a-f]{32}", "ID", plain)
        with lock:
            if sort in seen:
                return ""
            seen.add(sort)
            return kind

    return choose


class FlakyProxy:
    """Where it listens and what it has done."""

    def __init__(self, url: str, told: Counter[str]) -> None:
        self.url = url
        self.told = told
        """How many requests met which kind; `passed` went through, `down` found no server and got 502."""


@contextmanager
def flaky_proxy(target: str, choose: Choose) -> Iterator[FlakyProxy]:
    """An HTTP/1.1 proxy in front of the server at `target`, while it is needed."""
    told: Counter[str] = Counter()
    lock = threading.Lock()
    host, port = urlsplit(target).hostname or "", urlsplit(target).port or 80

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        upstream: http.client.HTTPConnection | None = None

        def any(self) -> None:
            body = self._body()
            kind = choose(self.command, self.path)
            if kind == RESET_BEFORE:
                return self._reset(kind)
            if kind and kind != RESET_AFTER:
                return self._answer(
                    int(kind), b"not now", [("Retry-After", "1")] if kind in ("429", "503") else [], kind
                )
            try:
                status, headers, data = self._forward(body)
            except OSError:
                return self._answer(502, b"no server", [], "down")
            if kind:
                return self._reset(kind)
            return self._answer(status, data, headers, "passed")

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = any

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            skipped = ("host", "content-length", "transfer-encoding", "connection")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
            for fresh in (False, True):
                if self.upstream is None or fresh:
                    self.upstream = http.client.HTTPConnection(host, port, timeout=120)
                    fresh = True
                try:
                    self.upstream.request(self.command, self.path, body, headers)
                    answer = self.upstream.getresponse()
                    kept = ("content-type", "www-authenticate", "location")
                    shown = [(name, value) for name, value in answer.getheaders() if name.lower() in kept]
                    return answer.status, shown, answer.read()
                except (http.client.HTTPException, OSError):
                    self.upstream.close()
                    if fresh:
                        break  # as a proxy that does not know whether it was done: it does not ask twice
                self.upstream = None
            self.upstream = None
            raise OSError("no server")

        def _answer(self, status: int, data: bytes, headers: list[tuple[str, str]], kind: str) -> None:
            with lock:
                told[kind] += 1
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _reset(self, kind: str) -> None:
            with lock:
                told[kind] += 1
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def finish(self) -> None:
            if self.upstream is not None:
                self.upstream.close()
            with suppress(OSError):
                super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Proxy(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that has gone

        def shutdown_request(self, request: Any) -> None:
            request.close()  # no orderly end: a reset is one only without it

    server = Proxy(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="flaky-proxy", daemon=True)
    thread.start()
    try:
        yield FlakyProxy(f"http://127.0.0.1:{server.server_address[1]}", told)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
