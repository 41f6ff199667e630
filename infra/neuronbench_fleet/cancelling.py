"""`fleet stop --run`: a run ends in order, its box stays. Each step may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from neuronbench.receipts import utc_now
from neuronbench.weights import StoreError
from neuronbench_fleet import runs
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import ASLEEP, LIVE, Box, boxes_by_id, list_boxes
from neuronbench_fleet.costs import period
from neuronbench_fleet.deployment import Deployment
from neuronbench_fleet.errors import BoxLost, FleetError, UsageError, of_store
from neuronbench_fleet.remote import bootstrap
from neuronbench_fleet.stream import Follower

Outcome: TypeAlias = Literal["cancelled", "over", "nowhere", "planned"]
_EVERY_S: Final = 3.0
_STATE_EVERY: Final = 10
"""Looks of which one asks EC2 whether the boxes are still there."""


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """What became of it."""

    outcome: Outcome
    """`over`: it had ended by itself, or was cancelled before; `nowhere`: no box has it."""
    boxes: Sequence[str]
    """Those that were asked."""
    end: Mapping[str, Any] | None
    """The event with which it ended."""


@dataclass(kw_only=True)
class Cancelling:
    """One `fleet stop NAME --run RUN`."""

    aws: Aws
    deployment: Deployment
    fleet: str
    run: str
    timeout_s: float
    say: Callable[[str], None]
    progress: Callable[[str], None]

    def cancel(self) -> Cancelled:
        """Have the run end wherever it goes on, and wait until its boxes have said so. Raises `FleetError`."""
        try:
            return self._cancel()
        except StoreError as error:
            raise of_store(error) from error

    def _cancel(self) -> Cancelled:
        store = runs.bucket_of(self.aws, self.deployment)
        asked = runs.read_asked(store, self.run)
        if asked is None:
            raise FleetError(
                f"there is no run {self.run!r} in {store.url}", kind="not_found",
                remedy=f"which there are says neuronbench fleet status {self.fleet}",
            )  # fmt: skip
        if asked.fleet != self.fleet:
            raise UsageError(f"{self.run} is a run of the fleet {asked.fleet!r}, not of {self.fleet!r}")
        follower = Follower(store=store, run=self.run)
        follower.poll()
        mine = [
            box
            for box in list_boxes(self.aws, self.deployment.name, self.fleet, states=(*LIVE, *ASLEEP))
            if (box.run == self.run or box.id == follower.latest_box) and box.id not in follower.finished
        ]
        told = [box for box in mine if box.state in LIVE and self._ask(box)]
        if self.aws.dry_run:
            return Cancelled(outcome="planned", boxes=[box.id for box in told], end=None)
        if told:
            self._await(follower, told)
        self._refuse_asleep([box for box in mine if box.state in ASLEEP])
        end = follower.end
        if end is None:
            return Cancelled(outcome="nowhere", boxes=[], end=None)
        ours = bool(told) and end.get("reason") == "cancelled"
        return Cancelled(outcome="cancelled" if ours else "over", boxes=[box.id for box in told], end=end)

    def _ask(self, box: Box) -> bool:
        """Ask the box to end the run; False where it has none that was ever started."""
        script = bootstrap.cancel_script(self.run, by=runs.asker(), at=utc_now())
        try:
            runs.await_online(self.aws, box, self.progress)
            said = runs.execute(
                self.aws, box, script, comment=f"neuronbench cancel {self.run}", limit_s=600, progress=self.progress,
                doing="waiting for its answer",
            )  # fmt: skip
        except BoxLost:
            self._refuse_gone([box.id])
            raise
        except runs.ScriptFailed as error:
            if error.code in (bootstrap.EXIT_NO_RUN, bootstrap.EXIT_NOT_STARTED):
                self.say(f"{box.id}: {error.said}")
                return False
            raise FleetError(
                f"{self.run} cannot be cancelled on {box.id}: {error}", remedy="the same command may be given again"
            ) from error
        for line in said.splitlines():
            self.say(f"{box.id}: {line}")
        return True

    def _await(self, follower: Follower, told: Sequence[Box]) -> None:
        start = self.aws.pace.now_s()
        looks = 0
        while True:
            try:
                follower.poll()
            except StoreError as error:
                if error.kind == "store_auth":
                    raise
                self.progress(f"the bucket cannot be read, and is asked again: {error.message}")
            left = [box.id for box in told if box.id not in follower.finished]
            if not left:
                return
            looks += 1
            if looks % _STATE_EVERY == 0:
                self._refuse_gone(left)
            waited = self.aws.pace.now_s() - start
            last = {id_: str(follower.last.get(id_, {}).get("kind") or "nothing heard yet") for id_ in left}
            if waited > self.timeout_s:
                raise FleetError(
                    f"{self.run} was asked to end and has not after {period(waited)}:"
                    f" {', '.join(f'{id_} ({kind})' for id_, kind in last.items())}",
                    remedy="it ends when its set-up is done or everything is sent; the same command again waits longer"
                    f" (--within), neuronbench fleet logs {self.run} -f shows it, neuronbench fleet down {self.fleet}"
                    " --force ends the box",
                )
            self.progress(f"{waited:.0f} s: {self.run} ends: " + ", ".join(f"{i} {kind}" for i, kind in last.items()))
            runs.pause(self.aws, _EVERY_S)

    def _refuse_gone(self, ids: Sequence[str]) -> None:
        there = {box.id: box.state for box in boxes_by_id(self.aws, ids)}
        self._refuse_asleep([box for box in boxes_by_id(self.aws, ids) if box.state in ASLEEP])
        gone = [id_ for id_ in ids if there.get(id_) not in LIVE]
        if gone:
            raise FleetError(
                f"{', '.join(gone)} is {there.get(gone[0], 'gone')}, before {self.run} had ended there: what it had not"
                " sent is lost",
                remedy=f"neuronbench fleet pull {self.run} fetches what is in the bucket",
            )

    def _refuse_asleep(self, asleep: Sequence[Box]) -> None:
        if asleep:
            raise FleetError(
                f"{self.run} is not finished on {', '.join(f'{box.id}, {box.state}' for box in asleep)}: started again,"
                " it goes on by itself",
                kind="conflict",
                remedy=f"start it (neuronbench fleet up {self.fleet} --kind KIND) and say this again, or end it"
                f" (neuronbench fleet down {self.fleet})",
            )
