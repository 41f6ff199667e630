"""A metrics endpoint whose answers a test decides."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class MetricsServer(ThreadingHTTPServer):
    """A real HTTP/1.1 server on the loopback with persistent connections."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Callable[[], tuple[int, str]] = lambda: (200, "")
        self.hang = threading.Event()
        """Set: requests are read and not answered."""
        self.close_after = False
        """Whether to close each connection silently after its answer."""
        self.let_go = threading.Event()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.connections: list[socket.socket] = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/metrics"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""

    def end(self) -> None:
        """End it, and every connection that is open. Idempotent."""
        self.let_go.set()
        self.shutdown()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MetricsServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.connection)

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if self.server.hang.is_set():
            self.server.let_go.wait(30)
            return
        status, text = self.server.answer()
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.server.close_after:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def metrics_server() -> Iterator[MetricsServer]:
    server = MetricsServer()
    yield server
    server.end()
