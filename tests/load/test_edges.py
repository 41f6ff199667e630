"""Which requests the window has when ends are read in another order than they happened; on no clock at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from neuronbench.load import policies
from neuronbench.load.apis import APIS
from neuronbench.load.engine import Engine, Limits, Target
from neuronbench.load.outcomes import Kind, Phase
from neuronbench.load.policies import ClosedLoop
from neuronbench.load.stream import Stream

S = 1_000_000_000


class Books:
    """What a closed loop is told and asks for, in place of driver and engine."""

    def __init__(self, slots: int, *, requests: int | None = None, duration_s: float | None = None) -> None:
        self.engine: Any = SimpleNamespace(in_flight={}, call=self.call)
        self.plan: Any = SimpleNamespace(
            warmup=0, count=1000,
            arrivals={"concurrency": slots, "requests": requests, "duration_s": duration_s, "ramp_s": 0.0},
        )  # fmt: skip
        self.baton: Any = SimpleNamespace(reach=lambda point, then, *, at=0: then(at))
        self.worker, self.workers, self.wrapped = 0, 1, 0
        self.edges: dict[str, int] = {}
        self.rows: list[Stream] = []
        self.due: list[tuple[int, Any, tuple[Any, ...]]] = []
        self.drained = False
        self.loop = ClosedLoop(self, 0)  # type: ignore[arg-type]
        self.loop.start(0)
        for _, function, arguments in self.due[:]:
            function(*arguments)
        self.due.clear()

    def call(self, due: int, function: Any, *arguments: Any) -> None:
        self.due.append((due, function, arguments))

    def send(self, body: int, s: int, phase: Phase, slot: int = 0) -> None:
        stream = Stream(APIS["completions"], seq=len(self.rows), body=body, phase=phase, s=s, slot=slot)
        self.rows.append(stream)
        self.engine.in_flight[stream.seq] = stream

    def edge(self, name: str, at: int) -> None:
        self.edges[name] = at

    def drain(self, now: int) -> None:
        self.drained = True

    def end(self, slot: int, t: int) -> None:
        """That slot's request has ended at `t`, which is read now."""
        (stream,) = [each for each in self.engine.in_flight.values() if each.slot == slot]
        del self.engine.in_flight[stream.seq]
        stream.kind, stream.e = Kind.OK, t
        self.loop.ended(stream, t)

    def agree(self) -> bool:
        """Every request's phase is that of its own instant."""
        opened, closed = self.edges["open"], self.edges.get("close", 1 << 62)
        phases = [Phase.RAMP if s < opened else Phase.WINDOW if s < closed else Phase.TAIL for s in self.instants()]
        return [stream.phase for stream in self.rows] == phases

    def instants(self) -> list[int]:
        return [stream.s for stream in self.rows]


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "time", SimpleNamespace(monotonic_ns=lambda: 1))


def test_the_window_opens_at_the_last_first_end_that_is_read_and_has_what_was_due_after_it() -> None:
    books = Books(3)
    books.end(0, 90)
    books.end(2, 110)  # read before the earlier end of another slot
    books.end(1, 100)
    assert books.edges == {"open": 100}
    assert books.instants()[3:] == [90, 110, 100]
    assert [stream.phase for stream in books.rows[3:]] == [Phase.RAMP, Phase.WINDOW, Phase.WINDOW]
    assert books.agree()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_a_number_of_requests_is_counted_and_followed_by_their_instants(order: tuple[int, ...]) -> None:
    books = Books(3, requests=6)
    base = 0
    while "close" not in books.edges:
        base += 100
        for slot in order:  # read together, in any order
            books.end(slot, base + slot)
    assert books.agree()
    inside = [stream for stream in books.rows if stream.phase == Phase.WINDOW]
    assert 6 <= len(inside) <= 6 + 3
    for stream in inside:
        assert books.loop.open_inside == sum(each.kind == Kind.OPEN for each in inside)
        if stream.kind == Kind.OPEN:
            assert not books.drained
            books.end(stream.slot, base + 100 + stream.slot)
    assert books.drained


def test_what_was_sent_while_the_edge_was_overdue_belongs_after_it() -> None:
    books = Books(2, duration_s=1.0)
    books.end(0, 100)
    books.end(1, 110)
    ((due, close, arguments),) = books.due
    assert (due, books.loop.open_inside) == (110 + S, 1)
    books.end(1, due - 5)
    books.end(0, due + 7)  # read before the loop came round to its calls
    assert books.loop.open_inside == 2
    close(*arguments)
    assert [stream.phase for stream in books.rows[-2:]] == [Phase.WINDOW, Phase.TAIL]
    assert books.loop.open_inside == 1
    assert books.agree()
    books.end(1, due + 50)
    assert books.drained


@pytest.mark.parametrize(
    ("limits", "chunks", "kind", "at"),
    [
        (Limits(connect=9 * S, first_token=3 * S, inter_token=9 * S, total=5 * S), [], Kind.FIRST_TOKEN_TIMEOUT, 3),
        (Limits(connect=9 * S, first_token=9 * S, inter_token=9 * S, total=5 * S), [], Kind.TOTAL_TIMEOUT, 5),
        (Limits(connect=9 * S, first_token=3 * S, inter_token=1 * S, total=5 * S), [2], Kind.INTER_TOKEN_TIMEOUT, 3),
        (Limits(connect=9 * S, first_token=3 * S, inter_token=4 * S, total=5 * S), [2], Kind.TOTAL_TIMEOUT, 5),
    ],
)
def test_the_limit_that_was_passed_first_is_named_however_late_the_client_looks(
    limits: Limits, chunks: list[int], kind: Kind, at: int
) -> None:
    ended: list[Stream] = []
    engine = Engine(
        Target("127.0.0.1", 9, False, ""), limits, head=b"", bodies=lambda index: memoryview(b"{}"),
        ended=lambda stream, t: ended.append(stream), max_connections=1,
    )  # fmt: skip
    stream = Stream(APIS["completions"], seq=0, body=0, phase=Phase.WINDOW, s=1)
    stream.w = S
    for second in chunks:
        stream.count += 1
        stream.chunks.append((1 + second) * S)
    engine.in_flight[0] = stream
    engine._sweep((1 + at) * S)
    assert not ended, "not yet"
    engine._sweep(100 * S)
    assert [(each.kind, each.e) for each in ended] == [(kind, (1 + at) * S)]
    engine.close()
