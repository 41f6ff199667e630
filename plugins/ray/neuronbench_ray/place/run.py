"""The run: leases boxes, hands out groups, fetches what they record, places again what a lost node left undone.

The head asks, nodes answer; only the head writes to the store. So what a node that was declared lost still measures
never comes in: nobody asks it any more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Environment, Outcome, Provenance, Record
from neuronbench.receipts import utc_now
from neuronbench.sinks.contents import RestoreError
from neuronbench_ray.place import fleet
from neuronbench_ray.place.agent import Job, Order
from neuronbench_ray.place.landing import INTERRUPTED, left_open
from neuronbench_ray.place.ledger import Attempt, Ledger

if TYPE_CHECKING:
    from neuronbench_ray.place.fleet import Node
    from neuronbench_ray.place.groups import Box
    from neuronbench_ray.place.landing import Landing
    from neuronbench_ray.place.screen import Screen

TICK_S: Final = 0.3
NODES_S: Final = 1.0
"""Between two looks at who is in the cluster."""
SILENT_S: Final = 180.0
"""An agent that is out of reach for so long is given up, whatever Ray says of its node."""
STOP_S: Final = 30.0
CLOSE_S: Final = 10.0
"""How long the tidying up on nodes may take at the end."""

Join = Callable[["Node"], Any]
"""Asks a node that came later what it can measure; a reference."""
Meet = Callable[["Node", Any], "Box | str"]
"""What came of that: a box, or why it is none."""


@dataclass(kw_only=True)
class Member:
    """A node that takes part."""

    node: Node
    box: Box | None = None
    asked: Any = None
    """A reference to its survey, while that goes on."""
    actor: Any = None
    cores: Sequence[str] | None = None
    leased: bool = False
    closing: Any = None
    """A reference to the tidying up after an attempt, while that goes on."""
    coming: Any = None
    """A reference that is ready once the lease is there."""
    since: float = 0.0
    """When the lease was asked for; infinity once it was said that it takes long."""


@dataclass(kw_only=True)
class Running:
    """An attempt as the head follows it."""

    attempt: Attempt
    member: Member
    ref: Any
    """The call that is under way: the start, or a look."""
    looking: bool = False
    started_at: str = field(default_factory=utc_now)
    heard: float = field(default_factory=time.monotonic)
    known: set[str] = field(default_factory=set)
    not_run: set[str] = field(default_factory=set)
    refused: int = 0
    tail: str = ""


@dataclass(kw_only=True)
class Result:
    """How the run ended."""

    records: list[Record] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    """Items that pytest failed on their node, whatever their record's outcome."""
    interrupted: bool = False
    missing: list[str] = field(default_factory=list)


class Run:
    """One run over all nodes. `go` returns its `Result`."""

    def __init__(
        self, ledger: Ledger, members: Sequence[Member], landing: Landing, *, order: Order, shipment: Any,
        screen: Screen, join: Join, meet: Meet, share: bool = False, patience_s: float = 60.0,
    ) -> None:  # fmt: skip
        self.ledger, self.landing, self.screen = ledger, landing, screen
        self.members = {member.node.id: member for member in members}
        self.result = Result()
        self._order, self._shipment, self._share, self._patience_s = order, shipment, share, patience_s
        self._join, self._meet = join, meet
        self._running: dict[str, Running] = {}
        self._headlines: dict[str, str] = {}
        self._looked = time.monotonic()
        self._stuck: float | None = None

    def go(self) -> Result:
        """Until everything is recorded, nothing is left that could run it, or somebody interrupts."""
        try:
            while not self.ledger.finished and not self._gave_up():
                self._nodes()
                self._place()
                self._hear(TICK_S)
                self.screen.stands(self.ledger, len(self._boxes()))
        except KeyboardInterrupt:
            self.result.interrupted = True
            self.screen.line("interrupted: ending what runs on the nodes; again to end it at once")
            with contextlib.suppress(KeyboardInterrupt):
                self._interrupt()
        finally:
            fleet.ready([member.closing for member in self.members.values() if member.closing is not None], CLOSE_S)
            for member in self.members.values():
                if member.actor is not None:
                    fleet.end(member.actor)
        lost = self.ledger.given_up | {item.name for item in self.ledger.missing}
        lost |= {item.name for one in self.ledger.attempts for item in one.group.items}
        self.result.missing = sorted(lost - self.ledger.done)
        return self.result

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _boxes(self) -> list[Box]:
        return [member.box for member in self.members.values() if member.box is not None]

    def _nodes(self) -> None:
        """Who came and who went."""
        if time.monotonic() - self._looked < NODES_S:
            return
        self._looked = time.monotonic()
        for node in fleet.nodes():
            member = self.members.get(node.id)
            if member is not None and not node.alive:
                self._gone(member, "node_lost", f"Ray declared the node {member.node.name} dead")
            elif member is None and node.measures:
                self.members[node.id] = Member(node=node, asked=self._join(node))
                self.screen.line(f"{node.name} has joined")
        for member in self.members.values():
            if member.coming is not None and self._looked - member.since > fleet.TAKEN_S:
                member.since = float("inf")
                self.screen.taken(member.node.name, fleet.TAKEN_S)

    def _gone(self, member: Member, kind: str, cause: str) -> None:
        """An agent is lost, with its node or without it: nothing that it says counts from here on."""
        for running in [one for one in self._running.values() if one.member is member]:
            self._lose(running, kind, cause)
        if member.actor is not None:
            fleet.end(member.actor)
        member.actor, member.cores, member.leased, member.coming, member.closing = None, None, False, None, None
        if kind == "node_lost":
            del self.members[member.node.id]
            self.screen.line(f"{member.node.name} is lost: {cause}")

    def _failed(self, member: Member, error: BaseException) -> None:
        """A member is gone for good: with its node, or only its process."""
        node_died, cause = fleet.why(error)
        alive = any(node.id == member.node.id and node.alive for node in fleet.nodes())
        self._gone(member, "node_lost" if node_died or not alive else "worker_lost", cause)

    def _gave_up(self) -> bool:
        """Whether what is left can run nowhere, and has waited for another node for long enough."""
        coming = any(member.asked is not None for member in self.members.values())
        if self.ledger.live or coming or self.ledger.could_run(self._boxes()):
            self._stuck = None
            return False
        now = time.monotonic()
        if self._stuck is None:
            self._stuck = now
            if self._patience_s:
                names = len(self.ledger.missing)
                self.screen.line(f"no node is left for {names} points; waiting {self._patience_s:g} s for another")
        return now - self._stuck >= self._patience_s

    # -- placing ------------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        boxes = self._boxes()
        for member in list(self.members.values()):
            if member.box is None:
                continue
            idle = not self.ledger.on(member.box.id)
            if member.actor is None:
                if self.ledger.could_run([member.box]):
                    order = replace(self._order, node=member.node.name)
                    member.actor = fleet.lease(member.node, order, self._shipment)
                    member.coming, member.since = member.actor.cores.remote(), time.monotonic()
                continue
            if not member.leased:
                continue
            while (attempt := self.ledger.place(member.box, member.cores or (), boxes)) is not None:
                self._start(member, attempt)
                idle = False
            if idle and member.closing is None:  # others may have the box
                fleet.end(member.actor)
                member.actor, member.leased = None, False

    def _start(self, member: Member, attempt: Attempt) -> None:
        job = Job(
            attempt=attempt.id,
            names=tuple(item.name for item in attempt.group.items),
            cores=attempt.cores if member.cores is not None else None,
            shared=self._share,
        )
        self._running[attempt.id] = Running(attempt=attempt, member=member, ref=member.actor.start.remote(job))
        self.screen.placed(attempt)

    # -- listening ----------------------------------------------------------------------------------------------------

    def _hear(self, wait_s: float) -> None:
        refs: dict[Any, Callable[[Any], None]] = {}
        for member in self.members.values():
            if member.asked is not None:
                refs[member.asked] = partial(self._met, member)
            if member.coming is not None:
                refs[member.coming] = partial(self._leased, member)
            if member.closing is not None:
                refs[member.closing] = partial(self._closed, member)
        for running in self._running.values():
            refs[running.ref] = partial(self._heard, running)
        began = time.monotonic()
        ready = fleet.ready(list(refs), wait_s)
        busy = time.monotonic()
        for ref in ready:
            refs[ref](ref)
        busy = time.monotonic() - busy
        for running in list(self._running.values()):
            running.heard = min(
                running.heard + busy, time.monotonic()
            )  # a large receipt, or a store out of reach: who waited for the head was not silent
            if time.monotonic() - running.heard > SILENT_S:
                self._gone(
                    running.member, "worker_lost", f"{running.member.node.name} has not answered for {SILENT_S:g} s"
                )
        time.sleep(max(0.0, wait_s - (time.monotonic() - began)))

    def _met(self, member: Member, ref: Any) -> None:
        member.asked = None
        if member.node.id not in self.members:
            return
        found = self._meet(member.node, ref)
        if isinstance(found, str):
            self.screen.warn(f"{member.node.name} takes no part: {found}")
        else:
            member.box = found

    def _leased(self, member: Member, ref: Any) -> None:
        member.coming = None
        try:
            member.cores = fleet.value(ref)
            member.leased = True
        except Exception as error:  # whatever Ray makes of an agent that could not be made
            if fleet.kind_of(error) == "gone":
                self._failed(member, error)
            if member.node.id in self.members and member.box is not None:
                self.ledger.bar(member.box.id, f"no agent can be started there: {fleet.why(error)[1]}")
                self.screen.warn(f"{member.node.name} takes no part: {self.ledger.barred(member.box.id)}")
                member.actor = None

    def _closed(self, member: Member, ref: Any) -> None:
        if ref == member.closing:
            member.closing = None

    def _heard(self, running: Running, ref: Any) -> None:
        if running.attempt.id not in self._running:
            return  # lost in the meantime
        try:
            told = fleet.value(ref)
            if running.looking:
                ended = self._take(running, told)
                running.heard = time.monotonic()
                if ended:
                    return
            running.looking = True
        except RestoreError as error:
            running.refused += 1
            self.screen.warn(f"{running.member.node.name}: {error}")
            if running.refused >= 3:
                self._lose(running, "worker_lost", f"its receipts do not arrive as they were sent: {error}")
                return
        except Exception as error:
            kind = fleet.kind_of(error)
            if kind == "gone":
                self._failed(running.member, error)
                return
            if kind == "code":  # the agent's own, on its node
                self._lose(running, "session_died", f"pytest cannot be started or followed: {fleet.why(error)[1]}")
                return
            if kind != "away":
                raise  # the head's own: a full disk is no node's fault
        running.ref = running.member.actor.look.remote(running.attempt.id, tuple(running.known))

    def _take(self, running: Running, told: Mapping[str, Any]) -> bool:
        """Take in what a look brought; whether the attempt is over."""
        attempt = running.attempt
        for note in told["notes"]:
            if note["what"] == "begins":
                attempt.running = note["name"]
            else:
                self._headlines[note["name"]] = note["text"]
                if note["result"] == "failed":
                    self.result.failed.add(note["name"])
        running.tail = told["tail"] or running.tail
        names = {item.name for item in attempt.group.items}
        for name, facts in told["receipts"].items():
            read = partial(self._read, running, name)
            left = left_open(facts, read) if name in names else ""
            if left == Outcome.SKIPPED:
                running.not_run.add(name)
            elif left == Outcome.INTERRUPTED and not self.result.interrupted:
                pass  # pytest was ended there and not from here, say its host goes down: lost, as `_ended` finds
            elif refusal := self.ledger.refusal(attempt, name):
                self.screen.warn(f"{attempt.box.name}: {name} is refused: {refusal}")
            else:
                record = self.landing.land(name, facts, read)
                if name in names:
                    self.ledger.take(attempt, name)
                self.result.records.append(record)
                self.screen.recorded(attempt, record, self._headlines.get(name, ""))
            running.known.add(name)
        if told["returncode"] is None:
            return False
        self._ended(running, told["returncode"])
        return True

    def _read(self, running: Running, receipt: str, path: str, offset: int, size: int) -> bytes:
        piece: bytes = fleet.value(
            running.member.actor.read.remote(running.attempt.id, receipt, path, offset, size), 120.0
        )
        return piece

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _ended(self, running: Running, returncode: int) -> None:
        """pytest has ended on its node, and everything it left is here."""
        attempt, member = running.attempt, running.member
        left = [item.name for item in attempt.group.items if item.name not in self.ledger.done]
        if running.not_run and not self.result.interrupted:
            self.ledger.bar(attempt.box.id, "a failure there ended the session: nothing can be measured on that host")
            self.screen.warn(f"{attempt.box.name}: {self.ledger.barred(attempt.box.id)}; the rest is placed elsewhere")
            self.ledger.again(attempt, set(left))
        elif left and not self.result.interrupted and (returncode < 0 or returncode > 128):
            self._lose(running, "session_died", f"pytest was ended by signal {abs(returncode) % 128}", running.tail)
        elif left and not self.result.interrupted and returncode == INTERRUPTED and attempt.running:
            cause = (
                "pytest was told to end on its node (SIGTERM or SIGINT), and not by this run: does its host go down?"
            )
            self._lose(running, "session_died", cause, running.tail)
        elif left and not self.result.interrupted:
            self.screen.warn(f"{attempt.box.name}: pytest ended with {returncode} and left {len(left)} points undone:")
            for line in running.tail.strip().splitlines()[-8:]:
                self.screen.warn(f"  {line}")
            self.ledger.over(attempt)
        else:
            self.ledger.over(attempt)
        self._running.pop(attempt.id, None)
        if member.actor is not None:
            member.closing = member.actor.finish.remote(attempt.id)

    def _lose(self, running: Running, kind: str, cause: str, log: str = "") -> None:
        attempt = running.attempt
        self._running.pop(attempt.id, None)
        loss = self.ledger.lose(attempt)
        if loss is None:
            return
        plan = attempt.box.plan
        backend = loss.item.point.backend
        record = self.landing.lost(
            attempt, loss, kind=kind, cause=cause, started_at=running.started_at, log=log,
            environment=plan.environments.get(backend, Environment()),
            provenance=plan.provenance(backend) if plan.environments else Provenance.MEASURED,
        )  # fmt: skip
        self.result.records.append(record)
        self.screen.lost(attempt, loss, record)

    def _interrupt(self) -> None:
        """End pytest everywhere, take in what it closed as interrupted, and let go of all boxes."""
        stopping = {
            member.actor.stop.remote(STOP_S - 10): member
            for member in self.members.values()
            if member.actor is not None and any(one.member is member for one in self._running.values())
        }
        fleet.ready(list(stopping), STOP_S + 15)
        for running in list(self._running.values()):
            with contextlib.suppress(Exception):  # what cannot be had any more is missing, and is told so
                actor = running.member.actor
                self._take(running, fleet.value(actor.look.remote(running.attempt.id, tuple(running.known)), 20.0))
