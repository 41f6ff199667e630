"""The timed loops in this process: what is counted, what is not, and what is left as it was."""

from __future__ import annotations

import gc
import time
from array import array

import pytest

from neuronbench.worker import loops, main, tensors


def pause(us: float):
    def call() -> int:
        until = time.perf_counter_ns() + round(us * 1e3)
        while time.perf_counter_ns() < until:
            pass
        return 1

    return call


def test_each_call_is_timed_and_the_warm_up_is_not() -> None:
    made: list[int] = []
    call = pause(50)
    facts, durations, output = loops.latency(lambda: made.append(1) or call(), lambda output: None, 40, warmup=5)
    probe = len(made) - 5 - 40
    assert probe in range(loops.PROBE_LOOPS * 2, loops.PROBE_LOOPS * loops.PROBE_CALLS + 1)
    assert len(durations) == 40
    assert min(durations) >= 50_000
    assert output == 1
    assert facts["begun_ns"] + sum(durations) <= facts["stopped_ns"] <= facts["ended_ns"]


class Clock:
    """A clock that goes on when it is read or slept on, whatever this host does meanwhile."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns, self.step_ns = 10**9, step_ns

    def perf_counter_ns(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def test_the_transfer_of_a_finished_output_is_no_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(step_ns=1_000)
    monkeypatch.setattr(loops, "time", clock)
    facts, durations, _ = loops.latency(lambda: clock.sleep(200e-6), lambda output: clock.sleep(0.02), 10, warmup=1)
    assert 20_000_000 <= facts["transfer_ns"] <= 20_000_000 + 2 * clock.step_ns
    assert set(durations) == {200_000 + clock.step_ns}
    assert facts["probe_escape_ppm"] < 10_000  # it would be 900,000 and more with the 20 ms in it


def test_a_queue_of_a_few_calls_shows_in_short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four calls may wait: of eight calls half is in no timer, of a hundred and twenty a thirtieth."""
    clock = Clock(step_ns=100)
    monkeypatch.setattr(loops, "time", clock)
    done_ns = 0

    def wait(until_ns: int) -> None:
        clock.now_ns = max(clock.now_ns, until_ns)

    def call() -> None:
        nonlocal done_ns
        done_ns = max(clock.now_ns, done_ns) + 2_000_000
        wait(done_ns - 4 * 2_000_000)

    facts, durations, _ = loops.latency(call, lambda output: wait(done_ns), 120, warmup=2)
    wall = facts["ended_ns"] - facts["begun_ns"] - facts["transfer_ns"]
    assert 1 - sum(durations) / wall == pytest.approx(4 / 120, abs=0.001)
    assert facts["probe_escape_ppm"] / 1e6 == pytest.approx(4 / 8, abs=0.01)


def test_a_window_goes_on_until_a_call_has_ended_after_its_close(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(step_ns=1_000)
    monkeypatch.setattr(loops, "time", clock)
    go = clock.now_ns + 1_000_000_000
    close = go + 30_000_000
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        clock.now_ns += 500_000
        return calls

    facts, stamps, output = loops.window(call, lambda output: None, go, close, capacity=2)
    assert go <= facts["begun_ns"] <= go + 2 * clock.step_ns
    assert all(stamp < close for stamp in stamps[:-1])
    assert close <= stamps[-1] < close + 600_000
    assert list(stamps) == sorted(stamps)
    assert len(stamps) == calls == output == 60  # more than was expected


def test_a_window_ends_at_the_limit_of_calls() -> None:
    now = time.perf_counter_ns()
    _, stamps, _ = loops.window(pause(10), lambda output: None, now, now + 60_000_000_000, capacity=3, limit=50)
    assert len(stamps) == 50
    assert min(stamps) > 0


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_off_while_timing_and_then_as_it_was(enabled: bool) -> None:
    seen: list[bool] = []
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        loops.latency(lambda: seen.append(gc.isenabled()), lambda output: None, 3, warmup=1)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert seen[1:] == [False] * (len(seen) - 1)


def test_an_exception_leaves_the_garbage_collector_on() -> None:
    calls = iter([None, None])
    with pytest.raises(StopIteration):
        loops.latency(lambda: next(calls), lambda output: None, 100, warmup=1)
    assert gc.isenabled()


def test_bookkeeping_is_what_an_empty_loop_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(step_ns=30)
    with monkeypatch.context() as patch:
        patch.setattr(loops, "time", clock)
        # of three readings a turn, and one more a loop, two are inside the timers
        assert loops.bookkeeping_ns(500) == pytest.approx(30, rel=0.01)
    assert loops.bookkeeping_ns(500) >= 0
    durations = array("q", bytes(80))
    begun, stopped, output = loops.spin(lambda: "x", durations)
    assert output == "x"
    assert stopped - begun >= sum(durations)


def test_tensors_are_checked_written_and_taken_once(tmp_path) -> None:
    given = {"a": ("float32", (2, 2), bytes(16)), "b": ("bool", (3,), b"\1\0\1"), "none": ("int64", (0, 4), b"")}
    described = tensors.write(given, str(tmp_path), "x")
    taken = tensors.take(described, str(tmp_path))
    assert {name: tuple(value) for name, value in taken.items()} == given
    assert taken["b"].numpy().tolist() == [True, False, True]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="takes 16 bytes, found 4"):
        tensors.write({"a": ("float32", (4,), b"1234")}, str(tmp_path), "x")
    with pytest.raises(ValueError, match="bfloat16"):
        tensors.write({"a": ("bfloat16", (2,), b"1234")}, str(tmp_path), "x")


@pytest.mark.parametrize("wanted", [True, False])
def test_imports_are_not_searched_for_garbage_and_the_collector_is_left_as_it_was(wanted: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if wanted else gc.disable)()
        with main.importing():
            assert not gc.isenabled()
        assert gc.isenabled() is wanted
        assert gc.get_freeze_count() > 0  # what is there now is not looked at again
    finally:
        gc.unfreeze()
        (gc.enable if before else gc.disable)()
