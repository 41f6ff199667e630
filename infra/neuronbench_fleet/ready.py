"""From started to usable: running, passing EC2's checks, and reachable by Systems Manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from neuronbench.redaction import redact
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import ASLEEP, GONE, Box, boxes_by_id, failed_checks, pings
from neuronbench_fleet.costs import period
from neuronbench_fleet.errors import AwsError, FleetError, Kind, classify_code

EVERY_S: Final = 5.0
_UNKNOWN_FOR_S: Final = 120.0
"""So long EC2 may not know of a box that it has just started."""
_LOST_TO_OTHERS: Final = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")


class BoxFailed(FleetError):
    """A box that will not become usable. `box`: which."""

    def __init__(self, box: str, message: str, *, kind: Kind = "failed", remedy: str = "") -> None:
        super().__init__(f"{box}: {message}", kind=kind, remedy=remedy)
        self.box = box


def await_ready(aws: Aws, ids: Sequence[str], *, timeout_s: float, progress: Callable[[str], None]) -> list[Box]:
    """Wait until all boxes are usable. Raises `BoxFailed` for the first one that ends, fails its checks, or is late."""
    start = aws.pace.now_s()
    while True:
        waited = aws.pace.now_s() - start
        boxes = {box.id: box for box in boxes_by_id(aws, ids)}
        for id_ in ids:
            if id_ not in boxes and waited > _UNKNOWN_FOR_S:
                raise BoxFailed(id_, f"EC2 does not know it {period(waited)} after its start")
        for box in boxes.values():
            if box.state in (*GONE, *ASLEEP):
                raise BoxFailed(box.id, f"{box.state} before it was ready: {_why(box)}", kind=_kind(box))
        running = [box.id for box in boxes.values() if box.state == "running"]
        online: dict[str, str] = {}
        if running:
            for id_, what in failed_checks(aws, running).items():
                raise BoxFailed(id_, f"fails a check of EC2: {what}", remedy="again: it will be other hardware")
            online = pings(aws, running)
            if len(running) == len(ids) and all(online.get(id_) == "Online" for id_ in running):
                return [boxes[id_] for id_ in ids]
        states = {
            id_: f"{boxes[id_].state}, Systems Manager: {online.get(id_) or 'not registered'}"
            if id_ in running
            else (boxes[id_].state if id_ in boxes else "not known yet")
            for id_ in ids
        }
        if waited > timeout_s:
            late = next((id_ for id_ in ids if online.get(id_) != "Online"), ids[0])
            raise BoxFailed(
                late,
                f"not usable after {period(waited)}: {states[late]}",
                remedy="its subnet needs a way to Systems Manager (NAT or endpoints), its role the"
                " rights of Session Manager and Run Command, its image the agent; slow images: a longer --ready-within",
            )
        progress(f"{period(waited)}: " + "; ".join(f"{id_} {state}" for id_, state in states.items()))
        aws.pace.wait(EVERY_S)


def keep_console(aws: Aws, box: str, folder: Path) -> Path | None:
    """Keep what a box printed while booting, without secrets; None where there is nothing, or no right to see it."""
    import base64

    try:
        output = aws.call("ec2", "get_console_output", InstanceId=box, Latest=False).get("Output")
    except AwsError:
        return None
    if not output:
        return None
    try:
        text = base64.b64decode(output, validate=True).decode("utf-8", "replace")
    except ValueError:  # boto3 has decoded it already
        text = output
    path = folder / f"console-{box}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(redact(text), encoding="utf-8")
    return path


def _why(box: Box) -> str:
    return box.reason or "EC2 gives no reason"


def _kind(box: Box) -> Kind:
    code = box.reason.partition(" ")[0].rstrip(":")
    if code in _LOST_TO_OTHERS:
        return "capacity"
    kind = classify_code(code) if code else "failed"
    return kind if kind in ("capacity", "quota", "auth") else "failed"
