"""A few small requests to a server, each with a deadline that holds whatever the server does."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True, kw_only=True)
class TimedLines:
    """A response as it came: each line with the instant (CLOCK_MONOTONIC, ns) at which it was read."""

    status: int
    sent_ns: int
    """Right before the request was written; the connection stood then."""
    lines: list[tuple[int, bytes]]


def request(
    base_url: str,
    path: str,
    *,
    timeout_s: float,
    payload: Mapping[str, Any] | None = None,
    api_key: str | None = None,
) -> Answer:
    """GET `path`, or POST `payload` to it. Raises `Unreachable` when the answer is not complete in `timeout_s`."""
    with _exchange(base_url, path, timeout_s, payload, api_key) as (response, _, late):
        data = response.read(BODY_LIMIT)
        if late.is_set():  # a body without a length ends wherever the connection does
            raise TimeoutError
        return Answer(status=response.status, body=data)


def timed_lines(
    base_url: str, path: str, *, timeout_s: float, payload: Mapping[str, Any], api_key: str | None = None
) -> TimedLines:
    """POST `payload` and read the answer line by line to its end: for a few streams, one after the other.

    Raises `Unreachable` when the answer is not complete in `timeout_s`.
    """
    with _exchange(base_url, path, timeout_s, payload, api_key) as (response, sent_ns, late):
        lines, size = [], 0
        while size < BODY_LIMIT and (line := response.readline()):
            lines.append((time.monotonic_ns(), line))
            size += len(line)
        if late.is_set():
            raise TimeoutError
        return TimedLines(status=response.status, sent_ns=sent_ns, lines=lines)


@contextlib.contextmanager
def _exchange(
    base_url: str, path: str, timeout_s: float, payload: Mapping[str, Any] | None, api_key: str | None
) -> Iterator[tuple[http.client.HTTPResponse, int, threading.Event]]:
    """The response to be read, when its request was sent, and whether it is too late by now."""
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
        sent_ns = time.monotonic_ns()
        connection.request("GET" if body is None else "POST", f"{parts.path.rstrip('/')}{path}", body, headers)
        response = connection.getresponse()
        yield response, sent_ns, late
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
