"""The short way from a socket to an instant: whatever way the bytes come, they mean what the long way makes of them."""

from __future__ import annotations

import itertools
import json
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronbench.load import layout
from neuronbench.load.apis import APIS
from neuronbench.load.connection import IDLE, Connection
from neuronbench.load.engine import Engine, Limits, Target
from neuronbench.load.outcomes import Kind, Phase
from neuronbench.load.stream import Fast, Stream

HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HOUR = 3_600_000_000_000


class Wire:
    """An engine with one connection, and the server's end of it in our hands."""

    def __init__(self) -> None:
        self.ended: list[Stream] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.engine = Engine(
                Target("127.0.0.1", listener.getsockname()[1], False, ""),
                Limits(HOUR, HOUR, HOUR, HOUR),
                head=b"POST /v1/completions HTTP/1.1\r\nContent-Length: ",
                bodies=lambda index: memoryview(b"{}"),
                ended=lambda stream, t: self.ended.append(stream),
                max_connections=1,
            )
            self.engine.preconnect(1)
            self.server, _ = listener.accept()
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        (self.connection,) = self.engine._connections.values()
        deadline = time.monotonic() + 10
        while self.connection.state != IDLE and time.monotonic() < deadline:
            self.engine.turn()
        self.seq = 0

    def ask(self, api: str = "completions") -> Stream:
        stream = Stream(APIS[api], seq=self.seq, body=0, phase=Phase.WINDOW, s=1)
        self.seq += 1
        self.engine.submit(stream)
        self.server.recv(65536)
        return stream

    def arrive(self, data: bytes) -> None:
        """Send, and have it read once it is there."""
        self.server.sendall(data)
        assert select.select([self.connection.sock], [], [], 10)[0]
        self.connection.read()

    def close(self) -> None:
        self.engine.close()
        self.server.close()


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def event(text: str, finish: str | None = None, **more: object) -> bytes:
    data = {"id": "c-1", "choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def framed(*parts: bytes, size: str = "%x") -> bytes:
    data = b"".join(parts)
    return f"{size % len(data)}\r\n".encode() + data + b"\r\n"


USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
END = framed(event("", "stop")) + framed(USAGE) + framed(DONE) + b"0\r\n\r\n"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what went the long way."""
    sizes: list[int] = []
    long_way = Connection._parse

    def counted(self: Connection, data: bytes) -> None:
        sizes.append(len(data))
        long_way(self, data)

    monkeypatch.setattr(Connection, "_parse", counted)
    return sizes


def test_events_like_the_last_go_the_short_way(wire: Wire, taken: list[int]) -> None:
    stream = wire.ask()
    wire.arrive(HEADERS + framed(event("a", stamp=1)))
    assert len(taken) == 1
    # texts of other lengths, with escapes and in other scripts, sizes of two and of three digits, other numbers
    texts = ["b", "cc", "\n\n", "日本", "d" * 300, "é", "\\\\n"]
    pieces = [framed(event(text, stamp=-1.5e9 + number)) for number, text in enumerate(texts)]
    before = len(wire.engine.lags)
    for piece in pieces:
        wire.arrive(piece)
    assert len(taken) == 1
    assert stream.count == len(stream.chunks) == 1 + len(texts)
    assert len(wire.engine.lags) - before == len(texts)
    assert list(stream.chunks) == sorted(stream.chunks)
    wire.arrive(END)
    assert (stream.kind, stream.n_out, stream.count) == (Kind.OK, 9, 1 + len(texts))
    between = [event(text, stamp=-1.5e9 + number) for number, text in enumerate(texts)]
    assert stream.bytes == sum(map(len, [event("a", stamp=1), *between, event("", "stop"), USAGE, DONE]))
    assert stream.flags & layout.KERNEL_STAMPED


PLAIN = framed(event("b", stamp=2))
ODD = [
    framed(event('say "x"', stamp=2)),
    framed(event("", stamp=2)),
    framed(event("b", stamp=2), event("c", stamp=3)),
    PLAIN + framed(event("c", stamp=3)),
    framed(event("b", stamp=2)[:20]) + framed(event("b", stamp=2)[20:]),
    framed(event("b", stamp=2)[:-1]) + framed(b"\n"),
    framed(b": keep-alive\n\n"),
    framed(event("b", stamp=2), size="%X;extension=1"),
    framed(event("b", stamp=2), size="000%x"),
    framed(event("b", "length", stamp=2)),
    framed(event("b", stamp=2, usage={"completion_tokens": 2, "prompt_tokens": 2})),
    framed(b'data: {"error": {"message": "boom"}}\n\n'),
    framed(event("b", stamp=2).replace(b"\n", b"\r\n")),
    framed(event("b\\", stamp=2)),
    framed(event("b", stamp=2).replace(b'"b"', b'"b\\"')),
    framed(event("b", stamp=2).replace(b'"b"', b'"b\n\nb"')),
    PLAIN.replace(b"\r\n", b"\r\r", 1),
    b"ffff" + PLAIN[2:],
]


def answer(wire: Wire, pieces: Sequence[bytes]) -> tuple[object, ...]:
    """What an answer that comes in these pieces amounts to; a broken connection is made anew."""
    stream = wire.ask()
    for piece in pieces:
        if piece and stream.e == 0:
            wire.arrive(piece)
    for _ in range(3):
        if stream.e == 0 and select.select([wire.connection.sock], [], [], 0)[0]:
            wire.connection.read()
    found = (
        stream.kind, stream.count, stream.empties, stream.n_out, stream.flags & ~layout.REUSED, stream.bytes,
        stream.error, stream.tail, list(stream.tokens or ()), len(stream.chunks), bool(stream.f), bool(stream.e),
    )  # fmt: skip
    if stream not in wire.ended or wire.connection.state != IDLE:
        wire.close()
        wire.__init__()  # type: ignore[misc]
    return found


def without_short_way(patch: pytest.MonkeyPatch) -> None:
    def none(self: Stream) -> Fast | None:
        return None

    patch.setattr(Stream, "expect", none)


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_what_only_looks_alike_means_the_same_either_way(wire: Wire, odd: bytes) -> None:
    pieces = [HEADERS + framed(event("a", stamp=1)), PLAIN, odd, PLAIN, END]
    short = answer(wire, pieces)
    with pytest.MonkeyPatch.context() as patch:
        without_short_way(patch)
        assert answer(wire, pieces) == short


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([PLAIN, framed(event("ccc", stamp=44)), *ODD[:10]]), max_size=6),
    st.lists(st.integers(0, 3000), max_size=4),
)
def test_any_cut_of_the_bytes_means_the_same_either_way(wire: Wire, frames: list[bytes], cuts: list[int]) -> None:
    parts = [HEADERS + framed(event("a", stamp=1)), *frames, END]
    ends = {0, *itertools.accumulate(map(len, parts))}
    data = b"".join(parts)
    at = sorted(ends | {cut % len(data) for cut in cuts})
    pieces = [data[a:b] for a, b in itertools.pairwise(at)]
    short = answer(wire, pieces)
    with pytest.MonkeyPatch.context() as patch:
        without_short_way(patch)
        assert answer(wire, pieces) == short
        # and as one piece: instants differ, nothing else does
        assert answer(wire, [data]) == short


def test_what_is_sent_again_goes_on_a_connection_that_nobody_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one that falls idle meanwhile may be as stale as the first, and a request is sent again only once."""
    monkeypatch.setattr("neuronbench.load.connection._RACE_NS", HOUR)
    ended: list[Stream] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = Engine(
            Target("127.0.0.1", listener.getsockname()[1], False, ""), Limits(HOUR, HOUR, HOUR, HOUR),
            head=b"POST / HTTP/1.1\r\nContent-Length: ", bodies=lambda index: memoryview(b"{}"),
            ended=lambda stream, t: ended.append(stream), max_connections=4,
        )  # fmt: skip

        def turn_until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 100
            while not condition():
                assert time.monotonic() < deadline
                engine.turn()

        def ask(count: int) -> None:
            for _ in range(count):
                engine.submit(Stream(APIS["completions"], seq=len(made), body=0, phase=Phase.WINDOW, s=1))
                made.append(list(engine.in_flight.values())[-1])

        def peer_of(stream: Stream) -> socket.socket:
            (ours,) = [each.sock for each in engine._connections.values() if each.stream is stream]
            return next(peer for peer in peers if peer.getpeername() == ours.getsockname())

        made: list[Stream] = []
        ask(2)
        peers = [listener.accept()[0] for _ in range(2)]
        turn_until(lambda: all(each.stream is not None for each in engine._connections.values()))
        for peer in peers:
            peer.sendall(HEADERS + framed(event("a")) + END)
        turn_until(lambda: len(ended) == 2)
        ask(2)
        other, lost = made[2:]  # so that the one that is closed is looked at first
        stale, live = peer_of(lost), peer_of(other)
        stale.close()  # seen first, and then, in the same look, that the other one is free again
        live.sendall(HEADERS + framed(event("a")) + END)
        turn_until(lambda: other in ended)
        fresh, _ = listener.accept()
        fresh.sendall(HEADERS + framed(event("a")) + END)
        turn_until(lambda: lost in ended)
        assert (lost.kind, lost.attempts) == (Kind.OK, 2)
        assert not live.recv(65536).endswith(b"{}" * 2), "nothing but its own request came on it"
        engine.close()
        for peer in (live, fresh):
            peer.close()


def test_the_first_output_is_read_by_itself_however_much_is_waiting(wire: Wire, taken: list[int]) -> None:
    role = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    chunks = [b'data: {"choices": [{"index": 0, "delta": {"content": "%c"}}]}\n\n' % letter for letter in b"abcd"]
    stream = wire.ask("chat")
    waiting = HEADERS + framed(role) + b"".join(map(framed, chunks))
    before = len(wire.engine.lags)
    wire.server.sendall(waiting)
    deadline = time.monotonic() + 10
    while len(wire.connection.sock.recv(65536, socket.MSG_PEEK)) < len(waiting) and time.monotonic() < deadline:
        time.sleep(0.001)
    wire.connection.read()
    first = HEADERS + framed(role)
    assert taken[:2] == [len(first) - 2, 2 + len(framed(chunks[0])) - 2]
    assert sum(taken) == len(waiting)
    assert len(taken) == 3
    assert len(wire.engine.lags) - before == 3
    assert stream.count == 4
    wire.arrive(END)
    assert stream.kind == Kind.OK
