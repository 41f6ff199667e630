"""When the driver sends what: the warm-up, the closed loop, the open loop."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from neuronbench.load.outcomes import NOT_FAILURES, Kind, Phase
from neuronbench.load.spill import phase_of

if TYPE_CHECKING:
    from neuronbench.load.driver import Driver
    from neuronbench.load.stream import Stream

PAUSE_NS: Final = 100_000_000
"""A slot whose request failed waits this long: a server that refuses is not to be hammered by its own measurement."""
MAX_RAMP_NS: Final = 10_000_000_000


class Policy(Protocol):
    """Decides what is sent when. Told of the end of every request it had sent."""

    name: str

    def start(self, now: int) -> None: ...

    def ended(self, stream: Stream, t: int) -> None: ...

    def remaining(self, now: int) -> tuple[float | None, str]: ...


class WarmUp:
    """Bodies of a set of their own: one alone, then the rest at the load's concurrency; drained before the ramp."""

    name = "warmup"

    def __init__(self, driver: Driver, concurrency: int) -> None:
        self.driver = driver
        self.bodies = list(range(driver.worker, driver.plan.warmup, driver.workers))
        self.concurrency = max(concurrency, 1)
        self.open = 0
        self.done = 0
        self.failed = 0
        self.latencies: list[int] = []

    def start(self, now: int) -> None:
        if not self.bodies:
            self.driver.warmed(now)
            return
        self.open += 1
        self._send(self.bodies.pop(0))

    def _send(self, body: int) -> None:
        self.driver.send(body, time.monotonic_ns(), Phase.WARMUP)

    def ended(self, stream: Stream, t: int) -> None:
        self.open -= 1
        self.done += 1
        if stream.kind in NOT_FAILURES or stream.kind == Kind.WRONG_LENGTH:
            self.latencies.append(stream.e - stream.w)  # an answer of another length warms just as well
        else:
            self.failed += 1
            self.driver.last_error = stream.error or stream.kind.name.lower()
        if not self.bodies and not self.open:
            if self.failed == self.done:
                self.driver.abort("all_failed", f"all {self.done} warm-up requests failed: {self.driver.last_error}")
            else:
                self.driver.warmed(t)
            return
        wait = 0 if stream.kind in NOT_FAILURES else PAUSE_NS
        while self.bodies and self.open < self.concurrency:
            self.open += 1
            self.driver.engine.call(t + wait, self._send, self.bodies.pop(0))

    def remaining(self, now: int) -> tuple[float | None, str]:
        return float(len(self.bodies) + self.open), "requests"

    @property
    def typical_ns(self) -> int:
        """Median latency of the warm-up without its first, coldest request; 0 when unknown."""
        return int(statistics.median(self.latencies[1:] or self.latencies or [0]))


class Windowed:
    """What both loops share: the window's edges, and following its requests to their end."""

    name = "load"

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.opened = self.closed = 0
        self.open_inside = 0
        """Requests scheduled inside the window that have not ended."""
        self.ended_inside = 0
        self.stopped = False

    @property
    def phase(self) -> str:
        if self.stopped:
            return "drain"
        return "tail" if self.closed else "window" if self.opened else "ramp"

    def _open(self, at: int) -> None:
        self.opened = at
        self._again_by_edges()
        self.driver.edge("open", at)

    def _close(self, at: int) -> None:
        if not self.closed:
            self.closed = at
            self._again_by_edges()
            self.driver.edge("close", at)
            self._settle()

    def _again_by_edges(self) -> None:
        """Requests in flight that were sent before an edge was known, and were due after it, belong after it.

        Ends come in the order in which they are read, and have the instants at which the kernel received them: of two
        that were read together, the one read last may be the earlier, and its instant an edge. Another slot's next
        request was sent by then, due at the later one.
        """
        for stream in self.driver.engine.in_flight.values():
            if stream.phase != Phase.WARMUP:
                self.open_inside -= stream.phase == Phase.WINDOW
                stream.phase = phase_of(stream.s, self.opened, self.closed)
                self.open_inside += stream.phase == Phase.WINDOW

    def _send(self, body: int, s: int, slot: int = 0) -> None:
        phase = phase_of(s, self.opened, self.closed)
        self.open_inside += phase == Phase.WINDOW
        self.driver.send(body, s, phase, slot)

    def _settle(self) -> None:
        if self.closed and not self.open_inside and not self.stopped:
            self.driver.baton.reach("drain", self._stop)

    def _stop(self, now: int) -> None:
        self.stopped = True
        self.driver.drain(now)

    def remaining(self, now: int) -> tuple[float | None, str]:
        duration = self.driver.plan.arrivals.get("duration_s")
        wanted = self.driver.plan.arrivals.get("requests")
        if self.closed:
            return float(len(self.driver.engine.in_flight)), "requests"
        if duration is not None:
            since = (now - self.opened) / 1e9 if self.opened else 0.0
            return round(max(duration - since, 0.0), 1), "s"
        return (float(max(wanted - self.ended_inside, 0)), "requests") if wanted else (None, "")


class ClosedLoop(Windowed):
    """A fixed number of slots, each sending its next request when its last has ended.

    Starts are spread over the ramp, and the window opens when every slot has finished its first request: the first
    `concurrency` requests, which the start itself lines up, are never in it.
    """

    def __init__(self, driver: Driver, typical_ns: int) -> None:
        super().__init__(driver)
        arrivals = driver.plan.arrivals
        total = arrivals["concurrency"]
        self.slots = len(range(driver.worker, total, driver.workers))
        ramp_s = arrivals.get("ramp_s")
        self.ramp_ns = int(ramp_s * 1e9) if ramp_s is not None else min(typical_ns, MAX_RAMP_NS)
        self.gap_ns = self.ramp_ns / total
        wanted = arrivals.get("requests")
        share = total / self.slots if self.slots else 1
        self.wanted = int(-(-wanted // share)) if wanted else None
        self.next_body = driver.worker
        self.firsts = 0

    def start(self, now: int) -> None:
        driver = self.driver
        for slot in range(self.slots):
            driver.engine.call(now + int((driver.worker + slot * driver.workers) * self.gap_ns), self._begin, slot)
        if not self.slots:
            driver.engine.call(now, driver.baton.reach, "open", self._open)

    def _begin(self, slot: int) -> None:
        self._next(time.monotonic_ns(), slot)

    def _next(self, s: int, slot: int) -> None:
        plan = self.driver.plan
        body = plan.warmup + self.next_body % plan.count
        self.driver.wrapped = max(self.driver.wrapped, self.next_body // plan.count)
        self.next_body += self.driver.workers
        self._send(body, s, slot)

    def _open(self, at: int) -> None:
        super()._open(at)
        duration = self.driver.plan.arrivals.get("duration_s")
        if duration is not None:
            edge = at + int(duration * 1e9)
            self.driver.engine.call(edge, self._close, edge)
        elif not self.slots:
            self.driver.baton.reach("close", self._close)

    def ended(self, stream: Stream, t: int) -> None:
        if stream.phase == Phase.WINDOW:
            self.open_inside -= 1
            self.ended_inside += 1
            if self.wanted is not None and self.ended_inside >= self.wanted and not self.closed:
                self.driver.baton.reach("close", self._close, at=t)
        elif not self.opened and stream.phase == Phase.RAMP:
            self.firsts += 1
            if self.firsts == self.slots:
                self.driver.baton.reach("open", self._open, at=t)
        if self.stopped:
            return
        if stream.kind in NOT_FAILURES:
            self._next(t, stream.slot)
        else:
            self.driver.engine.call(t + PAUSE_NS, self._after_pause, stream.slot)
        self._settle()

    def _after_pause(self, slot: int) -> None:
        if not self.stopped:
            self._next(time.monotonic_ns(), slot)


class OpenLoop(Windowed):
    """Requests at the plan's instants, whatever became of those before; sessions go on after their think time."""

    def __init__(self, driver: Driver, typical_ns: int) -> None:
        super().__init__(driver)
        plan = driver.plan
        due, session = plan.column("due_ns"), plan.column("session")
        mine = range(plan.warmup, plan.warmup + plan.count)
        self.firsts = [i for i in mine if due[i] >= 0][driver.worker :: driver.workers]
        self.due = due
        self.think = plan.column("think_ns")
        self.turns: dict[int, list[int]] = {}
        if plan.info.get("sessions"):
            begun = {session[i] for i in self.firsts}
            for i in mine:
                if due[i] < 0 and session[i] in begun:
                    self.turns.setdefault(session[i], []).append(i)
        self.session = session
        self.at = 0
        self.begun = 0

    def start(self, now: int) -> None:
        arrivals = self.driver.plan.arrivals
        self.begun = now
        opens = now + int(arrivals["lead_s"] * 1e9)
        self.driver.engine.call(opens, self._open, opens)
        closes = opens + int(arrivals["duration_s"] * 1e9)
        self.driver.engine.call(closes, self._close, closes)
        self.edges = (opens, closes)
        self._arm()

    def _arm(self) -> None:
        if self.at < len(self.firsts):
            self.driver.engine.call(self.begun + self.due[self.firsts[self.at]], self._fire)

    def _fire(self) -> None:
        if self.stopped:
            return
        now = time.monotonic_ns()
        while self.at < len(self.firsts):
            body = self.firsts[self.at]
            s = self.begun + self.due[body]
            if s > now:
                break
            self.at += 1
            self._send(body, s)
        self._arm()

    def _send(self, body: int, s: int, slot: int = 0) -> None:
        phase = phase_of(s, *self.edges)
        self.open_inside += phase == Phase.WINDOW
        self.driver.send(body, s, phase, slot)

    def ended(self, stream: Stream, t: int) -> None:
        if stream.phase == Phase.WINDOW:
            self.open_inside -= 1
            self.ended_inside += 1
        if not self.stopped:
            following = self.turns.get(self.session[stream.body]) if self.turns else None
            if following and stream.kind in NOT_FAILURES:
                body = following.pop(0)
                due = t + self.think[body]
                self.driver.engine.call(due, self._follow, body, due)
            self._settle()

    def _follow(self, body: int, due: int) -> None:
        if not self.stopped:
            self._send(body, due)

    def _settle(self) -> None:
        # a request due before the edge may still wait for the loop to come round
        if self.at < len(self.firsts) and self.begun + self.due[self.firsts[self.at]] < self.edges[1]:
            return
        super()._settle()


def choose(driver: Driver, typical_ns: int) -> Any:
    """The policy of the plan's arrivals."""
    kind = ClosedLoop if driver.plan.arrivals["kind"] == "closed" else OpenLoop
    return kind(driver, typical_ns)
