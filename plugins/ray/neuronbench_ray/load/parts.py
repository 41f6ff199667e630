"""The part of a plan that a node needs: the whole index, so that every request keeps its number, and its own bodies."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronbench.load.layout import PLAN_COLUMNS
from neuronbench.load.plan import Plan

CHUNK_BYTES: Final = 4 << 20


def workers_of(node: int, nodes: int, processes: int) -> tuple[int, ...]:
    """Drivers of node number `node`: dealt round, so that successive requests go to different nodes."""
    return tuple(range(node, nodes * processes, nodes))


def needed(plan: Plan, workers: Sequence[int], size: int) -> npt.NDArray[np.bool_]:
    """Which bodies the drivers `workers` of `size` may send; warm-up bodies first, as in the index.

    Request i of an open loop is driver i modulo `size`'s, later turns of a session go with its first. A driver of a
    closed loop may come round to any body, so it needs them all.
    """
    total = plan.warmup_count + plan.count
    if plan.arrivals["kind"] == "closed":
        return np.ones(total, dtype=bool)
    wanted = np.zeros(total, dtype=bool)
    due, session = plan.column("due_ns"), plan.column("session")
    load = np.arange(plan.warmup_count, total)
    firsts = load[due[load] >= 0]
    for worker in workers:
        wanted[worker : plan.warmup_count : size] = True
        wanted[firsts[worker::size]] = True
    if plan.info.get("sessions"):
        begun = np.unique(session[firsts[wanted[firsts]]])
        later = load[due[load] < 0]
        wanted[later] = np.isin(session[later], begun)
    return wanted


def files(plan: Plan, workers: Sequence[int], size: int) -> Iterator[tuple[str, bytes]]:
    """Files of the part as pairs of name and next piece, no piece longer than `CHUNK_BYTES` by much.

    A body that the node does not need is empty there; the numbers of the others stay.
    """
    wanted = needed(plan, workers, size)
    offset, length = plan.column("offset"), plan.column("length")
    with (plan.folder / "bodies.bin").open("rb") as file:
        source = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        gathered, size_now, empty = list[bytes](), 0, True
        for index in np.flatnonzero(wanted).tolist():
            start = int(offset[index])
            gathered.append(source[start : start + int(length[index])])
            size_now += len(gathered[-1])
            if size_now >= CHUNK_BYTES:
                yield "bodies.bin", b"".join(gathered)
                gathered, size_now, empty = [], 0, False
        if gathered or empty:
            yield "bodies.bin", b"".join(gathered) or b"\0"  # an empty file cannot be mapped
        source.close()
    kept = np.where(wanted, length, 0)
    columns: dict[str, npt.NDArray[Any]] = {"length": kept, "offset": np.where(wanted, np.cumsum(kept) - kept, 0)}
    for name in PLAN_COLUMNS:
        data = columns.get(name, plan.column(name)).astype("<i8").tobytes()
        for at in range(0, len(data), CHUNK_BYTES):
            yield f"{name}.i64", data[at : at + CHUNK_BYTES]
    yield "plan.json", (plan.folder / "plan.json").read_bytes()
