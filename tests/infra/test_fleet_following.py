"""Following a run where what is followed goes away: the box, its end unheard, or the right to look."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_stand_in import CommandResult, Deployed, Refusal, StandIn
from neuronbench_fleet import boxes, following, runs
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.deployment import find_deployment
from neuronbench_fleet.remote import bootstrap
from neuronbench_fleet.remote.pieces import Pieces
from neuronbench_fleet.runs import Asked

from neuronbench.model import Environment, FrozenMap, Outcome, Point, Record
from neuronbench.receipts import ReceiptStore
from neuronbench.shipping import ReceiptShelf
from neuronbench.weights import Blobs, LocalBlobs

EXPIRED = Refusal(400, "RequestExpired", "Request has expired.", "ExpiredTokenException", "ExpiredToken")
ASKED = Asked(
    run="r1", deployment="lab", fleet="night", kind="inf2", pytest_args=[], code={"sha256": "0" * 64, "key": "k"}
)


def tell(store: Blobs, folder: Path, boot: int, *, says: str, end: int | None, of: str = "i-1") -> None:
    """What an agent sends of one start, as it does: the console, then the events."""
    folder.mkdir(exist_ok=True)
    events: list[dict[str, Any]] = [{"at": f"2026-11-30T04:15:0{boot}+00:00", "kind": "boot", "boot": boot}]
    events += [{"at": "2026-11-30T04:16:00+00:00", "kind": "finished", "exit_code": end}] if end is not None else []
    for what, text in (("log", says), ("events", "".join(json.dumps(event) + "\n" for event in events))):
        file = folder / f"{what}-{boot}"
        file.write_text(text, encoding="utf-8")
        pieces = Pieces(file, box=of, what="log" if what == "log" else "events", boot=boot)
        pieces.cut(all_of_it=True)
        pieces.send(store, "r1")


@pytest.mark.parametrize("boots_before", [0, 1])
def test_a_run_that_ended_together_with_its_box_is_not_taken_for_lost(
    boots_before: int,
    lab: Deployed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ends within seconds of its (new) start, and `--after terminate` ends the box before anybody has looked."""
    store = LocalBlobs(tmp_path / "store")
    if boots_before:
        tell(store, tmp_path / "box", 1, says="once\n", end=None)
    paused: list[float] = []

    def pause(aws: Aws, seconds: float) -> None:
        paused.append(seconds)
        assert len(paused) < 5
        if len(paused) == 1:
            tell(store, tmp_path / "box", boots_before + 1, says="usage: pytest\n", end=4)

    monkeypatch.setattr(following, "pause", pause)
    monkeypatch.setattr(boxes, "STATE_EVERY_S", -1.0)  # EC2 is asked at the first look, and has no such box any more
    ended = following.follow(Aws(), store, ASKED, None, box="i-1")
    assert (ended.status, ended.lost) == (runs.PYTEST_OFFSET + 4, "")
    assert "usage: pytest" in capsys.readouterr().out


def test_the_last_of_what_a_run_printed_is_shown(
    lab: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LocalBlobs(tmp_path / "store")
    tell(store, tmp_path / "box", 1, says="", end=None)  # nothing printed yet, when it was looked at everything

    def pause(aws: Aws, seconds: float) -> None:
        if not (tmp_path / "more").exists():
            tell(store, tmp_path / "more", 1, says="E  wrong\n", end=None)
            more = tmp_path / "box" / "events-1"
            with more.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": "finished", "exit_code": 1}) + "\n")
            pieces = Pieces(more, box="i-1", what="events", boot=1)
            pieces.cut(all_of_it=True)
            pieces.send(store, "r1")

    monkeypatch.setattr(following, "pause", pause)
    assert following.follow(Aws(), store, ASKED, None, box="i-1").status == 1
    assert "E  wrong" in capsys.readouterr().out


@pytest.fixture
def box(aws: StandIn, lab: Deployed) -> str:
    """A box that has the run `r1`."""
    runs.write_asked(runs.bucket_of(Aws(), find_deployment(Aws(), lab.name)), ASKED)
    tags = {"deployment": "lab", "fleet": "night", "kind": "inf2", "purchase": "on-demand", "run": "r1"}
    made = aws.client("ec2").run_instances(
        ImageId="ami-12c6146b", InstanceType="inf2.xlarge", MinCount=1, MaxCount=1, SubnetId=lab.subnets["us-west-2a"],
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": f"neuronbench:{k}", "Value": v} for k, v in tags.items()]}
        ],
    )  # fmt: skip
    return str(made["Instances"][0]["InstanceId"])


@pytest.mark.parametrize("call", [("s3", "ListObjectsV2"), ("ec2", "DescribeInstances")])
def test_a_sign_in_that_expires_ends_the_watching_and_says_that_the_run_goes_on(
    call: tuple[str, str], aws: StandIn, box: str, fleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> str:
        aws.fault(*call, EXPIRED, times=None)
        return ""

    monkeypatch.setattr(runs, "start_on", start)
    monkeypatch.setattr(boxes, "STATE_EVERY_S", -1.0)
    ended = fleet("run", "night", "--run", "r1")
    assert ended.status == 5
    assert f"detached; r1 goes on on {box}" in ended.err
    assert "neuronbench fleet run night --run r1" in ended.err
    assert "expired" in ended.err
    if call[0] == "s3":
        for command in (("logs", "r1"), ("pull", "r1"), ("logs", "r1", "-f")):
            assert fleet(*command).status == 5, command


def test_receipts_that_cannot_be_kept_here_end_no_watching_and_are_told_of(
    aws: StandIn, lab: Deployed, box: str, fleet: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the desk is full; that of the box and the bucket are not."""
    kept = ReceiptStore(tmp_path / "box-receipts")
    session = kept.begin_session(command=[])
    point = Point(benchmark="b.py::b", lane="serving", backend="cpu", params=FrozenMap(), id="p")
    record = Record(point=point, session=session, started_at="2026-11-30T01:23:45+00:00", environment=Environment())
    staging = kept.open(record)
    record.close(Outcome.OK, ended_at="2026-11-30T01:23:46+00:00", duration_s=1.0)
    store = runs.bucket_of(Aws(), find_deployment(Aws(), lab.name))
    ReceiptShelf(store, "runs/r1/receipts/").put(kept.commit(record, staging))
    tell(store, tmp_path / "box", 1, says="all of it\n", end=0, of=box)
    fetch = ReceiptShelf.get

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs, "start_on", lambda *_, **__: "")
    monkeypatch.setattr(following, "pause", lambda *_: None)
    monkeypatch.setattr(ReceiptShelf, "get", full)
    ended = fleet("run", "night", "--run", "r1")
    assert ended.status == 1
    assert "all of it" in ended.out
    assert "not all receipts are here ([Errno 28] No space left on device)" in ended.err
    ended = fleet("pull", "r1")
    assert ended.status == 1
    assert "receipts cannot be kept in" in ended.err
    assert "make room" in ended.err
    monkeypatch.setattr(ReceiptShelf, "get", fetch)
    assert fleet("pull", "r1").status == 0


def test_a_run_that_a_box_refuses_does_not_leave_it_to_be_terminated(
    aws: StandIn, lab: Deployed, box: str, fleet: Callable[..., Any]
) -> None:
    """Another user's run goes on there, with --after keep: when it idles later it is to be stopped, with its disk."""
    store = runs.bucket_of(Aws(), find_deployment(Aws(), lab.name))
    runs.write_asked(store, dataclasses.replace(ASKED, run="r2", after="terminate"))
    said = "neuronbench: another run is on its way on this box: neuronbench-run-r1.service"
    aws.on_command(lambda _: CommandResult(code=bootstrap.EXIT_BUSY, stdout="", stderr=said))
    assert fleet("run", "night", "--run", "r2").status == 1
    asked = [r.parameters for r in aws.requests if r.operation == "ModifyInstanceAttribute"]
    assert [told["InstanceInitiatedShutdownBehavior.Value"] for told in asked] == ["terminate", "stop"]
    assert {"Key": "neuronbench:run", "Value": "r1"} in aws.instances()[0]["Tags"]


def test_a_box_that_goes_away_while_it_is_set_up_is_lost_at_once(
    aws: StandIn, box: str, fleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems Manager goes on to say `InProgress` of its command."""
    over = threading.Event()

    def held(_: object) -> CommandResult:
        over.wait(60)
        return CommandResult(code=0, stdout="", stderr="")

    paused: list[float] = []

    def pause(_: Aws, seconds: float) -> None:
        paused.append(seconds)
        assert len(paused) < 20, "it is waited for"
        aws.client("ec2").terminate_instances(InstanceIds=[box])

    aws.on_command(held)
    monkeypatch.setattr(runs, "pause", pause)
    monkeypatch.setattr(boxes, "STATE_EVERY_S", 0.0)
    try:
        ended = fleet("run", "night", "--run", "r1")
        assert ended.status == 7
        assert f"{box} is terminated" in ended.err
        assert "while the code is set up" in ended.err
        assert "neuronbench fleet run night --run r1" in ended.err
    finally:
        over.set()
