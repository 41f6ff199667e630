"""Who may run what, and whose results count. Knows nothing of Ray, clocks or files.

An attempt is a group of points on a box. It is `live` until it has ended or its box is lost, and only a live attempt
may hand in receipts: what a lost one still measures cannot come in afterwards (it is fenced off), and no receipt comes
in twice. What a lost attempt leaves undone is queued again; the point that was open is charged with the loss.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from neuronbench_ray.place.groups import Box, Group, core_sets
from neuronbench_ray.place.items import Item


@dataclass(kw_only=True)
class Attempt:
    """A group on a box."""

    id: str
    """`g1.2`: the second try of group g1."""
    group: Group
    box: Box
    cores: tuple[str, ...] = ()
    """Ids of the cores that are its own for as long as it lives."""
    state: Literal["live", "over", "lost"] = "live"
    running: str = ""
    """Name of the item that runs, as far as the head has heard."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """An item that was being measured when its attempt was lost."""

    item: Item
    number: int
    """How many times it was lost by now."""
    gave_up: bool
    """It was lost more often than may be tried again: it stays without a result."""


class Ledger:
    """The book of one run: what waits, what runs, what is done, what was lost."""

    def __init__(self, groups: Sequence[Group], *, retries: int = 2, share: bool = False) -> None:
        self._waiting: deque[Group] = deque(groups)
        self._share = share
        self.retries = retries
        self.attempts: list[Attempt] = []
        self.done: set[str] = set()
        """Items whose receipt is in the store."""
        self.given_up: set[str] = set()
        self.losses: list[Loss] = []
        self._lost: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()
        self._avoid: dict[str, set[str]] = {}
        self._barred: dict[str, str] = {}

    # -- look

    @property
    def waiting(self) -> list[Group]:
        return list(self._waiting)

    @property
    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.state == "live"]

    @property
    def finished(self) -> bool:
        return not self._waiting and not self.live

    @property
    def missing(self) -> list[Item]:
        """Items that still wait for a box."""
        return [item for group in self._waiting for item in group.items]

    def on(self, box: str) -> list[Attempt]:
        return [attempt for attempt in self.live if attempt.box.id == box]

    def barred(self, box: str) -> str:
        """Why nothing more is placed on a box; empty when it may be."""
        return self._barred.get(box, "")

    # -- place

    def bar(self, box: str, reason: str) -> None:
        """Place nothing on this box any more."""
        self._barred.setdefault(box, reason)

    def could_run(self, boxes: Collection[Box]) -> bool:
        """Whether any of `boxes` may take any of what waits, now or once it is free."""
        return any(self._fits(group, box) for group in self._waiting for box in boxes)

    def place(self, box: Box, cores: Sequence[str], boxes: Collection[Box] = ()) -> Attempt | None:
        """The next group for this box, if it has room for one. `cores`: ids of all of its cores.

        A box takes one group at a time and gives it all of its cores; several, on cores of their own, where sharing is
        allowed. A group goes back to a box it was lost on only where no other of `boxes` could take it.
        """
        here = self.on(box.id)
        if here and not self._share:
            return None
        for group in self._waiting:
            if not self._fits(group, box):
                continue
            others = [one for one in boxes if one.id != box.id and self._fits(group, one)]
            avoid = self._avoid.get(group.id, set())
            if box.id in avoid and any(one.id not in avoid for one in others):
                continue
            given = self._cores(group, cores, here)
            if given is None:
                continue
            self._waiting.remove(group)
            self._tries[group.id] += 1
            attempt = Attempt(id=f"{group.id}.{self._tries[group.id]}", group=group, box=box, cores=given)
            self.attempts.append(attempt)
            return attempt
        return None

    def _fits(self, group: Group, box: Box) -> bool:
        return (
            not self.barred(box.id)
            and (box.id in group.boxes or all(box.can(i.name) for i in group.items))
            and (not box.cores or group.cores <= box.cores)
        )

    def _cores(self, group: Group, cores: Sequence[str], here: Sequence[Attempt]) -> tuple[str, ...] | None:
        if not self._share or not cores or not group.cores:
            return None if here else tuple(cores)
        if any(len(attempt.cores) == len(cores) for attempt in here):
            return None
        return core_sets(cores, group.cores, [attempt.cores for attempt in here])

    # -- hand in

    def refusal(self, attempt: Attempt, name: str) -> str:
        """Why a receipt of this attempt may not come in; empty when it may."""
        if attempt.state == "lost":
            return f"attempt {attempt.id} on {attempt.box.name} was declared lost; its results do not count"
        if name in self.done:
            return "its receipt is here already"
        return ""

    def take(self, attempt: Attempt, name: str) -> None:
        """A receipt is in the store. Raises `ValueError` for one that may not come in."""
        if reason := self.refusal(attempt, name):
            raise ValueError(f"{name}: {reason}")
        self.done.add(name)

    # -- end

    def over(self, attempt: Attempt) -> list[Item]:
        """The attempt has ended by itself; what it should have measured and has not is returned and stays undone."""
        attempt.state, attempt.running = "over", ""
        left = self._left(attempt.group)
        self.given_up |= {item.name for item in left}
        return left

    def again(self, attempt: Attempt, names: Collection[str]) -> None:
        """The attempt is over, and did not come to these items: they are queued again, without blame."""
        attempt.state, attempt.running = "over", ""
        self._queue(attempt, [item for item in self._left(attempt.group) if item.name in names])

    def lose(self, attempt: Attempt) -> Loss | None:
        """The attempt is lost: fence it off, charge the open item, queue the rest. None when it had nothing left."""
        if attempt.state != "live":
            return None
        attempt.state = "lost"
        left = self._left(attempt.group)
        if not left:
            return None
        item = next((one for one in left if one.name == attempt.running), left[0])
        self._lost[item.name] += 1
        number = self._lost[item.name]
        loss = Loss(item=item, number=number, gave_up=number > self.retries)
        self.losses.append(loss)
        if loss.gave_up:
            self.given_up.add(item.name)
        self._avoid.setdefault(attempt.group.id, set()).add(attempt.box.id)
        self._queue(attempt, self._left(attempt.group))
        return loss

    def _left(self, group: Group) -> list[Item]:
        return [item for item in group.items if item.name not in self.done and item.name not in self.given_up]

    def _queue(self, attempt: Attempt, items: Sequence[Item]) -> None:
        if items:
            self._waiting.appendleft(replace(attempt.group, items=tuple(items)))
