"""One thread, one epoll, one heap of deadlines.

asyncio would do the same work with a handle, a task step and a callback per token; at a hundred thousand tokens a
second those are most of the cost, and this process shares two cores with the client it is the measure of.

A *play* is a generator that yields the absolute CLOCK_MONOTONIC instant (ns) at which it wants to run next.
"""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Callable, Iterator

Play = Iterator[int]

# Plays between two looks at the sockets, and between two requests read at one look. With more in between, a server that
# is behind hardly gets to read: late tokens are cheap, for they leave together, and late requests are not.
BURST = 128
BETWEEN_READS = 1


class Loop:
    """Waits for sockets and deadlines; runs handlers and plays. Not thread-safe."""

    def __init__(self) -> None:
        # The first descriptor of the process after the standard ones, hence below select's limit of 1024.
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._heap: list[tuple[int, int, Callable[[], int]]] = []
        self._fresh: list[tuple[int, int, Callable[[], int]]] = []
        self._serial = 0
        self.running = True
        self.frozen: list[tuple[int, int]] = []
        self._frozen_until = 0
        self._awake: set[int] = set()
        _fine_timers()

    def add(self, fd: int, mask: int, handler: Callable[[int], None], *, awake: bool = False) -> None:
        """Call `handler(mask)` when `fd` is ready. `awake` descriptors are heeded even while the server is frozen."""
        self._epoll.register(fd, mask)
        self._handlers[fd] = handler
        if awake:
            self._awake.add(fd)

    def change(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
        self._awake.discard(fd)

    def play(self, play: Play) -> None:
        """Run the play up to its first instant now, and onwards at its instants."""
        step = play.__next__
        try:
            due = step()
        except StopIteration:
            return
        self._serial += 1
        self._fresh.append((due, self._serial, step))

    def freeze(self, duration_ns: int) -> None:
        """From the next turn on do nothing at all for that long; what came due meanwhile follows at once."""
        self._frozen_until = max(self._frozen_until, time.monotonic_ns() + duration_ns)

    def effective_ns(self, due_ns: int) -> int:
        """When something due at that instant could leave, given the freezes that were asked for."""
        for start, end in self.frozen:
            if start <= due_ns < end:
                return end
        return due_ns

    def run(self) -> None:
        """Serve until `running` is set to False."""
        clock, wait, poll, fd = time.monotonic_ns, select.select, self._epoll.poll, [self._epoll.fileno()]
        handlers, heap = self._handlers, self._heap
        while self.running:
            self._fire()
            if heap:
                left = heap[0][0] - clock()
                # epoll's own time-out is in whole milliseconds; select's is in microseconds.
                if left > 0 and not wait(fd, (), (), left * 1e-9)[0]:
                    continue
                events = poll(0)
            else:
                events = poll()
            for ready, mask in events:
                handler = handlers.get(ready)
                if handler is not None:
                    handler(mask)
                if heap and heap[0][0] <= clock():
                    self._fire(BETWEEN_READS)
            if self._frozen_until:
                self._sit_still()

    def _fire(self, most: int = BURST) -> None:
        heap, fresh, clock = self._heap, self._fresh, time.monotonic_ns
        for entry in fresh:
            heapq.heappush(heap, entry)
        fresh.clear()
        now = 0
        for _ in range(most):
            if not heap:
                break
            due, serial, step = heap[0]
            if due > now:
                now = clock()
                if due > now:
                    break
            if self._frozen_until:
                break
            try:
                again = step()
            except StopIteration:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (again, serial, step))
        # A play may have started others; they wait in `fresh` so that heap[0] stays what was looked at.
        for entry in fresh:
            heapq.heappush(heap, entry)
        fresh.clear()

    def _sit_still(self) -> None:
        start = time.monotonic_ns()
        self.frozen.append((start, max(self._frozen_until, start)))
        while self.running and (left := self._frozen_until - time.monotonic_ns()) > 0:
            ready, _, _ = select.select(sorted(self._awake), (), (), left * 1e-9)
            for fd in ready:
                self._handlers[fd](select.EPOLLIN)
        self._frozen_until = 0


def _fine_timers() -> None:
    """Ask the kernel not to batch our wake-ups (50 µs by default)."""
    try:
        with open("/proc/self/timerslack_ns", "w") as file:
            file.write("1")
    except OSError:
        pass  # only later wake-ups, and those are measured
