"""Capacity Blocks: boxes of a time to come, paid in advance and never refunded.

Nothing is bought without a yes. A purchase has no token that would make a repetition mean the same purchase: where its
answer is lost, what was bought is looked up by its tags, and never bought again.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import TAG, tag_filters
from neuronbench_fleet.costs import Rate, period, rate_from_tag
from neuronbench_fleet.errors import AwsError, FleetError

BEFORE_END: Final = dt.timedelta(minutes=30)
"""EC2 begins to terminate boxes so long before a block ends."""
_WAITING: Final = ("payment-pending", "scheduled", "pending", "assessing", "delayed")
_LOOKUPS: Final = 12
_EVERY_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A block that could be bought now."""

    id: str
    zone: str
    count: int
    hours: float
    usd: float
    """For all of it, in advance."""
    start: dt.datetime
    end: dt.datetime

    @property
    def usd_per_hour(self) -> float:
        """Of one box."""
        return self.usd / (self.hours * self.count)

    def __str__(self) -> str:
        return (
            f"{self.count} x {self.hours:g} h in {self.zone} for {self.usd:,.2f} USD"
            f" ({self.usd_per_hour:.4g} USD/h each), {self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"
        )


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A block that is paid for."""

    id: str
    zone: str
    state: str
    start: dt.datetime | None
    end: dt.datetime | None
    rate: Rate | None

    @property
    def latest(self) -> dt.datetime | None:
        """When boxes in it have to be done."""
        return None if self.end is None else self.end - BEFORE_END


def block_hours(hours: float) -> int:
    """The shortest block that holds so many hours: days up to two weeks, then weeks."""
    days = max(math.ceil(hours / 24), 1)
    return 24 * (days if days <= 14 else 7 * math.ceil(days / 7))


def offers(
    aws: Aws, instance_type: str, count: int, hours: float, zones: Sequence[str], until: dt.datetime
) -> list[Offer]:
    """Blocks in `zones` that begin before `until`, the cheapest first."""
    now = dt.datetime.now(dt.UTC)
    length = block_hours(hours)
    found = aws.pages(
        "ec2", "describe_capacity_block_offerings", "CapacityBlockOfferings", InstanceType=instance_type,
        InstanceCount=count, CapacityDurationHours=length, StartDateRange=now,
        EndDateRange=until + dt.timedelta(hours=length),
    )  # fmt: skip
    made = [_offer(entry) for entry in found if entry.get("CurrencyCode", "USD") == "USD"]
    return sorted(
        (offer for offer in made if offer.zone in zones and offer.start <= until),
        key=lambda offer: (offer.usd, offer.start),
    )


def find(aws: Aws, deployment: str, fleet: str, *, id_: str = "") -> Reservation | None:
    """The block that was bought for a fleet, or the one with that id; None where none can still be used."""
    told: dict[str, Any] = {"CapacityReservationIds": [id_]} if id_ else {"Filters": tag_filters(deployment, fleet)}
    found = aws.pages("ec2", "describe_capacity_reservations", "CapacityReservations", **told)
    usable = [one for one in map(_reservation, found) if one.state in (*_WAITING, "active")]
    return min(usable, key=lambda one: (one.state != "active", str(one.start)), default=None)


def buy(aws: Aws, offer: Offer, tags: Mapping[str, str]) -> Reservation | None:
    """Buy it, once. None in a dry run. Raises `FleetError` where it is not known whether it was bought."""
    marks = {**tags, f"{TAG}usd_per_hour": _rate(offer).tag()}
    told = [{"Key": key, "Value": value} for key, value in marks.items()]
    try:
        answer = aws.call(
            "ec2", "purchase_capacity_block", CapacityBlockOfferingId=offer.id, InstancePlatform="Linux/UNIX",
            TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": told}],
        )  # fmt: skip
    except AwsError as error:
        if error.answered:
            raise
        return _look_up(aws, marks, error)
    bought = answer.get("CapacityReservation")
    return None if bought is None else _reservation(bought)


def await_begin(
    aws: Aws, reservation: Reservation, *, until: dt.datetime, deadline_s: float, progress: Callable[[str], None]
) -> Reservation:
    """Wait until boxes can be started in it. Raises `FleetError` where it begins too late or not at all.

    None of these failures is one that a search goes on from: it would buy another block.
    """
    now = reservation
    while now.state != "active":
        if now.state not in _WAITING:
            raise FleetError(f"Capacity Block {now.id} is {now.state}", remedy="see the EC2 console")
        if (now.start is not None and now.start > until) or aws.pace.now_s() > deadline_s:
            raise FleetError(
                f"Capacity Block {now.id} is {now.state} until after what --wait allows (it begins {_begins(now)})",
                kind="limit",
                remedy="the same `fleet up` again by then: it uses this block and buys no other",
            )
        left = (now.start - dt.datetime.now(dt.UTC)).total_seconds() if now.start is not None else 0.0
        progress(f"Capacity Block {now.id} is {now.state}" + (f", begins in {period(left)}" if left > 0 else ""))
        aws.pace.wait(_EVERY_S)
        found = find(aws, "", "", id_=now.id)
        if found is None:
            raise FleetError(
                f"Capacity Block {now.id} cannot be used any more: cancelled, or its payment failed",
                remedy="see the EC2 console before another is bought",
            )
        now = found
    return now


def _look_up(aws: Aws, marks: Mapping[str, str], error: AwsError) -> Reservation:
    for _ in range(_LOOKUPS):
        found = find(aws, marks[f"{TAG}deployment"], marks[f"{TAG}fleet"])
        if found is not None:
            return found
        aws.pace.wait(5.0)
    raise FleetError(
        f"whether the Capacity Block was bought is not known: {error}",
        remedy="look in the EC2 console under Capacity Reservations before anything is bought again; the same"
        " `fleet up` finds it by its tags",
    )


def _begins(reservation: Reservation) -> str:
    return "at a time not known" if reservation.start is None else f"{reservation.start:%Y-%m-%d %H:%M} UTC"


def _rate(offer: Offer) -> Rate:
    return Rate(usd_per_hour=offer.usd_per_hour, date=f"{offer.start:%Y-%m-%d}", source=f"Capacity Block {offer.id}")


def _offer(found: Mapping[str, Any]) -> Offer:
    return Offer(
        id=str(found["CapacityBlockOfferingId"]), zone=str(found["AvailabilityZone"]),
        count=int(found["InstanceCount"]), hours=float(found["CapacityBlockDurationHours"]),
        usd=float(found["UpfrontFee"]), start=found["StartDate"], end=found["EndDate"],
    )  # fmt: skip


def _reservation(found: Mapping[str, Any]) -> Reservation:
    tags = {str(tag["Key"]): str(tag["Value"]) for tag in found.get("Tags", ())}
    return Reservation(
        id=str(found["CapacityReservationId"]), zone=str(found.get("AvailabilityZone", "")), state=str(found["State"]),
        start=found.get("StartDate"), end=found.get("EndDate"), rate=rate_from_tag(tags.get(f"{TAG}usd_per_hour")),
    )  # fmt: skip
