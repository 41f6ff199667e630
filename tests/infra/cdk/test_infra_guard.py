"""The guard's own code, as Lambda runs it, against a stand-in for EC2, Auto Scaling and Budgets."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.moto_api._internal import moto_api_backend
from neuronbench_infra import keys

FILE = Path(keys.__file__).parent / "guard_function" / "guard.py"
REGION = "us-west-2"
ACCOUNT = "1" * 12
CLOCK = {"source": "aws.events", "detail-type": "Scheduled Event"}
SPENT = {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": "AWS Budget Notification"}}]}

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": REGION,
    "MOTO_ACCOUNT_ID": ACCOUNT, "NEURONBENCH_DEPLOYMENT": "lab", "NEURONBENCH_MAX_HOURS": "24",
    "NEURONBENCH_BUDGET": "", "MOTO_EC2_LOAD_DEFAULT_AMIS": "false", "NEURONBENCH_ACCOUNT": ACCOUNT,
}  # fmt: skip


@pytest.fixture(scope="module")
def guard() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guard_of_lambda", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def cloud() -> Iterator[None]:
    """One stand-in and one client of each service: making them takes longer than all that is done with them."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in ENVIRONMENT.items():
            patch.setenv(key, value)
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        patch.delenv("AWS_PROFILE", raising=False)
        with mock_aws():
            patch.setattr(boto3, "client", functools.cache(boto3.client))
            yield


@pytest.fixture(autouse=True)
def account(cloud: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is there, and the guard is told the usual."""
    for key, value in ENVIRONMENT.items():
        monkeypatch.setenv(key, value)
    moto_api_backend.reset()


def in_hours(hours: float) -> str:
    instant = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def start(deployment: str = "lab", *, spot: bool = False, **tags: str) -> str:
    ec2 = boto3.client("ec2")
    image = ec2.register_image(Name="an image")["ImageId"]
    marks = {"neuronbench:deployment": deployment, **{f"neuronbench:{key}": value for key, value in tags.items()}}
    more: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}
    made = ec2.run_instances(
        ImageId=image, MinCount=1, MaxCount=1, InstanceType="inf2.xlarge", **more,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in marks.items()]}
        ],
    )  # fmt: skip
    return str(made["Instances"][0]["InstanceId"])


def state(*names: str) -> list[str]:
    found = boto3.client("ec2").describe_instances(InstanceIds=list(names))
    states = {each["InstanceId"]: each["State"]["Name"] for r in found["Reservations"] for each in r["Instances"]}
    return [states[name] for name in names]


def set_budget(monkeypatch: pytest.MonkeyPatch, limit: str, actual: str) -> None:
    """A budget; the stand-in computes no spending, so its answer is completed."""
    monkeypatch.setenv("NEURONBENCH_BUDGET", "lab-budget")
    boto3.client("budgets").create_budget(
        AccountId=ACCOUNT,
        Budget={
            "BudgetName": "lab-budget", "BudgetType": "COST", "TimeUnit": "MONTHLY",
            "BudgetLimit": {"Amount": limit, "Unit": "USD"},
        },
    )  # fmt: skip
    from moto.budgets.models import Budget

    known = Budget.to_dict

    def spending(self: Budget) -> dict[str, Any]:
        return {**known(self), "CalculatedSpend": {"ActualSpend": {"Amount": actual, "Unit": "USD"}}}

    monkeypatch.setattr(Budget, "to_dict", spending)


def make_group(desired: int, deployment: str = "lab") -> list[str]:
    """A group with so many boxes; their ids."""
    ec2, groups = boto3.client("ec2"), boto3.client("autoscaling")
    image = ec2.register_image(Name="an image")["ImageId"]
    ec2.create_launch_template(
        LaunchTemplateName="a-box", LaunchTemplateData={"ImageId": image, "InstanceType": "t3.small"}
    )
    groups.create_auto_scaling_group(
        AutoScalingGroupName="lab-trn2", MinSize=0, MaxSize=4, DesiredCapacity=desired,
        LaunchTemplate={"LaunchTemplateName": "a-box", "Version": "1"}, AvailabilityZones=[f"{REGION}a"],
        Tags=[{"Key": "neuronbench:deployment", "Value": deployment, "PropagateAtLaunch": True}],
    )  # fmt: skip
    return [each["InstanceId"] for each in group()["Instances"]]


def group() -> dict[str, Any]:
    return boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"][0]


def test_the_clock_stops_what_has_expired_and_nothing_else(
    guard: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    over, running = start(expires=in_hours(-0.1)), start(expires=in_hours(3))
    untagged, other = start(), start("other", expires=in_hours(-5))
    assert guard.handler(CLOCK, None) == {"done": {over: "stopped"}}
    assert state(over, running, untagged, other) == ["stopped", "running", "running", "running"]
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == over
    assert "expired at" in told["because"]
    assert guard.handler(CLOCK, None) == {"done": {}}


def test_spot_is_terminated_since_it_cannot_be_stopped(guard: ModuleType) -> None:
    box = start(spot=True, expires=in_hours(-1))
    assert guard.handler(CLOCK, None) == {"done": {box: "terminated"}}


@pytest.mark.parametrize("tag", [{}, {"expires": "soon"}, {"expires": ""}])
def test_a_box_that_does_not_say_when_it_expires_has_so_many_hours(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch, tag: dict[str, str]
) -> None:
    box = start(**tag)
    assert guard.handler(CLOCK, None) == {"done": {}}
    monkeypatch.setenv("NEURONBENCH_MAX_HOURS", "0")
    assert guard.handler(CLOCK, None) == {"done": {box: "stopped"}}


def test_a_box_that_may_run_longer_does(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONBENCH_MAX_HOURS", "0")
    start(expires=in_hours(90))
    assert guard.handler(CLOCK, None) == {"done": {}}


def test_the_budgets_message_stops_all_boxes_of_the_deployment(guard: ModuleType) -> None:
    boxes = [start(expires=in_hours(9)), start(spot=True, expires=in_hours(9))]
    other = start("other")
    guard.handler(SPENT, None)
    assert state(*boxes, other) == ["stopped", "terminated", "running"]


def test_while_the_budget_is_spent_no_box_lives_long(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    set_budget(monkeypatch, "100", "100.01")
    box = start(expires=in_hours(9))
    assert guard.handler(CLOCK, None) == {"done": {box: "stopped"}}


def test_a_raised_budget_counts_at_once(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    set_budget(monkeypatch, "200", "100.01")
    start(expires=in_hours(9))
    assert guard.handler(CLOCK, None) == {"done": {}}


def test_a_budget_that_cannot_be_read_is_an_error_after_the_rest_is_done(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURONBENCH_BUDGET", "gone")
    over, running = start(expires=in_hours(-1)), start(expires=in_hours(9))
    with pytest.raises(RuntimeError, match="cannot look up the budget"):
        guard.handler(CLOCK, None)
    assert state(over, running) == ["stopped", "running"]


def test_one_box_that_cannot_be_stopped_does_not_save_the_others(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = [start(expires=in_hours(-1)) for _ in range(3)]
    refuse(monkeypatch, boxes[0], "InternalError")
    with pytest.raises(RuntimeError, match=f"cannot stop {boxes[0]}"):
        guard.handler(CLOCK, None)
    assert state(*boxes) == ["running", "stopped", "stopped"]


def refuse(monkeypatch: pytest.MonkeyPatch, box: str, code: str) -> None:
    """Have EC2 not stop that box."""
    ec2 = boto3.client("ec2")
    known = ec2.stop_instances

    def stop(InstanceIds: list[str]) -> Any:
        if InstanceIds == [box]:
            raise ClientError({"Error": {"Code": code, "Message": "not now"}}, "StopInstances")
        return known(InstanceIds=InstanceIds)

    monkeypatch.setattr(ec2, "stop_instances", stop)


def test_a_box_that_cannot_be_stopped_at_all_is_terminated(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    box, other = start(expires=in_hours(-1)), start(expires=in_hours(-1))
    refuse(monkeypatch, box, "UnsupportedOperation")
    assert guard.handler(CLOCK, None) == {"done": {box: "terminated", other: "stopped"}}
    assert state(box, other) == ["terminated", "stopped"]


def in_a_block(monkeypatch: pytest.MonkeyPatch, *boxes: str) -> None:
    """Have EC2 say that those boxes are in a Capacity Block; the stand-in knows none."""
    ec2 = boto3.client("ec2")
    known = ec2.get_paginator

    class Pages:
        def paginate(self, **asked: Any) -> Any:
            for page in known("describe_instances").paginate(**asked):
                for each in (each for reservation in page["Reservations"] for each in reservation["Instances"]):
                    if each["InstanceId"] in boxes:
                        each["InstanceLifecycle"] = "capacity-block"
                yield page

    monkeypatch.setattr(ec2, "get_paginator", lambda name: Pages() if name == "describe_instances" else known(name))


def test_what_is_paid_already_is_not_stopped_for_money(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Capacity Block counts on the day it is bought: the budget would stop the very boxes that it was spent on."""
    paid, hourly, over = start(expires=in_hours(9)), start(expires=in_hours(9)), start(expires=in_hours(-1))
    in_a_block(monkeypatch, paid, over)
    guard.handler(SPENT, None)
    assert state(paid, hourly, over) == ["running", "stopped", "stopped"]


def test_a_group_wants_one_less_for_a_box_whose_time_is_over(guard: ModuleType) -> None:
    first, second = make_group(2)
    boto3.client("ec2").create_tags(
        Resources=[first], Tags=[{"Key": "neuronbench:expires", "Value": in_hours(-1)}]
    )  # fmt: skip
    guard.handler(CLOCK, None)
    assert group()["DesiredCapacity"] == 1
    assert [each["InstanceId"] for each in group()["Instances"]] == [second]


def test_the_budget_empties_groups_before_it_stops_boxes(guard: ModuleType) -> None:
    make_group(2)
    guard.handler(SPENT, None)
    assert (group()["MinSize"], group()["DesiredCapacity"], group()["Instances"]) == (0, 0, [])


def test_another_deployments_group_is_left_alone(guard: ModuleType) -> None:
    boxes = make_group(1, "other")
    guard.handler(SPENT, None)
    guard.handler(gone(boxes[0]), None)
    assert group()["DesiredCapacity"] == 1


def gone(name: str) -> dict[str, Any]:
    return {
        "source": "aws.ec2",
        "detail-type": "EC2 Instance State-change Notification",
        "detail": {"instance-id": name, "state": "shutting-down"},
    }


def test_a_box_that_shut_itself_down_is_not_started_again_by_its_group(guard: ModuleType) -> None:
    (box,) = make_group(1)
    assert guard.handler(gone(box), None) == {"done": {box: "terminated, its group wants one less"}}
    assert group()["DesiredCapacity"] == 0


def test_a_box_without_a_group_and_an_unknown_one_are_nobodys_business(guard: ModuleType) -> None:
    assert guard.handler(gone(start()), None) == {"done": {}}
    assert guard.handler(gone("i-0123456789abcdef0"), None) == {"done": {}}
