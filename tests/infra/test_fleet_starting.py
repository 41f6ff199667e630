"""`fleet up` interrupted, by Ctrl-C, by signals, and as two processes."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from aws_stand_in import DROPPED, LOST, Answer, Deployed, Request, StandIn
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import LIVE
from neuronbench_fleet.capacity import Limits, Order
from neuronbench_fleet.deployment import find_box, find_deployment
from neuronbench_fleet.starting import Starting


def starting(
    folder: Path, *, max_hours: float = 12.0, zone: str = "us-west-2a", said: list[str] | None = None
) -> Starting:
    aws = Aws()
    there = find_deployment(aws, "lab")
    order = Order(
        deployment=there, box=find_box(aws, there, "inf2"), fleet="night", instance_type="inf2.xlarge", count=1,
        limits=Limits(max_hours=max_hours, wait_s=60.0),
    )  # fmt: skip
    say = (said if said is not None else []).append
    return Starting(
        aws=aws, order=order, purchases=["on-demand"], zones=[zone], any_type=True, ready_within_s=600.0,
        folder=folder, say=say, progress=lambda _: None, confirm=lambda _: False,
    )  # fmt: skip


def outcome_of(one: Starting) -> str:
    one.run()
    return one.outcome


def interrupt(_: Request) -> None:
    """Ctrl-C, while the command waits for an answer."""
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_while_a_box_boots_ends_it(aws: StandIn, lab: Deployed, tmp_path: Path) -> None:
    aws.gaps.default_ping = ""
    aws.before("ssm", "DescribeInstanceInformation", interrupt, skip=2)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        starting(tmp_path, said=said).run()
    assert aws.operations().count("RunInstances") == 1
    assert aws.instances(*LIVE) == []
    assert any(text.startswith("ending what was started") for text in said)


def test_ctrl_c_before_the_answer_of_the_start_finds_the_box_by_its_token(
    aws: StandIn, lab: Deployed, tmp_path: Path
) -> None:
    aws.after("ec2", "RunInstances", interrupt)
    with pytest.raises(KeyboardInterrupt):
        starting(tmp_path).run()
    assert len(aws.instances()) == 1
    assert aws.instances(*LIVE) == []


def test_a_network_that_is_gone_for_good_says_how_to_end_what_may_run(
    aws: StandIn, lab: Deployed, tmp_path: Path
) -> None:
    aws.fault("ec2", "RunInstances", LOST, times=None)
    aws.after("ec2", "RunInstances", lambda _: aws.fault("ec2", "DescribeInstances", DROPPED, times=None) and None)
    said: list[str] = []
    with pytest.raises(Exception, match="ConnectionClosedError"):
        starting(tmp_path, said=said).run()
    assert len(aws.instances(*LIVE)) == 1
    assert "NOT ended" in said[-1]
    assert "neuronbench fleet down night --force --region us-west-2" in said[-1]


def test_a_box_that_was_woken_is_stopped_again(aws: StandIn, lab: Deployed, tmp_path: Path) -> None:
    starting(tmp_path).run()
    (box,) = aws.instances(*LIVE)
    aws.client("ec2").stop_instances(InstanceIds=[box["InstanceId"]])
    aws.before("ssm", "DescribeInstanceInformation", interrupt)
    with pytest.raises(KeyboardInterrupt):
        starting(tmp_path).run()
    assert [one["InstanceId"] for one in aws.instances("stopped")] == [box["InstanceId"]]


def test_who_comes_second_yields(aws: StandIn, lab: Deployed, tmp_path: Path) -> None:
    """Somebody else's box of the same name turns up that was started before: EC2's listings lag behind."""
    from moto.backends import get_backend
    from moto.core.models import DEFAULT_ACCOUNT_ID

    starting(tmp_path, zone="us-west-2b").run()
    (first,) = aws.instances(*LIVE)
    (box,) = get_backend("ec2")[DEFAULT_ACCOUNT_ID]["us-west-2"].all_instances()
    box.launch_time -= dt.timedelta(minutes=1)
    nothing = b"<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"
    aws.before("ec2", "DescribeInstances", lambda _: Answer(body=nothing), times=2)  # not listed yet
    with pytest.raises(Exception, match="somebody else started night at the same time, and was first"):
        starting(tmp_path, max_hours=3.0).run()
    assert [box["InstanceId"] for box in aws.instances(*LIVE)] == [first["InstanceId"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["ctrl-c", "terminal gone"])
def test_a_command_that_is_interrupted_leaves_nothing(
    aws: StandIn, lab: Deployed, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "neuronbench.toml").touch()
    aws.gaps.default_ping = ""
    booting = threading.Event()
    aws.before("ssm", "DescribeInstanceInformation", lambda _: booting.set())
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "neuronbench", "--root", str(tmp_path), "fleet", "up", "night", "--kind", "inf2"]
    process = subprocess.Popen(
        command, env={**inherited, "NEURONBENCH_FLEET_PACE": "0.01"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert booting.wait(120), process.communicate(timeout=10)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, (out, err)
    assert "ending what was started and is not usable" in out
    assert aws.instances(*LIVE) == []


def test_signals_are_handled_as_before_when_it_is_over(aws: StandIn, lab: Deployed, tmp_path: Path) -> None:
    before: list[Any] = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    starting(tmp_path).run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
