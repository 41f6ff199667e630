"""From started to ended: boxes that die, sleep, are late, are somebody else's; and that nothing is left behind."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_stand_in import CAPACITY, FORBIDDEN, LOST, THROTTLED, Answer, Deployed, Request, StandIn
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import ASLEEP, GONE, LIVE, Box, list_boxes
from neuronbench_fleet.costs import Rate, money, period, rate_from_tag, seconds_of
from neuronbench_fleet.shown import table, total_text, until, warnings

Fleet = Callable[..., Any]
UP = ("up", "night", "--kind", "inf2")


def started(aws: StandIn) -> int:
    return aws.operations().count("RunInstances")


def end(aws: StandIn, *_: Any) -> None:
    """EC2 takes boxes away."""
    aws.client("ec2").terminate_instances(InstanceIds=[box["InstanceId"] for box in aws.instances(*LIVE)])


def retag(aws: StandIn, key: str, value: str) -> None:
    ids = [box["InstanceId"] for box in aws.instances()]
    aws.client("ec2").create_tags(Resources=ids, Tags=[{"Key": f"neuronbench:{key}", "Value": value}])


# -- up again


def test_the_same_command_again_finds_what_is_there(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    again = fleet(*UP, "--json")
    assert (again.status, again.json["outcome"], started(aws)) == (0, "there", 1)
    other = fleet("up", "night", "--kind", "trn1")
    assert other.status == 1
    assert "is there with boxes of kind inf2, not trn1" in other.err
    other = fleet(*UP, "--instance-type", "inf2.8xlarge")
    assert (other.status, started(aws)) == (1, 1)
    more = fleet(*UP, "--count", "2", "--json")
    assert (more.status, len(more.json["boxes"]), started(aws)) == (0, 2, 2)
    assert fleet("down", "night").status == 0
    assert aws.instances(*LIVE, *ASLEEP) == []
    anew = fleet(*UP, "--json")  # with a token of its own: that of the first time belongs to a box that is gone
    assert (anew.json["outcome"], len(aws.instances(*LIVE))) == ("started", 1)


def test_a_stopped_box_runs_again_with_new_limits_and_its_hours(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP, "--max-usd", "4").status == 0
    stopped = fleet("stop", "night", "--json")
    assert [box["state"] for box in stopped.json["stopped"]] == ["stopped"]
    assert fleet("stop", "night").status == 0
    retag(aws, "hours_before", "3")
    retag(aws, "expires", "2026-01-01T00:00:00Z")
    aws.fault("ec2", "StartInstances", CAPACITY, times=2)
    woken = fleet(*UP, "--max-hours", "5", "--json")
    assert (woken.status, woken.json["outcome"], started(aws)) == (0, "woken", 1)
    (box,) = woken.json["boxes"]
    assert box["state"] == "running"
    assert box["hours"] >= 3
    assert box["usd"] == pytest.approx(box["hours"] * 0.7582, rel=1e-3)
    assert box["expires"] > box["launched"]
    assert box["max_usd"] is None  # that limit was the first start's
    assert fleet("stop", "night").status == 0
    (box,) = fleet(*UP, "--max-usd", "2", "--json").json["boxes"]
    assert box["max_usd"] == pytest.approx(2 + 3 * 0.7582, rel=0.05)  # as its cost: of all starts together
    assert fleet("status", "night", "--json").json["warnings"] == []


def test_a_box_that_cannot_be_woken_stays_asleep(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    assert fleet("stop", "night").status == 0
    aws.fault("ec2", "StartInstances", CAPACITY, times=None)
    assert fleet(*UP, "--wait", "1m").status == 3
    assert len(aws.instances("stopped")) == 1


# -- until it is ready


def test_a_box_that_dies_before_it_is_ready_is_replaced_where_capacity_was_the_reason(
    aws: StandIn, lab: Deployed, fleet: Fleet
) -> None:
    aws.gaps.default_ping = ""
    taken = "<code>Server.InsufficientInstanceCapacity</code><message>Server.InsufficientInstanceCapacity: no</message>"

    def spoil(_: Request) -> None:
        aws.gaps.default_ping = "Online"
        end(aws)
        reason(aws, taken)

    aws.before("ssm", "DescribeInstanceInformation", spoil, skip=1)
    ended = fleet(*UP)
    assert ended.status == 0, ended
    assert "terminated before it was ready" in ended.out
    assert len(aws.instances(*LIVE)) == 1
    assert started(aws) == 2


def reason(aws: StandIn, xml: str) -> None:
    """Let EC2 say why boxes ended."""
    from moto.backends import get_backend
    from moto.core.models import DEFAULT_ACCOUNT_ID

    code = xml.partition("<code>")[2].partition("<")[0]
    for box in get_backend("ec2")[DEFAULT_ACCOUNT_ID]["us-west-2"].all_instances():
        box.state_reason.code, box.state_reason.message = code, f"{code}: no"


def test_a_box_that_dies_for_another_reason_ends_the_command(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.default_ping = ""
    aws.before("ssm", "DescribeInstanceInformation", lambda _: end(aws), skip=1)
    ended = fleet(*UP)
    assert ended.status == 1
    assert "terminated before it was ready: Client.UserInitiatedShutdown" in ended.err
    assert aws.instances(*LIVE) == []


def test_a_box_that_never_answers_is_ended_and_what_it_printed_is_kept(
    aws: StandIn, lab: Deployed, fleet: Fleet, tmp_path: Path
) -> None:
    aws.gaps.default_ping = ""
    ended = fleet(*UP, "--ready-within", "3m")
    assert ended.status == 1
    assert "running, Systems Manager: not registered" in ended.err
    assert "rights of Session Manager" in ended.err
    assert aws.instances(*LIVE) == []
    (console,) = (tmp_path / "mlruns" / "fleet" / "night").glob("console-i-*.txt")
    assert console.stat().st_size > 0


def test_a_box_that_fails_a_check_is_ended(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    def impaired(_: Request) -> Answer:
        (box,) = aws.instances(*LIVE)
        status = (
            f"<item><instanceId>{box['InstanceId']}</instanceId><systemStatus><status>impaired</status></systemStatus>"
        )
        found = f"<instanceStatusSet>{status}</item></instanceStatusSet>"
        return Answer(body=f"<DescribeInstanceStatusResponse>{found}</DescribeInstanceStatusResponse>".encode())

    aws.before("ec2", "DescribeInstanceStatus", impaired)
    ended = fleet(*UP)
    assert ended.status == 1
    assert "SystemStatus is impaired" in ended.err
    assert aws.instances(*LIVE) == []


def test_a_right_that_is_missing_after_the_start_leaves_nothing(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.fault("ssm", "DescribeInstanceInformation", FORBIDDEN, times=None)
    ended = fleet(*UP)
    assert ended.status == 5
    assert "ending what was started" in ended.out
    assert aws.instances(*LIVE) == []


def test_a_box_that_cannot_be_ended_is_named_with_the_way_to_end_it(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.fault("ssm", "DescribeInstanceInformation", FORBIDDEN, times=None)
    aws.fault("ec2", "TerminateInstances", FORBIDDEN, times=None)
    ended = fleet(*UP)
    (box,) = aws.instances(*LIVE)
    assert ended.status == 5
    assert "NOT ended" in ended.out
    assert f"aws ec2 terminate-instances --region us-west-2 --instance-ids {box['InstanceId']}" in ended.out


# -- two at a time


def test_two_that_start_the_same_fleet_get_one_box(aws: StandIn, lab: Deployed, tmp_path: Path) -> None:
    """Both look, see nothing, and start: a barrier holds them at RunInstances until both are there."""
    from test_fleet_starting import outcome_of, starting

    meet = threading.Barrier(2, timeout=60)

    def wait(_: Request) -> None:
        meet.wait()

    aws.before("ec2", "RunInstances", wait, times=2)
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda hours=hours: results.append(outcome_of(starting(tmp_path, max_hours=hours))))
        for hours in (3.0, 4.0)  # other limits, so other tags: the tokens are equal, the requests are not
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(results) == ["started", "there"]
    assert len(aws.instances(*LIVE)) == 1


# -- down


def test_down_ends_everything_and_says_what_it_cost(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP, "--count", "2").status == 0
    assert fleet("up", "other", "--kind", "inf2").status == 0
    aws.fault("ec2", "TerminateInstances", LOST, times=2)
    aws.fault("ec2", "DescribeInstances", THROTTLED, times=4)
    planned = fleet("down", "night", "--dry-run", "--json")
    assert len(aws.instances(*LIVE)) == 3
    ended = fleet("down", "night", "--json")
    assert ended.status == 0, ended
    assert len(ended.json["ended"]) == 2
    assert ended.json["left"] == {}
    assert [call["operation"] for call in planned.json["planned"]] == ["TerminateInstances"]
    assert set(aws.operations("ec2", changes=True)) == {"RunInstances", "TerminateInstances"}
    (rest,) = aws.instances(*LIVE)
    assert {"Key": "neuronbench:fleet", "Value": "other"} in rest["Tags"]
    again = fleet("down", "night")
    assert (again.status, again.out) == (0, "nothing of night is there in us-west-2\n")


def test_down_deletes_disks_that_no_box_has(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    marks = [{"Key": "neuronbench:deployment", "Value": "lab"}, {"Key": "neuronbench:fleet", "Value": "night"}]
    aws.client("ec2").create_volume(
        AvailabilityZone="us-west-2a", Size=7, TagSpecifications=[{"ResourceType": "volume", "Tags": marks}]
    )
    told = fleet("status", "night")
    assert "7 GiB of disks without a box" in told.err
    aws.fault("ec2", "DeleteVolume", LOST)
    assert fleet("down", "night").status == 0
    assert fleet("status", "night", "--json").json["volumes"] == []


def test_down_that_leaves_something_says_what_and_fails(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    (box,) = aws.instances(*LIVE)
    done = b"<TerminateInstancesResponse><instancesSet/></TerminateInstancesResponse>"
    aws.before("ec2", "TerminateInstances", lambda _: Answer(body=done), times=None)  # says yes and does nothing
    ended = fleet("down", "night", "--within", "1m")
    assert ended.status == 1
    assert f"aws ec2 terminate-instances --instance-ids {box['InstanceId']}" in ended.err


def test_down_without_the_right_to_says_so(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    aws.fault("ec2", "TerminateInstances", FORBIDDEN, times=None)
    assert fleet("down", "night").status == 5


def test_down_waits_for_a_run_unless_forced(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    (box,) = aws.instances(*LIVE)
    event(aws, lab, box["InstanceId"], "cost", 1)
    ended = fleet("down", "night")
    assert ended.status == 1
    assert f"the run night-20261130-041503-9f3a goes on on {box['InstanceId']} (cost)" in ended.err
    assert "night-20261130-041503-9f3a: cost" in " ".join(fleet("status").out.split())
    event(aws, lab, box["InstanceId"], "finished", 2)
    key = "runs/night-20261130-041503-9f3a/receipts/20261130-0415/a-b--r1/MANIFEST.json"
    aws.client("s3").put_object(Bucket=lab.bucket, Key=key, Body=b"{}")
    ended = fleet("down", "night")
    assert (ended.status, "1 receipt of night-20261130-041503-9f3a is in the bucket" in ended.err) == (1, True)
    assert len(aws.instances(*LIVE)) == 1
    assert fleet("down", "night", "--force").status == 0
    assert aws.instances(*LIVE) == []


def test_down_keeps_a_stopped_box_whose_run_is_not_finished(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    (box,) = aws.instances(*LIVE)
    event(aws, lab, box["InstanceId"], "suspended", 1)
    assert fleet("stop", "night").status == 0
    ended = fleet("down", "night")
    assert ended.status == 1
    assert f"is not finished on {box['InstanceId']}, stopped (suspended): its disk may hold" in ended.err
    assert len(aws.instances("stopped")) == 1
    event(aws, lab, box["InstanceId"], "finished", 2)
    assert fleet("down", "night").status == 0
    assert aws.instances("stopped") == []


def event(aws: StandIn, lab: Deployed, box: str, kind: str, number: int) -> None:
    """What the agent on a box would have sent."""
    import hashlib

    body = (
        json.dumps({"at": f"2026-11-30T04:15:0{number}+00:00", "kind": kind, "boot": 1, "n": number}).encode() + b"\n"
    )
    digest = hashlib.sha256(body).hexdigest()[:16]
    key = f"runs/night-20261130-041503-9f3a/boxes/{box}/events/0001-{number:06d}-{digest}.jsonl"
    aws.client("s3").put_object(Bucket=lab.bucket, Key=key, Body=body)


# -- stop


def test_a_spot_box_cannot_be_stopped_and_is_named(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.spot_prices = {("inf2.xlarge", "us-west-2a"): 0.3}
    assert fleet(*UP, "--purchase", "spot").status == 0
    ended = fleet("stop", "night")
    assert ended.status == 1
    assert "(spot, running)" in ended.err
    assert aws.operations().count("StopInstances") == 0
    assert len(aws.instances("running")) == 1


def test_stop_is_repeated_where_the_answer_is_lost(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    aws.fault("ec2", "StopInstances", LOST, times=2)
    ended = fleet("stop", "night")
    assert ended.status == 0
    assert "disks go on costing" in ended.out
    assert fleet("stop", "nobody").out == "nothing of nobody is there in us-west-2\n"


# -- status


def test_status_warns_of_what_somebody_should_look_at(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet("status").out == "no boxes in the deployment lab in us-west-2\n"
    assert fleet(*UP, "--max-usd", "4").status == 0
    retag(aws, "expires", "2026-01-01T00:00:00Z")
    retag(aws, "hours_before", "5")
    aws.gaps.default_ping = "ConnectionLost"
    told = fleet("status", "night", "--json").json
    (box,) = told["boxes"]
    assert box["reachable"] == "ConnectionLost"
    assert told["usd"] == pytest.approx(5 * 0.7582, rel=0.05)
    assert any("past its limit in time" in text for text in told["warnings"])
    assert any("of 4.00 USD" in text for text in told["warnings"])


def test_a_bucket_that_cannot_be_read_does_not_hide_what_boxes_cost(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP).status == 0
    aws.fault("s3", "ListObjectsV2", FORBIDDEN, times=None)
    told = fleet("status")
    assert told.status == 0
    assert "running" in told.out
    assert "AccessDenied" in told.err


# -- what is shown


def test_costs_are_unknown_and_never_nothing(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    assert fleet(*UP, "--instance-type", "inf2.8xlarge").status == 0
    boxes = list_boxes(Aws(), "lab", "night")
    now = boxes[0].launched + dt.timedelta(hours=14)
    assert boxes[0].spent_usd(now) is None
    assert total_text(boxes, now) == "cost so far not known, as its price is unknown"
    assert total_text([*boxes, *boxes], now, what="cost") == "cost not known, as their prices are unknown"
    priced = dataclasses.replace(boxes[0], rate=Rate(usd_per_hour=2.0, date="2026-11", source="somebody"))
    assert total_text([priced], now) == "cost so far 28.00 USD (without disks)"
    assert (
        total_text([priced, *boxes], now) == "cost so far 28.00 USD (without disks, and without 1 box of unknown price)"
    )
    assert "without 2 boxes of unknown price" in total_text([priced, *boxes, *boxes], now)
    assert until(boxes[0], now) == "120 min ago" or until(boxes[0], now).startswith("2 h")
    assert [text.partition(" is ")[2].partition(" (")[0] for text in warnings(boxes, now, idle={})] == [
        "past its limit in time"
    ]
    assert "nothing to do for 60 min" in warnings(boxes, boxes[0].launched, idle={boxes[0].id: 3600.0})[0]
    assert boxes[0].state not in GONE


@pytest.mark.parametrize(("columns", "headings"), [(80, 5), (200, 11)])
def test_the_table_fits_a_terminal_and_breaks_no_name(columns: int, headings: int) -> None:
    import io

    from rich.console import Console

    now = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
    box = Box(
        id="i-0123456789abcdef0", fleet="night", kind="inf2", state="running", zone="us-west-2a",
        instance_type="inf2.48xlarge", purchase="on-demand", launched=now - dt.timedelta(hours=3), ended=None,
        reason="", expires=now + dt.timedelta(hours=5), rate=None, max_usd=None, hours_before=0.0,
        run="night-20261130-151148-054f", reservation="", spot_request="", token="", tags={},
    )  # fmt: skip
    made = table([box], now, pings={box.id: "Online"}, runs={}, columns=columns)
    out = io.StringIO()
    Console(file=out, width=columns).print(made)
    assert len(made.columns) == headings
    for name in (box.id, box.instance_type, box.zone, box.run, "in 5 h 00 min", "price unknown", "Online"):
        assert name in out.getvalue()


def test_a_rate_survives_its_tag() -> None:
    rate = Rate(usd_per_hour=0.7582, date="2026-08", source="somebody's page: (with brackets) & more " + "x" * 300)
    back = rate_from_tag(rate.tag())
    assert back is not None
    assert (back.usd_per_hour, back.date) == (0.7582, "2026-08")
    assert len(rate.tag()) <= 256
    assert [rate_from_tag(text) for text in (None, "", "nan x", "-1 x", "free")] == [None] * 5


def test_times_and_money_for_people() -> None:
    assert [seconds_of(text) for text in ("90s", "1.5h", "3d")] == [90, 5400, 259200]
    assert [period(s) for s in (5, 600, 7260, 200000)] == ["5 s", "10 min", "2 h 01 min", "2 d 7 h"]
    assert [money(usd) for usd in (None, 0.0, 0.001, 1234.5)] == [
        "price unknown", "0.00 USD", "under 0.01 USD", "1,234.50 USD",
    ]  # fmt: skip
