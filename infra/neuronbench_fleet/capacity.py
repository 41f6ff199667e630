"""Where boxes could be had and bought how: zones by what EC2 offers and the deployment's subnets, prices, limits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.catalog.instances import instance_of
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.costs import Rate, hours_for, period, published_rate, rate_text, spot_rates, told_rate
from neuronbench_fleet.deployment import BoxKind, Deployment
from neuronbench_fleet.errors import FleetError, UsageError

PURCHASES: Final = ("on-demand", "spot", "block")
LEAST_HOURS: Final = 0.25
"""Less is gone before a box has booted."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the user allows."""

    max_hours: float
    max_usd: float | None = None
    """Of all boxes together."""
    wait_s: float = 7200.0
    usd_per_hour: float | None = None
    """The user's own word for the price of one box."""
    spot_max_usd: float | None = None
    """The highest price an hour of one box on the spot market."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be started."""

    deployment: Deployment
    box: BoxKind
    fleet: str
    instance_type: str
    count: int
    limits: Limits

    @property
    def vcpus(self) -> int | None:
        """Of all boxes together, as quotas count; None for a type that the catalogue does not know."""
        known = instance_of(self.instance_type)
        return None if known is None else known.vcpus * self.count


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One thing to try. Of a Capacity Block the zone is known once there is an offer: `subnets` has all of them."""

    purchase: str
    zone: str
    subnets: Mapping[str, str]
    """Zone → subnet."""
    rate: Rate | None = None
    price_note: str = ""
    """Why there is no price."""

    @property
    def subnet(self) -> str:
        return self.subnets[self.zone]

    @property
    def price(self) -> str:
        """For people."""
        if self.purchase == "block":
            return "price by offer"
        return rate_text(self.rate)


def zones_of(aws: Aws, deployment: Deployment) -> dict[str, str]:
    """Zone → subnet of the deployment; the first one where a zone has several."""
    found: dict[str, str] = {}
    for subnet in aws.pages("ec2", "describe_subnets", "Subnets", SubnetIds=list(deployment.subnets)):
        found.setdefault(str(subnet["AvailabilityZone"]), str(subnet["SubnetId"]))
    return found


def zones_with(aws: Aws, instance_type: str) -> set[str]:
    """Zones of the region in which EC2 has that type at all."""
    filters = [{"Name": "instance-type", "Values": [instance_type]}]
    offered = aws.pages(
        "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", LocationType="availability-zone",
        Filters=filters,
    )  # fmt: skip
    return {str(offer["Location"]) for offer in offered}


def candidates(aws: Aws, order: Order, purchases: Sequence[str], only: Sequence[str]) -> list[Candidate]:
    """What to try, in order: ways of buying as given, within each the cheapest known price first.

    `only`: zones that the user named; empty for all of the deployment's. Raises `FleetError` where nothing is left.
    """
    subnets = zones_of(aws, order.deployment)
    unknown = [zone for zone in only if zone not in subnets]
    if unknown:
        raise UsageError(
            f"--zone {', '.join(unknown)}: the deployment {order.deployment.name!r} has no subnet there; it has some in"
            f" {', '.join(sorted(subnets))}"
        )
    offered = zones_with(aws, order.instance_type)
    usable = {zone: subnets[zone] for zone in (only or sorted(subnets)) if zone in offered}
    if not usable:
        where = f"offered in {', '.join(sorted(offered))}" if offered else "not offered in this region at all"
        raise FleetError(
            f"{order.instance_type} in {order.deployment.region}: no subnet of the deployment is in a zone that has it;"
            f" subnets are in {', '.join(only or sorted(subnets))}, it is {where}",
            kind="unsupported",
            remedy="deploy subnets there, or another region or --instance-type",
        )
    made: list[Candidate] = []
    for purchase in purchases:
        if purchase == "block":
            made.append(Candidate(purchase=purchase, zone="", subnets=usable))
            continue
        priced = _priced(aws, order, purchase, usable)
        made += sorted(priced, key=lambda one: one.rate.usd_per_hour if one.rate is not None else float("inf"))
    return made


def _priced(aws: Aws, order: Order, purchase: str, usable: Mapping[str, str]) -> list[Candidate]:
    rates: dict[str, Rate] = {}
    note = ""
    if order.limits.usd_per_hour is not None:
        rates = dict.fromkeys(usable, told_rate(order.limits.usd_per_hour))
    elif purchase == "spot":
        rates = spot_rates(aws, order.instance_type, list(usable))
        note = f"EC2 has no spot price of {order.instance_type} there"
    else:
        found = published_rate(order.instance_type, order.deployment.region, purchase)
        if isinstance(found, Rate):
            rates = dict.fromkeys(usable, found)
        else:
            note = found
    return [
        Candidate(
            purchase=purchase, zone=zone, subnets={zone: subnet}, rate=rates.get(zone),
            price_note="" if zone in rates else note,
        )
        for zone, subnet in usable.items()
    ]  # fmt: skip


def not_affordable(order: Order, candidate: Candidate) -> FleetError | None:
    """Why the limits rule this candidate out before anything is asked for; None: they do not."""
    limits, rate = order.limits, candidate.rate
    if candidate.purchase == "block":
        return None
    if rate is None:
        if limits.max_usd is None:
            return None
        return UsageError(
            f"--max-usd {limits.max_usd:g} cannot be kept: {candidate.price_note}",
            remedy="say what an hour of one box costs (--usd-per-hour), or limit the time alone (--max-hours)",
        )
    if candidate.purchase == "spot" and limits.spot_max_usd is not None and rate.usd_per_hour > limits.spot_max_usd:
        return FleetError(
            f"spot in {candidate.zone} costs {rate.usd_per_hour:g} USD/h, --spot-max is {limits.spot_max_usd:g}",
            kind="price",
            remedy="raise --spot-max, or another way of buying",
        )
    if limits.max_usd is not None and (hours := hours_for(limits.max_usd, rate, order.count)) < LEAST_HOURS:
        return FleetError(
            f"--max-usd {limits.max_usd:g} buys {period(hours * 3600)} of {order.count} x {order.instance_type} at"
            f" {rate}; that is over before it has booted",
            kind="price",
            remedy=f"at least {LEAST_HOURS * rate.usd_per_hour * order.count:.2f} USD, or a smaller type",
        )
    return None


def allowed_hours(order: Order, rate: Rate | None) -> float:
    """Hours until the first limit: time, or money at that price."""
    limits = order.limits
    if limits.max_usd is None or rate is None:
        return limits.max_hours
    return min(limits.max_hours, hours_for(limits.max_usd, rate, order.count))


def expiry(order: Order, rate: Rate | None, *, latest: dt.datetime | None = None) -> dt.datetime:
    """When boxes that start now have to be gone; `latest`: what they run in ends then."""
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(hours=allowed_hours(order, rate))
    return (ends if latest is None else min(ends, latest)).replace(microsecond=0)
