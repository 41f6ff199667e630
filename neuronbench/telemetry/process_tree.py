"""CPU and memory of a process and everything below it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import psutil


class ProcessTree:
    """Sampler over the trees below `pids`.

    `cpu_percent` (100 is one core; of the time since the read before, so the first read has none), `rss_bytes` (summed,
    so memory shared by several processes counts for each), `threads`, `processes`. All are None when none of `pids`
    runs.

    Finding descendants means to look at every process of the machine, so it is done every `refresh_s` seconds and
    when a process is gone. A process counts from when it was first seen.
    """

    def __init__(self, pids: Sequence[int], refresh_s: float = 5.0) -> None:
        self._refresh_s = refresh_s
        self._roots: list[psutil.Process] = []
        for pid in pids:
            try:
                self._roots.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                pass
        self._tree: dict[psutil.Process, float | None] = {}
        """Process → CPU seconds at the last read."""
        self._refresh_at = 0.0
        self._read_at: float | None = None

    def read(self) -> Mapping[str, float | None]:
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh()
            self._refresh_at = now + self._refresh_s
        cpu_s, rss_bytes, threads, processes = 0.0, 0, 0, 0
        for process, before_s in self._tree.items():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory = process.memory_info()
                    count = process.num_threads()
                    if not memory.rss and process.status() == psutil.STATUS_ZOMBIE:
                        raise psutil.NoSuchProcess(process.pid)
            except psutil.NoSuchProcess:
                self._refresh_at = 0.0
                continue
            spent_s = times.user + times.system
            if before_s is not None:
                cpu_s += max(0.0, spent_s - before_s)
            self._tree[process] = spent_s
            rss_bytes += memory.rss
            threads += count
            processes += 1
        elapsed_s = None if self._read_at is None else now - self._read_at
        self._read_at = now
        if not processes:
            self._read_at = None
            return dict.fromkeys(("cpu_percent", "rss_bytes", "threads", "processes"))
        return {
            "cpu_percent": 100 * cpu_s / elapsed_s if elapsed_s else None,
            "rss_bytes": rss_bytes,
            "threads": threads,
            "processes": processes,
        }

    def _refresh(self) -> None:
        tree: dict[psutil.Process, float | None] = {}
        for root in self._roots:
            try:
                if root.is_running() and root.status() != psutil.STATUS_ZOMBIE:  # not another process of that pid
                    for process in (root, *root.children(recursive=True)):
                        tree[process] = self._tree.get(process)
            except psutil.NoSuchProcess:
                pass
        self._tree = tree
