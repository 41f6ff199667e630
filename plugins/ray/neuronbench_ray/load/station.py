"""A node as the head sees it: its agent's calls, each with an end; what its drivers say; whether it is still there."""

from __future__ import annotations

import hashlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from neuronbench.load.crew import INSTALL, Hand, Node, Order
from neuronbench_ray import cluster
from neuronbench_ray.load import clocks
from neuronbench_ray.load.agent import Agent

CALL_S: Final = 60.0
HEAR_S: Final = 1.0
GONE_S: Final = 5.0
"""A node that Ray cannot reach is given so long before it counts as lost."""
SILENT_S: Final = 30.0
"""And one that does not answer at all, so long."""
STOP_S: Final = 45.0
MAKE_ROOM: Final = "make room there, or start Ray on that node with TMPDIR on another file system"


class NodeLost(Exception):
    """A node does not answer any more, or could not be used. `remedy` says what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class Station:
    """One node of a load."""

    START_S: ClassVar[float] = 120.0
    """For the agent to start: Ray starts a Python process on the node, and waits for a CPU that is free."""

    def __init__(self, ray: Any, node: cluster.Node, name: str, workers: tuple[int, ...], echo: clocks.Echo) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.node, self.name, self.workers = node, name, workers
        self.facts: dict[str, Any] = {}
        self.same_host = False
        self.readings: list[clocks.Reading] = []
        self.closed = False
        """The clock was read after the load, too."""
        self.lost = ""
        """Why it does not answer any more."""
        self.failed = ""
        """Why a driver on it left no result, although the node answers: what it recorded until then can be had."""
        self.started = False
        self.slowest_ns = 0
        """What the slowest of a few calls took."""
        self._ray = ray
        self._hands: dict[int, RemoteHand] = {}
        self._leaving = threading.Event()
        self._left = False
        self._agent = (
            ray.remote(Agent)
            .options(
                num_cpus=len(workers), max_concurrency=8, max_restarts=0, max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.id, soft=False),
            )
            .remote(echo.server_address[0], echo.port)
        )  # fmt: skip

    # -- calls

    def call(self, method: str, *args: Any, timeout_s: float = CALL_S) -> Any:
        """Call the agent and wait. Raises `NodeLost`."""
        return self._get(getattr(self._agent, method).remote(*args), timeout_s, method)

    def _get(self, reference: Any, timeout_s: float, what: str) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=timeout_s)
        except errors.GetTimeoutError as error:
            if what == "facts":
                raise NodeLost(
                    f"node {self.name}: no agent started on it within {timeout_s:g} s; it wants "
                    f"{len(self.workers)} of its {self.node.cpus:g} CPUs, and other work of the cluster may have them",
                    "end what runs there (see `ray status`) or take other nodes: a load that shares its CPUs measures "
                    "itself",
                ) from error
            raise NodeLost(f"node {self.name} did not answer within {timeout_s:g} s ({what})") from error
        except errors.RayError as error:
            text = str(error)
            if "ModuleNotFoundError" in text or "No module named" in text:
                line = next((line.strip() for line in text.splitlines() if "No module named" in line), text)
                raise NodeLost(f"node {self.name} cannot run the agent: {line}", INSTALL) from error
            full = "No space left on device" in text or "No usable temporary directory" in text
            raise NodeLost(f"node {self.name}: {_words(error)}", MAKE_ROOM if full else "") from error

    def send(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Send files piece by piece, a few under way at a time; raises `NodeLost` when something arrived otherwise."""
        digests: dict[str, Any] = {}
        under_way: list[Any] = []
        for name, data in files:
            digests.setdefault(name, hashlib.blake2b(digest_size=16)).update(data)
            if under_way:  # pieces of a file have to come in their order
                self._get(under_way.pop(), CALL_S, "write")
            under_way.append(self._agent.write.remote(name, data))
        for reference in under_way:
            self._get(reference, CALL_S, "write")
        arrived = self.call("written")
        wrong = [name for name, digest in digests.items() if arrived.get(name) != digest.hexdigest()]
        if wrong:
            raise NodeLost(f"node {self.name}: {', '.join(wrong)} arrived with other bytes than were sent")

    def clock(self) -> clocks.Reading:
        """The head's clock against the node's: over TCP, or by calls of Ray where the node cannot reach the head so."""
        found = self.call("clock")
        if isinstance(found, clocks.Reading):
            return found
        self.facts["clock_note"] = f"read by calls of Ray, whose way is longer: no connection to {found}"

        def now() -> tuple[int, int]:
            there = int(self.call("now"))
            return there, there

        seen = clocks.measure(now, how="ray")  # here the head asks: what it finds is the node's minus its own
        there = seen.at_ns + seen.offset_ns
        return clocks.Reading(
            at_ns=there, offset_ns=-seen.offset_ns, bound_ns=seen.bound_ns, rounds=seen.rounds, how="ray"
        )

    def time_calls(self) -> None:
        for _ in range(8):
            begun = time.monotonic_ns()
            self.call("now")
            self.slowest_ns = max(self.slowest_ns, time.monotonic_ns() - begun)

    # -- the load

    def start(self, index: int, order: Order) -> Hand:
        hand = self._hands[index] = RemoteHand(self, index)
        try:
            self.call("start", index, json.dumps(dict(order.options)), order.api_key)
        except NodeLost as error:
            self.lose(str(error))
        if not self.started:
            self.started = True
            threading.Thread(target=self._listen, name=f"node-{self.name}", daemon=True).start()
        return hand

    def _listen(self) -> None:
        """Pass on what drivers say, until all have ended or the node is lost."""
        errors = self._ray.exceptions
        after, heard = 0, time.monotonic()
        while not self.lost and not self._leaving.is_set():
            try:
                news = self._ray.get(self._agent.hear.remote(after, HEAR_S), timeout=HEAR_S + GONE_S)
            except errors.ActorUnavailableError as error:
                if time.monotonic() - heard > GONE_S:
                    self.lose(_words(error))
                time.sleep(0.2)
            except errors.GetTimeoutError:
                if time.monotonic() - heard > SILENT_S:
                    self.lose(f"it has not answered for {SILENT_S:g} s")
            except errors.RayError as error:
                if not self._leaving.is_set():
                    self.lose(_words(error))
            except Exception as error:  # Ray was shut down under this thread
                self.lose(f"{type(error).__name__}: {error}")
            else:
                heard = time.monotonic()
                for number, index, line, status, why in news:
                    after, self.failed = number, self.failed or why
                    if index in self._hands:
                        self._hands[index].heard(line, status)

    def lose(self, why: str) -> None:
        """The node is lost to this load, for good."""
        if self.lost:
            return
        self.lost = why
        for hand in self._hands.values():
            hand.lost = f"node {self.name} was lost: {why}"
            hand.heard(None, -9)

    def tell(self, index: int, point: str, at_ns: int) -> None:
        if not self.lost:
            self._agent.tell.remote(index, point, at_ns - self.readings[0].offset_ns)

    def stop(self, index: int) -> None:
        if not self.lost:
            try:
                self.call("stop", index, timeout_s=STOP_S)
            except NodeLost as error:
                if not self._leaving.is_set():
                    self.lose(str(error))

    def stop_all(self) -> None:
        """End all drivers of the node; whoever waits for them hears of it."""
        for index in list(self._hands):
            self.stop(index)

    # -- afterwards

    def finish(self, order: Order) -> None:
        """Read the clock again and bring the records into the order's folder. Raises `NodeLost`."""
        if self.lost:
            return
        try:
            between = self.call("readings")
            self.readings += [*between, self.clock()]
            self.closed = True
        except (ValueError, OSError):
            pass  # the bound is unknown then, and a gate says so
        for name, size in self.call("files"):
            place = order.log if name.endswith(".log") else order.out / name
            with place.open("ab" if name.endswith(".log") else "wb") as file:
                at = 0
                while at < size:
                    data = self.call("read", name, at)
                    if not data:
                        raise NodeLost(f"node {self.name}: {name} ended at {at} of {size} bytes")
                    file.write(data)
                    at += len(data)

    def leave(self) -> None:
        """Let the node go; whatever still ran there ends."""
        if self._left:
            return
        self._left = True
        self._leaving.set()
        if self.facts and not self.lost:  # else no agent is there yet, and it may never be
            try:
                self.call("close", timeout_s=STOP_S)
            except NodeLost:
                pass  # the kill below has to do
        try:
            self._ray.kill(self._agent)
        except Exception:
            pass  # it is gone

    def seen(self) -> Node:
        """The node for the record."""
        span = clocks.over(self.readings, closed=self.closed) if self.readings else None
        lost = bool(self.lost)
        return Node(
            name=self.name,
            workers=self.workers,
            same_host=self.same_host,
            offset_ns=span.offset_ns if span else 0,
            bound_ns=None if lost or span is None else span.bound_ns,
            drift_ns=None if lost or span is None else span.drift_ns,
            lost=self.lost or self.failed,
            facts={
                "host": self.facts.get("host", self.node.host),
                "address": self.node.address,
                "ray_node": self.node.id,
                "cores": self.facts.get("cores"),
                "nice": self.facts.get("nice"),
                "clock_read": {
                    "how": self.readings[0].how if self.readings else None,
                    "rounds": sum(reading.rounds for reading in self.readings),
                    "times": len(self.readings),
                },
                **({"clock_note": self.facts["clock_note"]} if "clock_note" in self.facts else {}),
            },
        )


class RemoteHand:
    """A driver on a node."""

    def __init__(self, station: Station, index: int) -> None:
        self.where, self.lost = station.name, ""
        self._station, self._index = station, index
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._status: int | None = None
        self._ended = threading.Event()

    def heard(self, line: str | None, status: int | None) -> None:
        """Called by the station; None for a line is the end."""
        if line is None and not self._ended.is_set():
            self._status = -9 if status is None else status
            self._ended.set()
        self._lines.put(line)

    def lines(self) -> Iterator[str]:
        while (line := self._lines.get()) is not None:
            yield line

    def tell(self, point: str, at_ns: int) -> None:
        self._station.tell(self._index, point, at_ns)

    def poll(self) -> int | None:
        return self._status

    def wait(self, timeout: float) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"load driver {self._index}", timeout)
        assert self._status is not None
        return self._status

    def terminate(self) -> None:
        self._station.stop(self._index)
        if not self._ended.wait(HEAR_S + GONE_S):
            self.heard(None, None)


def _words(error: BaseException) -> str:
    """What Ray says of it, without the pages that follow; of the agent's own error, what that says."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):  # Ray's wrapper of what a method raised
        return f"{type(cause).__name__}: {cause}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "creation task" in lines[0]:  # a traceback, and its last line says what it was
        return lines[-1][:300]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"


__all__: Sequence[str] = ("NodeLost", "RemoteHand", "Station")
