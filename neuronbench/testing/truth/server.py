"""The server process: listener, signals, the parent's death."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

import orjson

from neuronbench.testing.truth.connection import SO_TIMESTAMPNS, Connection
from neuronbench.testing.truth.loop import Loop, Play
from neuronbench.testing.truth.service import Service
from neuronbench.testing.truth.settings import Settings


def say_ready(url: str) -> None:
    """The line that tells where it listens."""
    print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)


def serve(
    settings: Settings,
    *,
    with_parent: int | None = None,
    service: Callable[[Settings, Loop, Callable[[int], None]], Service] = Service,
    ready: Callable[[str], None] = say_ready,
) -> None:
    """Listen, say so, and serve until SIGTERM, SIGINT, or the end of the process `with_parent`.

    `service` makes what answers: a subclass of `Service` that plays another server's part. `ready` is given the URL.
    """
    loop = Loop()
    _watch_signals(loop)
    if with_parent is not None:
        _watch_parent(loop, with_parent)
    _allow_descriptors()
    try:
        listener = socket.create_server((settings.host, settings.port), backlog=4096)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise SystemExit(
            f"truth server: cannot listen on {where}: {error.strerror}; --port 0 takes a free one"
        ) from None
    # Both are inherited by accepted sockets, which saves two calls per connection.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    listener.setblocking(False)
    door = Door(settings, loop, listener, service)
    host, port = listener.getsockname()[:2]
    ready(f"http://{host}:{port}")
    # Nothing on the way of a token makes reference cycles; a collection would only be a pause.
    gc.freeze()
    gc.disable()
    try:
        loop.run()
    finally:
        if settings.log is not None:
            with settings.log.open("wb") as file:
                for record in door.service.records:
                    file.write(orjson.dumps(record.as_dict(), option=orjson.OPT_APPEND_NEWLINE))
        listener.close()


class Door:
    """Accepts connections, slowly when told to."""

    def __init__(
        self,
        settings: Settings,
        loop: Loop,
        listener: socket.socket,
        service: Callable[[Settings, Loop, Callable[[int], None]], Service] = Service,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._delay_ns = round(settings.accept_delay_ms * 1e6)
        self._shut = False
        self._connections: set[Connection] = set()
        self.service = service(settings, loop, self.shut_for)
        loop.add(listener.fileno(), select.EPOLLIN, self._knock)

    def _knock(self, mask: int) -> None:
        if self._delay_ns:
            self.shut_for(self._delay_ns, accept=True)
        else:
            self._accept()

    def shut_for(self, duration_ns: int, *, accept: bool = False) -> None:
        """Take no connection for that long; the kernel completes their handshakes all the same."""
        if not self._shut:
            self._shut = True
            self._loop.remove(self._listener.fileno())
            self._loop.play(self._reopen(time.monotonic_ns() + duration_ns, accept))

    def _reopen(self, at_ns: int, accept: bool) -> Play:
        yield at_ns
        self._shut = False
        self._loop.add(self._listener.fileno(), select.EPOLLIN, self._knock)
        if accept:
            self._accept()

    def _accept(self) -> None:
        for _ in range(64):  # the rest at the next turn, after the tokens that are due
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    print(f"truth server: out of file descriptors at {len(self._connections)} connections; "
                          "raise `ulimit -n`", file=sys.stderr)  # fmt: skip
                    self.shut_for(100_000_000)
                return
            sock.setblocking(False)
            self._connections.add(Connection(self._loop, sock, self.service, self._connections.discard))


def _allow_descriptors() -> None:
    """One descriptor a connection: take as many as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _watch_signals(loop: Loop) -> None:
    def stop(number: int, frame: object) -> None:
        loop.running = False

    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    # The byte wakes the loop; a handler alone would be followed by more waiting.
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    _keep.extend((reader, writer))
    loop.add(reader.fileno(), select.EPOLLIN, lambda mask: None, awake=True)


def _watch_parent(loop: Loop, parent: int) -> None:
    """End when the process `parent` does. Its pidfd is heeded even while the server is frozen."""

    def gone(mask: int) -> None:
        loop.running = False

    try:
        pidfd = os.pidfd_open(parent)
    except ProcessLookupError:
        raise SystemExit(f"truth server: the parent process {parent} is gone") from None
    if os.getppid() != parent:
        raise SystemExit(f"truth server: process {parent} is not the parent of this one")
    loop.add(pidfd, select.EPOLLIN, gone, awake=True)


_keep: list[socket.socket] = []
