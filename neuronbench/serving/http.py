"""A few small requests to a server, each with a deadline that holds whatever the server does."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

BODY_LIMIT: Final = 4 << 20


class Unreachable(Exception):
    """No complete answer: refused, reset, or not within the time given."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Status and body of a response."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> Any:
        """The parsed body; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def clean_url(url: str) -> str:
    """`host:8000/v1/` → `http://host:8000`: scheme, host and path without the API's `/v1`. Raises `ValueError`."""
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a server's address is http://HOST:PORT; found {url!r}")
    return text.partition("?")[0].rstrip("/").removesuffix("/v1").rstrip("/")


def request(
    base_url: str,
    path: str,
    *,
    timeout_s: float,
    payload: Mapping[str, Any] | None = None,
    api_key: str | None = None,
) -> Answer:
    """GET `path`, or POST `payload` to it. Raises `Unreachable` when the answer is not complete in `timeout_s`."""
    parts = urlsplit(base_url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    timeout_s = max(0.001, timeout_s)
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    headers = {"Connection": "close"}
    body = None
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    if payload is not None:
        body, headers["Content-Type"] = json.dumps(payload).encode(), "application/json"

    sockets: list[socket.socket] = []
    late = threading.Event()

    def cut() -> None:
        # A socket's own time-out starts anew with every byte; this does not.
        late.set()
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    response: http.client.HTTPResponse | None = None
    try:
        connection.connect()
        sockets.append(connection.sock)  # the connection forgets it when the server announces that it will close
        if late.is_set():
            raise TimeoutError
        connection.request("GET" if body is None else "POST", f"{parts.path.rstrip('/')}{path}", body, headers)
        response = connection.getresponse()
        data = response.read(BODY_LIMIT)
        if late.is_set():  # a body without a length ends wherever the connection does
            raise TimeoutError
        return Answer(status=response.status, body=data)
    except (OSError, http.client.HTTPException) as error:
        timed_out = late.is_set() or isinstance(error, TimeoutError)
        what = f"no answer within {timeout_s:.1f} s" if timed_out else f"{type(error).__name__}: {error}"
        raise Unreachable(f"{base_url}{path}: {what}") from error
    finally:
        timer.cancel()
        if response is not None:
            response.close()  # it holds the socket where the connection has let go of it
        connection.close()
        for sock in sockets:
            sock.close()
