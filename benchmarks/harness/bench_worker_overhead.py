"""What the worker's timed loops cost: beside a loop without any timer, and beside processes that know of no harness.

Both sides take turns, theirs before and after each of ours, and a turn of ours is compared with the mean of its two
neighbours: what a shared machine does to all three falls out. The value is the median over such turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from neuronbench import processes, stats
from neuronbench.testing import toy_model
from neuronbench.worker import compiled, loops

CALLS, TURNS = 100_000, 15
WORK_US, WINDOW_S, PAIRS = 300.0, 0.5, 15

INDEPENDENT = """
import gc, importlib.util, os, struct, sys, time
path, core, work_us = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, [core])
spec = importlib.util.spec_from_file_location("toy", path)
toy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toy)

class Given:
    data = struct.pack("<16q", *range(16))

def run(call, clock, start_ns, open_ns, until):
    assert clock() < start_ns, "it was not ready in time"
    time.sleep((start_ns - clock()) / 1e9)
    while clock() < open_ns:
        call()
    count = 0
    while clock() < until:
        call()
        count += 1
    return count

gc.disable()
call = toy.Handler(print, "computes", work_us).step({"input_ids": Given, "attention_mask": Given})
for _ in range(50):
    call()
print("ready", flush=True)
for line in sys.stdin:
    print(run(call, time.monotonic_ns, *map(int, line.split())), flush=True)
"""


def nothing() -> None:
    return None


def bare_ns() -> float:
    """A call in a loop that does nothing else."""
    clock = time.perf_counter_ns
    begun = clock()
    for _ in range(CALLS):
        nothing()
    return (clock() - begun) / CALLS


def timed_ns() -> float:
    """A call in our loop."""
    from array import array

    durations = array("q", bytes(8 * CALLS))
    begun, stopped, _ = loops.spin(nothing, durations)
    return (stopped - begun) / CALLS


def between(turns: list[float]) -> list[float]:
    """The mean of each two neighbours."""
    return [(one + other) / 2 for one, other in pairwise(turns)]


def bench_latency_loop(board) -> None:
    """Our loop against a bare one, in turns, in one interpreter: what timing a call adds to it."""
    bare, ours = [], []
    with loops.undisturbed():
        bare.append(bare_ns() / 1e3)
        for _ in range(TURNS):
            ours.append(timed_ns() / 1e3)
            bare.append(bare_ns() / 1e3)
    added = [own - other for own, other in zip(ours, between(bare), strict=True)]
    board.report(
        what="timing a call adds", unit="µs", value=statistics.median(added), turns=added, budget=2.0,
        bare=statistics.median(bare), note="bare: the call in a loop without timers",
    )  # fmt: skip


@contextmanager
def independent(cores: list[int]) -> Iterator[Callable[[], float]]:
    """Processes that only compute, one per core; gives what makes them do so for a window, in calls per second.

    As the workers do, they are sessions of their own, sleep before the window, and call before it opens: on a core that
    is shared, Linux gives time by session, and more to a process that has slept.
    """
    path = str(toy_model.HANDLERS / "toy.py")
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", INDEPENDENT, path, str(core), str(WORK_US)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
                )
            )
            for core in cores
        ]  # fmt: skip

        def answers() -> list[str]:
            return [process.stdout.readline().strip() for process in running]

        def rate() -> float:
            start_ns = time.monotonic_ns() + round(compiled.LEAD_S * 1e9)
            open_ns = start_ns + round(compiled.RAMP_S * 1e9)
            for process in running:
                process.stdin.write(f"{start_ns} {open_ns} {open_ns + round(WINDOW_S * 1e9)}\n")
                process.stdin.flush()
            return sum(map(int, answers())) / WINDOW_S

        assert answers() == ["ready"] * len(cores)
        yield rate


def bench_throughput(board, tmp_path: Path) -> None:
    """Two workers against two independent processes with the same work, in turns: what is lost between them."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    spec = toy_model.toy_spec(behaviour="computes", work_us=WORK_US)
    start = toy_model.launch("computes", WORK_US)
    spawn = partial(processes.spawn, pid_dir=tmp_path / "pids")
    model = toy_model.load(spec, tmp_path, spawn, start, pinned=True)
    ours, theirs = [], []
    try:
        with independent(cores) as rate:
            model.throughput(seconds=WINDOW_S, workers=len(cores))  # the copies are started here
            theirs.append(rate())
            for _ in range(PAIRS):
                ours.append(model.throughput(seconds=WINDOW_S, workers=len(cores)).rate() / model.batch_size)
                theirs.append(rate())
    finally:
        model.stop()
    lost = [other / own for own, other in zip(ours, between(theirs), strict=True)]
    board.report(
        what=f"{len(cores)} workers, calls", unit="1/s", value=statistics.median(ours), turns=ours,
        bare=statistics.median(theirs), note="bare: as many processes that only compute",
    )  # fmt: skip
    sure = stats.quantile(sorted(lost), 0.5)
    bounds = "" if sure.low is None or sure.high is None else f"; the median lies in {sure.low:.3f}–{sure.high:.3f}"
    board.report(
        what="independent processes / workers", unit="×", value=statistics.median(lost), turns=lost, budget=1 / 0.95,
        bare=1.0, note=f"each turn beside its two neighbours{bounds}",
    )  # fmt: skip
