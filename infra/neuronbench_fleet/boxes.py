"""Boxes as EC2 and SSM see them: found by tags, waited for, stopped and ended, each step safe to repeat."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuronbench_fleet.aws import Aws
from neuronbench_fleet.costs import Rate, rate_from_tag, spent_usd
from neuronbench_fleet.errors import TRANSIENT, AwsError, BoxLost, UsageError

TAG: Final = "neuronbench:"
LIVE: Final = ("pending", "running")
ASLEEP: Final = ("stopping", "stopped")
GONE: Final = ("shutting-down", "terminated")
STATE_EVERY_S: Final = 30.0
"""Between two questions to EC2 whether a box is still there."""
_FILTERED: Final = 200
"""Values that EC2 takes for a filter."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_AT: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


@dataclass(frozen=True, kw_only=True)
class Box:
    """One instance of a deployment."""

    id: str
    fleet: str
    kind: str
    state: str
    """EC2's word: pending, running, stopping, stopped, shutting-down, terminated."""
    zone: str
    instance_type: str
    purchase: str
    launched: dt.datetime
    """The last start, not the first."""
    ended: dt.datetime | None
    """When it was stopped or terminated, where EC2 says so."""
    reason: str
    """Code and message of EC2 for a state that nobody here asked for."""
    expires: dt.datetime | None
    rate: Rate | None
    max_usd: float | None
    hours_before: float
    """Hours it ran before its last start."""
    run: str
    reservation: str
    spot_request: str
    token: str
    tags: Mapping[str, str]

    def hours(self, now: dt.datetime) -> float:
        """Hours that were paid for, all starts together."""
        end = now if self.state in (*LIVE, "stopping") else self.ended
        last = 0.0 if end is None else max((end - self.launched).total_seconds() / 3600, 0.0)
        return self.hours_before + last

    def spent_usd(self, now: dt.datetime) -> float | None:
        """What it has cost so far, without its disk; None where the price is not known."""
        return spent_usd(self.rate, self.hours(now))


def checked_name(name: str) -> str:
    """`name`, if it can be a fleet's. Raises `UsageError`."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"the name of a fleet: expected up to 40 letters, digits, dots, dashes, underscores; found {name!r}"
        )
    return name


def list_boxes(aws: Aws, deployment: str, fleet: str | None = None, *, states: Sequence[str] = ()) -> list[Box]:
    """Boxes of a deployment or of one fleet, the oldest first; ended ones as long as EC2 remembers them."""
    filters = tag_filters(deployment, fleet)
    if states:
        filters.append({"Name": "instance-state-name", "Values": list(states)})
    return _boxes(aws.pages("ec2", "describe_instances", "Reservations", Filters=filters))


def boxes_of_tokens(aws: Aws, tokens: Sequence[str]) -> list[Box]:
    """Boxes that requests with these ClientTokens started, also when their answers were lost."""
    if not tokens:
        return []
    filters = [{"Name": "client-token", "Values": list(tokens[-_FILTERED:])}]
    return _boxes(aws.pages("ec2", "describe_instances", "Reservations", Filters=filters))


def boxes_by_id(aws: Aws, ids: Sequence[str]) -> list[Box]:
    """These boxes; EC2 may not know of one yet that it has just started."""
    try:
        return _boxes(aws.pages("ec2", "describe_instances", "Reservations", InstanceIds=list(ids)))
    except AwsError as error:
        if error.kind == "not_found":
            return []
        raise


def lost(aws: Aws, id_: str) -> str:
    """What became of a box that does not run any more; empty while it does, or nobody knows."""
    if not id_:
        return ""
    try:
        found = boxes_by_id(aws, [id_])
    except AwsError as error:
        if error.kind in TRANSIENT:
            return ""
        raise
    if found and found[0].state in LIVE:
        return ""
    if not found:
        return f"{id_} is gone"
    reason = f" ({found[0].reason})" if found[0].reason else ""
    return f"{id_} is {found[0].state}{reason}"


def still_there(aws: Aws, id_: str, looked: float, doing: str) -> float:
    """Raise `BoxLost` for a box that runs no more: what Systems Manager was to do there stays `InProgress` for an hour.

    EC2 is asked now and then; `looked`, and what is returned, is when it was asked last, by the pace's clock.
    """
    if aws.pace.now_s() - looked < STATE_EVERY_S:
        return looked
    if gone := lost(aws, id_):
        raise BoxLost(gone, doing)
    return aws.pace.now_s()


def pings(aws: Aws, ids: Sequence[str]) -> dict[str, str]:
    """Box → what Systems Manager says of it (`Online`, `ConnectionLost`); boxes it has never heard of are missing."""
    if not ids:
        return {}
    filters = [{"Key": "InstanceIds", "Values": list(ids)}]
    return {
        str(found["InstanceId"]): str(found.get("PingStatus", ""))
        for found in aws.pages("ssm", "describe_instance_information", "InstanceInformationList", Filters=filters)
    }


def failed_checks(aws: Aws, ids: Sequence[str]) -> dict[str, str]:
    """Box → which of EC2's own checks it fails; healthy boxes and those still being checked are missing."""
    found = aws.call("ec2", "describe_instance_status", InstanceIds=list(ids), IncludeAllInstances=True)
    bad: dict[str, str] = {}
    for status in found.get("InstanceStatuses", ()):
        for name in ("InstanceStatus", "SystemStatus"):
            if status.get(name, {}).get("Status") == "impaired":
                bad[str(status["InstanceId"])] = f"{name} is impaired"
    return bad


def tag_filters(deployment: str, fleet: str | None) -> list[dict[str, Any]]:
    """Filters of EC2 for what belongs to a deployment, or to one of its fleets."""
    filters = [{"Name": f"tag:{TAG}deployment", "Values": [deployment]}]
    if fleet is not None:
        filters.append({"Name": f"tag:{TAG}fleet", "Values": [fleet]})
    return filters


def terminate(aws: Aws, ids: Sequence[str]) -> None:
    """Ask EC2 to end boxes; those that are gone already are no error."""
    left = sorted(set(ids))
    if not left:
        return
    try:
        aws.call("ec2", "terminate_instances", InstanceIds=left)
    except AwsError as error:
        if error.kind != "not_found":
            raise
        for one in left if len(left) > 1 else ():  # one that is gone must not save the others
            terminate(aws, [one])


def wait_for(
    aws: Aws, ids: Sequence[str], states: Sequence[str], *, timeout_s: float, progress: Callable[[str], None]
) -> list[Box]:
    """Wait until all boxes are in one of `states`; a box that EC2 has forgotten is in all of them.

    Returns those that are not when the time is over.
    """
    start = aws.pace.now_s()
    late: list[Box] = []
    while True:
        late = [box for box in boxes_by_id(aws, ids) if box.state not in states]
        waited = aws.pace.now_s() - start
        if not late or waited > timeout_s:
            return late
        progress(f"{waited:.0f} s: " + ", ".join(f"{box.id} {box.state}" for box in late))
        aws.pace.wait(5.0)


@dataclass(frozen=True, kw_only=True)
class Left:
    """What of a fleet is still there, and costs."""

    instances: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    """Disks without a box."""
    volumes_gib: int = 0
    spot_requests: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.instances or self.volumes or self.spot_requests)


def left_over(aws: Aws, deployment: str, fleet: str | None) -> Left:
    """Everything tagged as that fleet's that is not gone."""
    filters = tag_filters(deployment, fleet)
    boxes = list_boxes(aws, deployment, fleet, states=(*LIVE, *ASLEEP, "shutting-down"))
    volumes = [
        volume
        for volume in aws.pages("ec2", "describe_volumes", "Volumes", Filters=filters)
        if volume.get("State") in ("available", "error", "creating")
    ]
    wanted = [*filters, {"Name": "state", "Values": ["open", "active"]}]
    requests = aws.pages("ec2", "describe_spot_instance_requests", "SpotInstanceRequests", Filters=wanted)
    return Left(
        instances=tuple(box.id for box in boxes),
        volumes=tuple(str(volume["VolumeId"]) for volume in volumes),
        volumes_gib=sum(int(volume.get("Size") or 0) for volume in volumes),
        spot_requests=tuple(str(request["SpotInstanceRequestId"]) for request in requests),
    )


def _boxes(reservations: Any) -> list[Box]:
    found = [
        _box(instance, str(reservation.get("ReservationId", "")))
        for reservation in reservations
        for instance in reservation.get("Instances", ())
    ]
    return sorted(found, key=lambda box: (box.launched, box.reservation, box.id))


def _box(found: Mapping[str, Any], reservation: str) -> Box:
    tags = {str(tag["Key"]): str(tag["Value"]) for tag in found.get("Tags", ())}
    reason = found.get("StateReason") or {}
    return Box(
        id=str(found["InstanceId"]),
        fleet=tags.get(f"{TAG}fleet", ""),
        kind=tags.get(f"{TAG}kind", ""),
        state=str(found["State"]["Name"]),
        zone=str(found.get("Placement", {}).get("AvailabilityZone") or ""),
        instance_type=str(found.get("InstanceType", "")),
        purchase=tags.get(f"{TAG}purchase", "spot" if found.get("InstanceLifecycle") == "spot" else ""),
        launched=found["LaunchTime"],
        ended=_instant(_AT.search(str(found.get("StateTransitionReason") or ""))),
        reason=_reason(str(reason.get("Code") or ""), str(reason.get("Message") or "")),
        expires=_parsed(tags.get(f"{TAG}expires")),
        rate=rate_from_tag(tags.get(f"{TAG}usd_per_hour")),
        max_usd=_number(tags.get(f"{TAG}max_usd")),
        hours_before=_number(tags.get(f"{TAG}hours_before")) or 0.0,
        run=tags.get(f"{TAG}run", ""),
        reservation=reservation,
        spot_request=str(found.get("SpotInstanceRequestId") or ""),
        token=str(found.get("ClientToken") or ""),
        tags=tags,
    )


def _reason(code: str, message: str) -> str:
    return message if message.startswith(code) else f"{code}: {message}".strip(": ")


def _instant(match: re.Match[str] | None) -> dt.datetime | None:
    if match is None:
        return None
    return dt.datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=dt.UTC)


def _parsed(text: str | None) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
