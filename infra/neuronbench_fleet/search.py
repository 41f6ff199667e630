"""The search for capacity: candidates in turn, round after round, each attempt told and kept, within limits."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuronbench_fleet import blocks
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import LIVE, list_boxes
from neuronbench_fleet.capacity import Candidate, Order, allowed_hours, expiry, not_affordable
from neuronbench_fleet.costs import money, period, told_rate
from neuronbench_fleet.errors import AwsError, FleetError, Kind, UsageError, quota_remedy
from neuronbench_fleet.launch import Launched, launch, tags_of
from neuronbench_fleet.pace import backoff_s

_HOPELESS: frozenset[Kind] = frozenset({"quota", "price", "unsupported"})
_STOPS: frozenset[Kind] = frozenset({"auth", "invalid", "not_found", "conflict", "failed", "limit"})
FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 120.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One thing that was tried, and what came of it."""

    at: str
    round: int
    purchase: str
    zone: str
    instance_type: str
    outcome: str
    """`started`, `planned` (dry run), or the class of the failure."""
    code: str = ""
    message: str = ""
    remedy: str = ""
    boxes: tuple[str, ...] = ()

    def line(self) -> str:
        what = f"{self.purchase} {self.zone}".rstrip()
        end = f"{self.code}: {self.message}" if self.code or self.message else ", ".join(self.boxes)
        return f"round {self.round}: {what}: {self.outcome}" + (f" ({end})" if end else "")


@dataclass(kw_only=True)
class Search:
    """One search. `run` returns the ids of boxes that were started, or of somebody else's that are there already."""

    aws: Aws
    order: Order
    log: Path
    """Attempts are added to this file, a line of JSON each; not in a dry run."""
    say: Callable[[str], None]
    progress: Callable[[str], None]
    confirm: Callable[[blocks.Offer], bool]
    launched: Launched = field(default_factory=Launched)
    attempts: list[Attempt] = field(default_factory=list)
    started_with: Candidate | None = None
    round: int = 0
    bought: str = ""
    """The Capacity Block that this search has bought."""
    there: frozenset[str] = frozenset()
    """Boxes of the fleet that are known and stay."""

    def run(self, candidates: Sequence[Candidate], *, deadline_s: float) -> list[str]:
        """Try until something starts or `deadline_s` of the pace's clock. Raises `FleetError`."""
        left = self._affordable(candidates)
        while True:
            self.round += 1
            there = list_boxes(self.aws, self.order.deployment.name, self.order.fleet)
            theirs = [box.id for box in there if box.state in LIVE and not self._known(box.id)]
            if self.round > 1 and theirs:
                self.say(f"somebody else has started {self.order.fleet}: {', '.join(theirs)}")
                return theirs
            seen = [box.id for box in there]
            for candidate in list(left):
                if candidate not in left:
                    continue
                ids, trouble = self._try(candidate, seen, deadline_s)
                if trouble is None:
                    self.started_with = candidate
                    return ids
                if trouble.kind in _STOPS:
                    raise trouble
                if trouble.kind in _HOPELESS:
                    left = [
                        other
                        for other in left
                        if other is not candidate
                        # a quota counts for a whole region
                        and not (trouble.kind == "quota" and other.purchase == candidate.purchase)
                    ]
            if not left:
                raise self._nothing_left()
            delay_s = backoff_s(self.round, base_s=FIRST_WAIT_S, most_s=LONGEST_WAIT_S)
            if self.aws.pace.now_s() + delay_s > deadline_s:
                raise self._time_is_over()
            self.progress(f"no capacity in round {self.round}; again in {delay_s:.0f} s, for another"
                          f" {period(deadline_s - self.aws.pace.now_s())}")  # fmt: skip
            self.aws.pace.wait(delay_s)

    def _known(self, id_: str) -> bool:
        return id_ in self.launched.ids or id_ in self.there

    # -- one attempt

    def _try(self, candidate: Candidate, seen: Sequence[str], deadline_s: float) -> tuple[list[str], FleetError | None]:
        try:
            if candidate.purchase == "block":
                ids = self._block(candidate, seen, deadline_s)
            else:
                ids = launch(
                    self.aws, self.order, candidate, self.launched, seen=seen, round_=self.round,
                    expires=expiry(self.order, candidate.rate),
                )  # fmt: skip
        except FleetError as error:
            error = self._with_quota(candidate, error)
            code = error.trouble.code if isinstance(error, AwsError) else type(error).__name__
            message = error.trouble.message if isinstance(error, AwsError) else error.message
            self._keep(candidate, error.kind, code=code, message=message, remedy=error.remedy)
            return [], error
        self._keep(candidate, "planned" if self.aws.dry_run else "started", boxes=tuple(ids))
        return ids, None

    def _block(self, candidate: Candidate, seen: Sequence[str], deadline_s: float) -> list[str]:
        aws, order = self.aws, self.order
        until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=max(deadline_s - aws.pace.now_s(), 0.0))
        mine = blocks.find(aws, order.deployment.name, order.fleet, id_=order.box.reservation)
        if mine is None:
            if self.bought:  # whatever became of it: never two for one command
                raise FleetError(
                    f"Capacity Block {self.bought} was bought and is not there", remedy="see the EC2 console"
                )
            offer = self._offer(candidate, until)
            self.say(f"Capacity Block: {offer}, without disks; paid at once, never refunded")
            if not aws.dry_run and not self.confirm(offer):
                raise UsageError("the Capacity Block was not bought: nobody said yes", remedy="--yes buys it")
            mine = blocks.buy(aws, offer, tags_of(order, "block"))
            if mine is None:
                return []
            self.bought = mine.id
            self.say(f"bought: Capacity Block {mine.id}")
        if mine.zone not in candidate.subnets:
            raise FleetError(
                f"Capacity Block {mine.id} is in {mine.zone}: no subnet of the deployment is", kind="unsupported"
            )
        if not aws.dry_run:
            mine = blocks.await_begin(aws, mine, until=until, deadline_s=deadline_s, progress=self.progress)
        rate = mine.rate if order.limits.usd_per_hour is None else told_rate(order.limits.usd_per_hour)
        in_zone = Candidate(purchase="block", zone=mine.zone, subnets=candidate.subnets, rate=rate)
        return launch(
            aws, order, in_zone, self.launched, seen=seen, round_=self.round, reservation=mine.id, rate=rate,
            # what is paid already is not limited by money again
            expires=expiry(order, None, latest=mine.latest),
        )  # fmt: skip

    def _offer(self, candidate: Candidate, until: dt.datetime) -> blocks.Offer:
        limits = self.order.limits
        found = blocks.offers(
            self.aws, self.order.instance_type, self.order.count, limits.max_hours, list(candidate.subnets), until
        )
        if not found:
            raise FleetError(
                f"no Capacity Block of {blocks.block_hours(limits.max_hours)} h begins before"
                f" {until:%Y-%m-%d %H:%M} UTC",
                kind="capacity",
                remedy="a longer --wait, or other --max-hours",
            )
        if limits.max_usd is not None and found[0].usd > limits.max_usd:
            raise FleetError(
                f"the cheapest Capacity Block is dearer than --max-usd {limits.max_usd:g}: {found[0]}",
                kind="price",
                remedy="a block is paid as a whole, whatever is used of it: raise --max-usd, or buy in another way",
            )
        return found[0]

    # -- what is told

    def _with_quota(self, candidate: Candidate, error: FleetError) -> FleetError:
        """Name the quota that AWS' message leaves out."""
        if error.kind != "quota" or not isinstance(error, AwsError):
            return error
        how = quota_remedy(self.order.instance_type, candidate.purchase, self.order.vcpus, self.order.deployment.region)
        trouble = error.trouble
        told = type(trouble)(kind=trouble.kind, code=trouble.code, message=trouble.message, remedy=how)
        return AwsError(error.service, error.operation, told, attempts=error.attempts)

    def _keep(
        self, candidate: Candidate, outcome: str, *, code: str = "", message: str = "", remedy: str = "",
        boxes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        attempt = Attempt(
            at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), round=self.round, purchase=candidate.purchase,
            zone=candidate.zone, instance_type=self.order.instance_type, outcome=outcome, code=code, message=message,
            remedy=remedy, boxes=boxes,
        )  # fmt: skip
        self.attempts.append(attempt)
        self.say(attempt.line())
        if self.aws.dry_run:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"fleet": self.order.fleet, **_plain(attempt)}, ensure_ascii=False) + "\n")

    def _affordable(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        kept: list[Candidate] = []
        refused: list[FleetError] = []
        told: dict[str, list[str]] = {}
        for candidate in candidates:
            error = not_affordable(self.order, candidate)
            if error is None:
                kept.append(candidate)
                hours = allowed_hours(self.order, candidate.rate)
                end = "" if candidate.purchase == "block" else f", up to {hours:.4g} h{self._at_most(candidate, hours)}"
                text = f"candidate: {candidate.purchase} in {{}}, {candidate.price}{end}"
            else:
                refused.append(error)
                text = f"left out: {candidate.purchase} in {{}}: {error.message}"
            told.setdefault(text.replace(candidate.zone or "-", "{}"), []).extend(
                [candidate.zone] if candidate.zone else candidate.subnets
            )
        for text, zones in told.items():
            self.say(text.replace("{}", ", ".join(zones), 1).replace("{}", "each"))
        if not kept:
            raise refused[0]
        return kept

    def _at_most(self, candidate: Candidate, hours: float) -> str:
        """What all boxes together cost if they live as long as they may; empty where no price is known."""
        if candidate.rate is None:
            return ""
        count = self.order.count
        boxes = "" if count == 1 else f" for {count} boxes"
        return f": {money(candidate.rate.usd_per_hour * hours * count)}{boxes}, without disks"

    def _nothing_left(self) -> FleetError:
        """The first reason that one can do something about, in the order of what helps most."""
        kinds: tuple[Kind, ...] = ("quota", "price", "unsupported")
        for kind in kinds:
            for attempt in reversed(self.attempts):
                if attempt.outcome == kind:
                    return FleetError(
                        f"no box could be started: {attempt.purchase} {attempt.zone}: {attempt.code}: {attempt.message}"
                        f"{self._summary()}",
                        kind=kind,
                        remedy=attempt.remedy,
                    )
        return FleetError(f"no box could be started{self._summary()}")

    def _time_is_over(self) -> FleetError:
        tried = Counter(attempt.outcome for attempt in self.attempts)
        kind: Kind = "capacity" if tried["capacity"] else "network" if tried["network"] else "service"
        return FleetError(
            f"nothing could be started within {period(self.order.limits.wait_s)}: {self.order.count} x"
            f" {self.order.instance_type}{self._summary()}",
            kind=kind,
            remedy="more zones, another way of buying (--purchase on-demand,spot,block), another region, or a longer"
            f" --wait; every attempt is in {self.log}",
        )

    def _summary(self) -> str:
        tried = Counter((one.purchase, one.zone, one.outcome, one.code) for one in self.attempts)
        return "".join(
            f"\n  {count} x {purchase} {zone}: {outcome} ({code})"
            for (purchase, zone, outcome, code), count in tried.items()
        )


def _plain(attempt: Attempt) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(attempt).items() if value}
