"""Signals of a command that sends load from nodes, without nodes: real ones, to this process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from neuronbench_ray import cluster
from neuronbench_ray.load.ending import SIGNALS, Ending

from neuronbench.commands import host


@pytest.fixture
def ending() -> Iterator[Ending]:
    before = [signal.getsignal(number) for number in SIGNALS]
    made = Ending()
    made.begin()
    yield made
    with contextlib.suppress(host.CommandError):
        made.close()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def come(number: int) -> None:
    """A signal comes while this process waits for something else."""
    os.kill(os.getpid(), number)
    time.sleep(60)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_ends_a_load_and_the_second_gives_it_up(ending: Ending, number: int, status: int) -> None:
    ended = threading.Event()
    ending.loads, ending.under_way = 1, ended.set
    os.kill(os.getpid(), number)
    assert ended.wait(60)
    with pytest.raises(KeyboardInterrupt):
        ending.check()  # no further load begins
    with pytest.raises(KeyboardInterrupt):
        come(signal.SIGTERM)
    with pytest.raises(host.CommandError, match="what was not in the folder of --out by then is lost") as end:
        ending.close()
    assert end.value.status == status


def test_of_a_load_that_was_ended_the_result_is_kept(ending: Ending) -> None:
    ended = threading.Event()
    ending.loads, ending.under_way = 1, ended.set
    os.kill(os.getpid(), signal.SIGTERM)
    assert ended.wait(60)
    with pytest.raises(host.CommandError, match="the result is what was measured until then") as end:
        ending.close()
    assert end.value.status == 143


def test_a_signal_without_a_load_ends_at_once(ending: Ending) -> None:
    with pytest.raises(KeyboardInterrupt):
        come(signal.SIGTERM)
    with pytest.raises(host.CommandError, match="ended by SIGTERM: nothing had been sent yet"):
        ending.close()


def test_no_signal_is_no_end(ending: Ending) -> None:
    ending.check()
    ending.close()


def test_what_a_process_does_on_sigterm_is_not_changed_by_connecting() -> None:
    heard = threading.Event()

    def connecting() -> None:
        with cluster.own_sigterm():
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
            come(signal.SIGTERM)

    def mine(number: int, frame: object) -> None:
        heard.set()

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(KeyboardInterrupt):
            connecting()
        assert heard.is_set()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
