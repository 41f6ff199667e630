"""A fleet of local boxes with a project on the desk: what tests of whole runs have in common."""

from __future__ import annotations

import datetime as dt
import sys
import threading
from pathlib import Path

from aws_stand_in import Deployed, StandIn
from fleet_project import Gates
from local_box import LIMIT_S, Boxes

from neuronbench.cli import main
from neuronbench.model import Outcome
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.contents import contents


class Desk(threading.Thread):
    """A command in a thread, so that the test can act meanwhile."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(daemon=True)
        self.arguments, self.status = arguments, -1
        self.start()

    def run(self) -> None:
        self.status = main(list(self.arguments))

    def wait(self) -> int:
        self.join(LIMIT_S)
        assert not self.is_alive(), f"{self.arguments} does not end"
        return self.status


class Lab:
    """A fleet of local boxes, a project on the desk, and the command."""

    def __init__(self, aws: StandIn, lab: Deployed, boxes: Boxes, root: Path, gates: Gates) -> None:
        self.aws, self.lab, self.boxes, self.root, self.gates = aws, lab, boxes, root, gates

    def box(self, *, usd_per_hour: str = "10 2026-11-30 test", **tags: str) -> str:
        """An instance as `fleet up` leaves it."""
        told = {
            "deployment": "lab", "fleet": "night", "kind": "inf2", "purchase": "spot", "usd_per_hour": usd_per_hour,
            "expires": (dt.datetime.now(dt.UTC) + dt.timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ"), **tags,
        }  # fmt: skip
        made = self.aws.client("ec2").run_instances(
            ImageId="ami-12c6146b", InstanceType="inf2.xlarge", MinCount=1, MaxCount=1,
            SubnetId=self.lab.subnets["us-west-2a"],
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": f"neuronbench:{name}", "Value": value} for name, value in told.items()],
                }
            ],
        )  # fmt: skip
        return str(made["Instances"][0]["InstanceId"])

    def command(self, *words: str, **options: str) -> tuple[str, ...]:
        given = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        return ("--root", str(self.root), "fleet", *words, *given)

    def run(self, *arguments: str, run: str = "", extra: tuple[str, ...] = ()) -> Desk:
        named = ("--run", run) if run else ()
        own = ("--setup", "true", "--python", sys.executable, *named, *extra)
        return Desk(*self.command("run", "night", *own), *(("--", *arguments) if arguments else ()))

    def receipts(self, root: Path) -> dict[str, object]:
        """Id → files of every receipt below a data root."""
        store = ReceiptStore(root / "receipts")
        return {header.receipt_id: contents(header.path) for header in store.headers()}

    def measured(self) -> list[str]:
        """Points of which this desk has a good receipt, in any order."""
        store = ReceiptStore(self.root / "mlruns" / "receipts")
        return sorted(header.point_id for header in store.headers(outcome=Outcome.OK))
