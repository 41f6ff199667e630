"""The pause that lets one wake-up serve many streams: when there is one, how long, and that it takes nothing away."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from load_helpers import LONG, plan_of_models

from neuronbench.load.apis import APIS
from neuronbench.load.coalesce import REVIEW_NS, Coalescing, choose
from neuronbench.load.engine import Engine, Limits, Target
from neuronbench.load.outcomes import Phase
from neuronbench.load.run import drive, reduce_run
from neuronbench.load.stream import Stream
from neuronbench.processes import spawn
from neuronbench.testing.truth_server import TruthServer

MS = 1_000_000
HOUR = 3_600_000_000_000
HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id": "c", "choices": [{"index": 0, "text": "word", "finish_reason": null}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


@pytest.mark.parametrize(
    ("gap_ms", "streams", "life_ms", "expected_ms"),
    [
        (10, 64, 690, 1.0),
        (10, 64, None, 1.0),
        (10, 1, 690, 0),  # it would gather nothing
        (10, 16, 690, 0),
        (40, 64, 2000, 0),
        (4, 64, 2000, 0.5),  # an eighth of the gap
        (1, 64, 2000, 0),
        (10, 256, 200, 0.5),  # a four-hundredth of a life
        (10, 256, 40, 0),
    ],
)
def test_the_pause_is_small_beside_gaps_and_lives(
    gap_ms: float, streams: int, life_ms: float | None, expected_ms: float
) -> None:
    during = 2000 * MS
    reads = round(streams * during / (gap_ms * MS))
    ended = 0 if life_ms is None else round(streams * during / (life_ms * MS))
    found = choose(MS, during_ns=during, streams=streams, reads=reads, ended=ended)
    assert found == pytest.approx(expected_ms * MS, rel=0.02)


def test_without_stamped_reads_there_is_no_pause() -> None:
    assert choose(MS, during_ns=REVIEW_NS, streams=64, reads=0, ended=10) == 0


def test_it_is_reviewed_four_times_a_second_and_kept_when_the_lags_were_written_down() -> None:
    coalescing = Coalescing(MS)
    coalescing.review(HOUR, 64, 1000)
    assert coalescing.pause_ns == 0
    coalescing.review(HOUR + REVIEW_NS, 64, 2600)
    assert coalescing.pause_ns == MS
    coalescing.review(HOUR + REVIEW_NS + 1, 1, 2601)
    assert coalescing.pause_ns == MS, "not yet"
    coalescing.review(HOUR + 2 * REVIEW_NS, 64, 100)
    assert coalescing.pause_ns == MS
    coalescing.review(HOUR + 3 * REVIEW_NS, 1, 125)
    assert coalescing.pause_ns == 0


def test_it_ends_before_something_is_due() -> None:
    coalescing = Coalescing(MS)
    coalescing.pause_ns = MS
    coalescing.gather(time.monotonic_ns() + 250_000)
    assert coalescing.taken == 0
    coalescing.gather(0)
    assert (coalescing.taken, coalescing.longest_ns) == (1, MS)


class Feeder:
    """Many streams on one engine, and the server's ends of them."""

    def __init__(self, streams: int) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            self.engine = Engine(
                Target("127.0.0.1", listener.getsockname()[1], False, ""),
                Limits(HOUR, HOUR, HOUR, HOUR),
                head=b"POST /v1/completions HTTP/1.1\r\nContent-Length: ",
                bodies=lambda index: memoryview(b"{}"),
                ended=lambda stream, t: None,
                max_connections=streams,
                coalesce_ns=MS,
            )
            self.streams = [Stream(APIS["completions"], seq=k, body=0, phase=Phase.WINDOW, s=1) for k in range(streams)]
            for stream in self.streams:
                self.engine.submit(stream)
            self.peers = [listener.accept()[0] for _ in self.streams]
        for peer in self.peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.sendall(HEADERS)

    def round(self) -> None:
        """One event to every stream, and all of them read."""
        count = self.streams[-1].count + 1
        for peer in self.peers:
            peer.sendall(CHUNK)
        deadline = time.monotonic() + 100
        while any(stream.count < count for stream in self.streams):
            assert time.monotonic() < deadline
            self.engine.turn()

    def close(self) -> None:
        self.engine.close()
        for peer in self.peers:
            peer.close()


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    made = Feeder(32)
    yield made
    made.close()


def test_with_a_pause_every_event_keeps_an_instant_of_its_own(feeder: Feeder, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        feeder.round()
    engine = feeder.engine
    monkeypatch.setattr("neuronbench.load.coalesce.REVIEW_NS", 1 << 62)  # nothing but the pause that is set here
    engine.coalescing.pause_ns = MS
    for _ in range(3):
        before = time.monotonic_ns()
        feeder.round()
        instants = [stream.chunks[-1] for stream in feeder.streams]
        assert all(before - 20_000 <= at for at in instants)
        assert len(set(instants)) > 1, "the kernel's, not that of the wake-up"
    assert engine.coalescing.taken > 0
    assert all(list(stream.chunks) == sorted(stream.chunks) for stream in feeder.streams)


def test_nothing_waits_when_something_is_due_now(feeder: Feeder, monkeypatch: pytest.MonkeyPatch) -> None:
    feeder.round()
    engine = feeder.engine
    monkeypatch.setattr("neuronbench.load.coalesce.REVIEW_NS", 1 << 62)
    engine.coalescing.pause_ns = MS
    called: list[int] = []
    engine.call(time.monotonic_ns(), called.append, 1)
    engine.turn()
    assert called == [1]
    assert engine.coalescing.taken == 0


@pytest.mark.parametrize(
    ("coalesce_ms", "stamps", "some"), [(1.0, True, True), (0.0, True, False), (1.0, False, False)]
)
def test_what_was_taken_is_in_the_record(
    truth: TruthServer, tmp_path: Path, coalesce_ms: float, stamps: bool, some: bool
) -> None:
    # by what is seen on a host that keeps up there are four reviews; one that does not takes longer, and has more
    plan = plan_of_models(tmp_path / "plan", ["truth:ttft=20,tpot=10"] * 64, tokens=120, concurrency=64)
    out = tmp_path / "out"
    result = drive(
        plan, base_url=truth.url, out=out, spawn=spawn, deadline_s=200, timeouts=LONG,
        coalesce_ms=coalesce_ms, stamps=stamps,
    )  # fmt: skip
    assert result.status == "ok", result.message
    reduction = reduce_run(plan, out, drive=result)
    assert reduction.failures == {}
    taken = json.loads((out / "driver-0.json").read_text())["pauses"]
    assert (taken > 0) is some
    assert (result.coalesce_ms > 0) is some
    assert result.coalesce_ms <= coalesce_ms
    assert reduction.window["coalesce_ms"] == result.coalesce_ms
    assert ("on purpose" in reduction.gate("client_lag").message) is some


def test_a_pause_that_cannot_be_is_refused(truth: TruthServer, tmp_path: Path) -> None:
    plan = plan_of_models(tmp_path / "plan", ["truth"] * 2, concurrency=1)
    with pytest.raises(ValueError, match="coalesce_ms: expected 0 to 5, found 50"):
        drive(plan, base_url=truth.url, out=tmp_path / "out", spawn=spawn, coalesce_ms=50)
