"""What the worker's timed loops cost: beside a loop without any timer, and beside processes that know of no harness."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from neuronbench import processes
from neuronbench.testing import toy_model
from neuronbench.worker import loops

CALLS, TURNS = 200_000, 9
WORK_US, WINDOW_S, PAIRS = 300.0, 1.0, 9

INDEPENDENT = """
import importlib.util, os, struct, sys, time
path, (core, go_ns, window_ns), work_us = sys.argv[1], map(int, sys.argv[2:5]), float(sys.argv[5])
os.sched_setaffinity(0, [core])
spec = importlib.util.spec_from_file_location("toy", path)
toy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toy)

class Given:
    data = struct.pack("<16q", *range(16))

def run(call, clock):
    for _ in range(50):
        call()
    assert clock() < go_ns, "it was not ready in time"
    while clock() < go_ns:
        pass
    count, until = 0, go_ns + window_ns
    while clock() < until:
        call()
        count += 1
    return count

call = toy.Handler(print, "computes", work_us).step({"input_ids": Given, "attention_mask": Given})
print(run(call, time.monotonic_ns))
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


def bench_latency_loop(board) -> None:
    """Our loop against a bare one, in turns, in one interpreter: what timing a call adds to it."""
    bare, added = [], []
    with loops.undisturbed():
        for _ in range(TURNS):
            bare.append(bare_ns() / 1e3)
            added.append(timed_ns() / 1e3 - bare[-1])
    board.report(
        what="timing a call adds", unit="µs", value=statistics.median(added), turns=added, budget=2.0,
        bare=statistics.median(bare), note="bare: the call in a loop without timers",
    )  # fmt: skip


def independent_rate(cores: list[int]) -> float:
    """Calls per second of processes that only compute, one per core."""
    go_ns = time.monotonic_ns() + 2_000_000_000
    path, window_ns = str(toy_model.HANDLERS / "toy.py"), round(WINDOW_S * 1e9)
    words = [[path, str(core), str(go_ns), str(window_ns), str(WORK_US)] for core in cores]
    running = [
        subprocess.Popen([sys.executable, "-c", INDEPENDENT, *each], stdout=subprocess.PIPE, text=True)
        for each in words
    ]
    return sum(int(process.communicate(timeout=60)[0]) for process in running) / WINDOW_S


def bench_throughput(board, tmp_path: Path) -> None:
    """Two workers against two independent processes with the same work, in turns: what is lost between them."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    spec = toy_model.toy_spec(behaviour="computes", work_us=WORK_US)
    start = toy_model.launch("computes", WORK_US)
    spawn = partial(processes.spawn, pid_dir=tmp_path / "pids")
    model = toy_model.load(spec, tmp_path, spawn, start, pinned=True)
    ours, theirs = [], []
    try:
        for _ in range(PAIRS):
            theirs.append(independent_rate(cores))
            ours.append(model.throughput(seconds=WINDOW_S, workers=len(cores)).rate() / model.batch_size)
    finally:
        model.stop()
    lost = [other / own for own, other in zip(ours, theirs, strict=True)]
    board.report(
        what=f"{len(cores)} workers, calls", unit="1/s", value=max(ours), turns=ours, bare=max(theirs),
        note="bare: as many processes that only compute",
    )  # fmt: skip
    board.report(
        what="independent processes / workers", unit="×", value=max(theirs) / max(ours), turns=lost, budget=1 / 0.95,
        bare=1.0, note="the best turns: on a shared machine others only take away",
    )  # fmt: skip
