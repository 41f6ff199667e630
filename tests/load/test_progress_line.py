"""The counts behind the line of each second."""

from __future__ import annotations

import time
from array import array

from neuronbench.load.apis import APIS
from neuronbench.load.outcomes import Kind, Phase
from neuronbench.load.progress import Progress, describe
from neuronbench.load.stream import Stream


def stream(chunks: int, tokens: int = -1, *, kind: Kind = Kind.OK) -> Stream:
    made = Stream(APIS["completions"], seq=0, body=0, phase=Phase.WINDOW, s=1)
    made.count, made.n_out, made.kind = chunks, tokens, kind
    return made


def tok_s(progress: Progress, start: int, seconds: int, streams: list[Stream]) -> float:
    line = progress.line(
        start + seconds * 1_000_000_000, phase="window", streams=streams, lags=array("i"), remaining=None, unit=""
    )
    rate: float = line["tok_s"]
    return rate


def test_tokens_of_answers_in_flight_count_as_they_come() -> None:
    start, progress = time.monotonic_ns(), Progress(None)
    progress.restart(start)
    assert tok_s(progress, start, 10, [stream(100), stream(50)]) == 15


def test_what_came_before_the_window_does_not_count() -> None:
    start, progress = time.monotonic_ns(), Progress(None)
    ended, going = stream(40, 40), stream(30)
    progress.end(ended)
    progress.restart(start, [going])
    assert tok_s(progress, start, 10, [going]) == 0
    going.count = 80
    assert tok_s(progress, start, 10, [going]) == 5
    going.n_out = 80
    progress.end(going)
    assert tok_s(progress, start, 10, []) == 5  # the same when it has ended


def test_chunks_of_several_tokens_are_worth_what_they_were_in_answers_until_now() -> None:
    start, progress = time.monotonic_ns(), Progress(None)
    progress.end(stream(10, 30))
    progress.restart(start)
    assert tok_s(progress, start, 10, [stream(10)]) == 3


def test_answers_that_are_not_streamed_count_when_they_end() -> None:
    start, progress = time.monotonic_ns(), Progress(None)
    progress.restart(start)
    progress.end(stream(0, 50))
    assert tok_s(progress, start, 10, [stream(0)]) == 5


def test_failures_and_lag_are_in_the_line() -> None:
    start, progress = time.monotonic_ns(), Progress(8.0)
    progress.restart(start)
    progress.end(stream(0, kind=Kind.DISCONNECTED))
    line = progress.line(
        start + 2_000_000_000, phase="window", streams=[], lags=array("i", [10_000, 2_500_000]), remaining=3.0, unit="s"
    )
    assert describe(line) == (
        "window 2 s, 3 s left  0.0 of 8.0 req/s  0 in flight  0 tok/s  1 FAILED  lag up to 2.5 ms"
    )
