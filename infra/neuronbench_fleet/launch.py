"""Starting boxes once: what is asked of EC2, under which token, and who yields when two start the same fleet."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuronbench.canonical import fingerprint
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import LIVE, TAG, Box, boxes_of_tokens, list_boxes
from neuronbench_fleet.capacity import Candidate, Order
from neuronbench_fleet.costs import Rate
from neuronbench_fleet.errors import AwsError, FleetError

_FRESH: Final = 6
"""Tokens tried where earlier ones belong to boxes that are gone."""
_LOOKUPS: Final = 6


@dataclass(kw_only=True)
class Launched:
    """What this process may have started. Tokens are kept before they are used, so that nothing is lost track of, and
    until AWS has said that nothing came of them."""

    ids: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    def all_ids(self, aws: Aws) -> list[str]:
        """Also of boxes whose answer never came."""
        found = {box.id for box in boxes_of_tokens(aws, self.tokens) if box.state in LIVE}
        return sorted(found | set(self.ids))


def tags_of(order: Order, purchase: str) -> dict[str, str]:
    """Tags of everything that belongs to a fleet."""
    return {
        "Name": f"{order.deployment.name}-{order.fleet}",
        f"{TAG}deployment": order.deployment.name,
        f"{TAG}fleet": order.fleet,
        f"{TAG}kind": order.box.kind,
        f"{TAG}purchase": purchase,
    }


def limits_tags(order: Order, rate: Rate | None, expires: dt.datetime) -> dict[str, str]:
    """Tags that say until when a box may run and what it costs."""
    made = {f"{TAG}expires": expires.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    if rate is not None:
        made[f"{TAG}usd_per_hour"] = rate.tag()
    if order.limits.max_usd is not None:
        made[f"{TAG}max_usd"] = f"{order.limits.max_usd / order.count:.10g}"  # a box's share
    return made


def request(
    order: Order, candidate: Candidate, *, expires: dt.datetime, token: str, reservation: str = "",
    rate: Rate | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Parameters of RunInstances. All boxes or none: they are in one request."""
    tags = {**tags_of(order, candidate.purchase), **limits_tags(order, rate or candidate.rate, expires)}
    told = [{"Key": key, "Value": value} for key, value in tags.items()]
    marked = ["instance", "volume"]
    made: dict[str, Any] = {
        # CloudFormation adds versions and leaves the default where it was: the latest is what was deployed
        "LaunchTemplate": {"LaunchTemplateId": order.box.launch_template, "Version": "$Latest"},
        "InstanceType": order.instance_type,
        "SubnetId": candidate.subnet,
        "MinCount": order.count,
        "MaxCount": order.count,
        "ClientToken": token,
    }
    if candidate.purchase == "spot":
        spot: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if order.limits.spot_max_usd is not None:
            spot["MaxPrice"] = f"{order.limits.spot_max_usd:g}"
        made["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        made["InstanceInitiatedShutdownBehavior"] = "terminate"  # one-time requests cannot be stopped
        marked.append("spot-instances-request")
    elif candidate.purchase == "block":
        made["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        made["CapacityReservationSpecification"] = {"CapacityReservationTarget": {"CapacityReservationId": reservation}}
    made["TagSpecifications"] = [{"ResourceType": what, "Tags": told} for what in marked]
    return made


def token_of(order: Order, candidate: Candidate, seen: Iterable[str], round_: int) -> str:
    """ClientToken of one attempt: equal for whoever starts the same fleet in the same state of things.

    `seen`: boxes of that name that EC2 still knows, in whatever state, so that a fleet that was ended begins afresh.
    """
    name = [order.deployment.name, order.deployment.region, order.fleet]
    what = [order.instance_type, order.count, candidate.purchase, candidate.zone]
    return f"nb-{fingerprint([name, what, sorted(set(seen)), round_], digest_bytes=16)}"


def launch(
    aws: Aws, order: Order, candidate: Candidate, launched: Launched, *, seen: Iterable[str], round_: int,
    expires: dt.datetime, reservation: str = "", rate: Rate | None = None,
) -> list[str]:  # fmt: skip
    """Start the boxes and return their ids; in a dry run none. Raises `AwsError`.

    Where the answer is lost for good, boxes are looked up by the token before anything else is tried.
    """
    known = set(seen)
    for _ in range(_FRESH):
        token = token_of(order, candidate, known, round_)
        launched.tokens.append(token)
        asked = request(order, candidate, expires=expires, token=token, reservation=reservation, rate=rate)
        try:
            answer = aws.call("ec2", "run_instances", **asked)
        except AwsError as error:
            if error.trouble.code == "IdempotentParameterMismatch":
                # somebody starts, or started, the same fleet with this token: theirs count if they live
                theirs = _await_token(aws, token)
                live = [box.id for box in theirs if box.state in LIVE]
                if live:
                    launched.tokens.remove(token)  # not ours to end
                    return live
                known |= {box.id for box in theirs} or {token}
                continue
            if error.answered:
                launched.tokens.remove(token)
            else:
                lost = _await_token(aws, token)
                if lost:
                    launched.ids += [box.id for box in lost]
                    return [box.id for box in lost]
            raise
        ids = [str(instance["InstanceId"]) for instance in answer.get("Instances", ())]
        launched.ids += ids
        return ids
    raise FleetError(
        f"{order.fleet}: every token belongs to boxes that are gone; that should not happen", kind="failed"
    )


def others(aws: Aws, order: Order, mine: Sequence[str]) -> list[Box]:
    """Boxes of the same name that came first: those of this process have to yield to them. Empty: they may stay."""
    live = list_boxes(aws, order.deployment.name, order.fleet, states=LIVE)
    strange = [box for box in live if box.id not in mine]
    own = [box for box in live if box.id in mine]
    if not strange or not own:
        return strange if strange and not mine else []
    first = min((*strange, *own), key=lambda box: (box.launched, box.reservation, box.id))
    return strange if first.id not in mine else []


def _await_token(aws: Aws, token: str) -> list[Box]:
    """Boxes of a token; EC2 may need a moment to know them."""
    for _ in range(_LOOKUPS):
        found = boxes_of_tokens(aws, [token])
        if found:
            return found
        aws.pace.wait(5.0)
    return []
