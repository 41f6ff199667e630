"""EC2's instance metadata service, version 2, on the loopback: a token comes first, and faults can be ordered."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal, TypeAlias

Fault: TypeAlias = Literal["", "timeout", "hop_limit", "unauthorized", "not_found", "disabled"]
"""`timeout`: no answer at all. `hop_limit`: none to a request for a token, as from inside a container that is one hop
too far. `unauthorized`: 401 in spite of the token. `not_found`: 404 to every path. `disabled`: 403, as when switched
off."""

FAULTS: Final = ("", "timeout", "hop_limit", "unauthorized", "not_found", "disabled")
TOKEN_PATH: Final = "/latest/api/token"


class FakeImds:
    """Serves `values` (path below `/latest/meta-data/` → text) between `start` and `stop`."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)
        self.fault: Fault = ""
        self.requests: list[tuple[str, str, int]] = []
        """Method, path and status of each request that was answered."""
        self._tokens: set[str] = set()
        self._stopping = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """`http://127.0.0.1:<port>`; raises `RuntimeError` while it does not run."""
        if self._server is None:
            raise RuntimeError("the fake metadata service does not run: use the box as a context manager")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        imds = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                imds._answer(self, imds._token(self))

            def do_GET(self) -> None:
                imds._answer(self, imds._value(self))

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        self._stopping.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, and whoever still waits for an answer; idempotent."""
        self._stopping.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _silent(self) -> tuple[int, str] | None:
        self._stopping.wait()
        return None

    def _token(self, request: BaseHTTPRequestHandler) -> tuple[int, str] | None:
        if self.fault in ("timeout", "hop_limit"):
            return self._silent()
        if self.fault == "disabled":
            return 403, ""
        if request.path != TOKEN_PATH:
            return 404, ""
        seconds = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if not seconds.isdecimal() or not 1 <= int(seconds) <= 21600:
            return 400, ""
        token = secrets.token_urlsafe(24)
        self._tokens.add(token)
        return 200, token

    def _value(self, request: BaseHTTPRequestHandler) -> tuple[int, str] | None:
        if self.fault == "timeout":
            return self._silent()
        if self.fault == "disabled":
            return 403, ""
        if self.fault == "unauthorized" or request.headers.get("X-aws-ec2-metadata-token") not in self._tokens:
            return 401, ""
        value = self.values.get(request.path.removeprefix("/latest/meta-data/"))
        return (404, "") if value is None or self.fault == "not_found" else (200, value)

    def _answer(self, request: BaseHTTPRequestHandler, answer: tuple[int, str] | None) -> None:
        if answer is None:
            request.close_connection = True
            return
        status, text = answer
        self.requests.append((request.command, request.path, status))
        body = text.encode()
        request.send_response(status)
        request.send_header("Content-Type", "text/plain")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
