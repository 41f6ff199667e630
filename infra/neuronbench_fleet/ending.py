"""`fleet down` and `fleet stop`, without their options: each step may be repeated, and what is left is looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench.words import counted
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import (
    ASLEEP,
    GONE,
    LIVE,
    Box,
    Left,
    boxes_by_id,
    left_over,
    list_boxes,
    terminate,
    wait_for,
)
from neuronbench_fleet.deployment import Deployment
from neuronbench_fleet.errors import AwsError, FleetError
from neuronbench_fleet.running import RunState, runs_on

_LOOKS: Final = 12
"""So often it is looked whether something is left: disks go a moment after their box, and listings lag behind."""


@dataclass(kw_only=True)
class Ending:
    """One `fleet down` or `fleet stop`."""

    aws: Aws
    deployment: Deployment
    fleet: str
    timeout_s: float
    say: Callable[[str], None]
    progress: Callable[[str], None]

    def down(self) -> tuple[list[Box], Left]:
        """End everything of the fleet. Returns the boxes that there were, and what is left all the same."""
        aws = self.aws
        there = list_boxes(aws, self.deployment.name, self.fleet, states=(*LIVE, *ASLEEP, "shutting-down"))
        left = left_over(aws, self.deployment.name, self.fleet)
        self._cancel(left.spot_requests)  # first: an open one would start another box
        ids = [box.id for box in there if box.state != "shutting-down"]
        if ids:
            self.say(f"{self._doing('ending', 'would end')} {', '.join(ids)}")
            terminate(aws, ids)
        self._delete(left.volumes)
        if aws.dry_run:
            return there, Left()
        if there:
            wait_for(aws, [box.id for box in there], GONE[1:], timeout_s=self.timeout_s, progress=self.progress)
        for _ in range(_LOOKS):
            left = left_over(aws, self.deployment.name, self.fleet)
            if not left:
                break
            late = [id_ for id_ in left.instances if id_ not in ids]
            if late:  # started while this ran, or listed late
                self.say(f"ending {', '.join(late)}")
                terminate(aws, late)
                ids += late
            self._cancel(left.spot_requests)
            self._delete(left.volumes)
            aws.pace.wait(5.0)
        return there, left

    def stop(self) -> tuple[list[Box], list[Box]]:
        """Stop what runs and can be stopped. Returns the boxes that are stopped then, and those that are not."""
        aws = self.aws
        there = list_boxes(aws, self.deployment.name, self.fleet, states=(*LIVE, *ASLEEP))
        stay = [box for box in there if box.purchase == "spot" and box.state in LIVE]
        ids = [box.id for box in there if box.state in LIVE and box not in stay]
        if ids:
            self.say(f"{self._doing('stopping', 'would stop')} {', '.join(ids)}")
            aws.call("ec2", "stop_instances", InstanceIds=ids)
        if aws.dry_run:
            return [box for box in there if box not in stay], stay
        rest = [box.id for box in there if box not in stay]
        late = wait_for(aws, rest, ("stopped", *GONE), timeout_s=self.timeout_s, progress=self.progress) if rest else []
        after = {box.id: box for box in boxes_by_id(aws, rest)} if rest else {}
        stopped = [after.get(box.id, box) for box in there if box not in stay and box.id not in {b.id for b in late}]
        return stopped, stay + late

    def refuse_if_unfinished(self, boxes: Sequence[Box], receipts: Path) -> None:
        """Raise `FleetError` where a run goes on, or receipts would be out of sight that nobody here has fetched."""
        live = {box.id: box.state for box in boxes if box.state in (*LIVE, *ASLEEP)}
        states = runs_on(self.aws, self.deployment, self.fleet, [box.id for box in boxes], receipts)
        going_on = [state for state in states if not state.finished and state.box in live]
        waiting = [state for state in states if state.unfetched]
        if not going_on and not waiting:
            return
        raise FleetError(
            "; ".join([*(_going_on(state, live[state.box]) for state in going_on), *map(_waiting, waiting)]),
            kind="conflict",
            remedy=f"wait for it (neuronbench fleet logs {self.fleet} --follow) and fetch (neuronbench fleet pull"
            f" {self.fleet}); --force ends the boxes now: what is in the bucket stays there, what is not is lost",
        )

    def _doing(self, real: str, planned: str) -> str:
        return planned if self.aws.dry_run else real

    def _cancel(self, requests: Sequence[str]) -> None:
        if not requests:
            return
        self.say(f"{self._doing('cancelling', 'would cancel')} spot requests {', '.join(requests)}")
        try:
            self.aws.call("ec2", "cancel_spot_instance_requests", SpotInstanceRequestIds=list(requests))
        except AwsError as error:
            if error.kind != "not_found":
                raise

    def _delete(self, volumes: Sequence[str]) -> None:
        for volume in volumes:
            self.say(f"{self._doing('deleting', 'would delete')} the disk {volume}, which no box has any more")
            try:
                self.aws.call("ec2", "delete_volume", VolumeId=volume)
            except AwsError as error:
                if error.kind not in ("not_found", "conflict"):
                    raise


def left_text(left: Left) -> str:
    """For people, with what each could be ended by."""
    parts = []
    if left.instances:
        parts.append(f"boxes: aws ec2 terminate-instances --instance-ids {' '.join(left.instances)}")
    parts += [f"a disk: aws ec2 delete-volume --volume-id {volume}" for volume in left.volumes]
    if left.spot_requests:
        ids = " ".join(left.spot_requests)
        parts.append(f"spot requests: aws ec2 cancel-spot-instance-requests --spot-instance-request-ids {ids}")
    return "".join(f"\n  {part}" for part in parts)


def _going_on(state: RunState, box_state: str) -> str:
    if box_state in ASLEEP:
        return (
            f"the run {state.run} is not finished on {state.box}, {box_state} ({state.last}): its disk may hold"
            " what was never sent; started again (fleet up), it goes on by itself"
        )
    return f"the run {state.run} goes on on {state.box} ({state.last})"


def _waiting(state: RunState) -> str:
    is_there = "is" if state.unfetched == 1 else "are"
    return f"{counted(state.unfetched, 'receipt')} of {state.run} {is_there} in the bucket and not here"
