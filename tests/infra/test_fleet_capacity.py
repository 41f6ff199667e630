"""The search for capacity: what is tried in which order, what each class of failure does, and where the limits are."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_stand_in import (
    BROKEN,
    CAPACITY,
    DROPPED,
    FORBIDDEN,
    LOST,
    QUOTA,
    SPOT_PRICE,
    SPOT_QUOTA,
    THROTTLED,
    UNSUPPORTED,
    Deployed,
    StandIn,
    bought,
    in_zone,
)
from neuronbench_fleet.boxes import LIVE

Fleet = Callable[..., Any]
UP = ("up", "night", "--kind", "inf2")
SHORT = ("--wait", "2m")


def launched(aws: StandIn) -> list[str]:
    """Zones of RunInstances as they were asked for."""
    return [aws.zones[r.parameters["SubnetId"]] for r in aws.requests if r.operation == "RunInstances"]


def tags(box: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"].removeprefix("neuronbench:"): tag["Value"] for tag in box.get("Tags", ())}


def attempts(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "mlruns" / "fleet" / "night" / "attempts.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_box_is_started_with_its_limits_on_it(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    ended = fleet(*UP, "--max-hours", "30", "--max-usd", "7.582")
    assert ended.status == 0, ended
    (box,) = aws.instances()
    marks = tags(box)
    assert {key: marks[key] for key in ("deployment", "fleet", "kind", "purchase", "Name")} == {
        "deployment": "lab", "fleet": "night", "kind": "inf2", "purchase": "on-demand", "Name": "lab-night",
    }  # fmt: skip
    assert marks["usd_per_hour"].startswith("0.7582 2026-08 ")
    ends = dt.datetime.fromisoformat(marks["expires"]) - dt.datetime.now(dt.UTC)
    assert 9.9 < ends.total_seconds() / 3600 <= 10  # what the money buys, not the 30 hours
    volume = box["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    (disk,) = aws.client("ec2").describe_volumes(VolumeIds=[volume])["Volumes"]
    assert tags(disk)["fleet"] == "night"
    assert "ready: " + box["InstanceId"] in ended.out
    assert "2026-08" in ended.out


def test_missing_capacity_goes_on_to_the_next_zone(aws: StandIn, lab: Deployed, fleet: Fleet, tmp_path: Path) -> None:
    aws.fault("ec2", "RunInstances", CAPACITY, times=None, when=in_zone("us-west-2a"))
    aws.fault("ec2", "RunInstances", UNSUPPORTED, times=None, when=in_zone("us-west-2b"))
    assert fleet(*UP).status == 0
    assert launched(aws) == ["us-west-2a", "us-west-2b", "us-west-2c"]
    assert [(one["outcome"], one.get("code", "")) for one in attempts(tmp_path)] == [
        ("capacity", "InsufficientInstanceCapacity"), ("unsupported", "Unsupported"), ("started", ""),
    ]  # fmt: skip
    assert all(one["at"] and one["round"] == 1 and one["instance_type"] == "inf2.xlarge" for one in attempts(tmp_path))


def test_capacity_in_no_zone_is_looked_for_again_until_the_wait_is_over(
    aws: StandIn, lab: Deployed, fleet: Fleet, tmp_path: Path
) -> None:
    aws.fault("ec2", "RunInstances", CAPACITY, times=None)
    ended = fleet(*UP, *SHORT)
    assert ended.status == 3
    assert aws.instances() == []
    rounds = [one["round"] for one in attempts(tmp_path)]
    assert 3 <= max(rounds) <= 8  # two minutes of waits that start with ten seconds and double
    assert rounds == [number for number in range(1, max(rounds) + 1) for _ in range(3)]
    assert "x on-demand us-west-2b: capacity (InsufficientInstanceCapacity)" in ended.err
    assert "a longer --wait" in ended.err


def test_capacity_that_comes_back_is_taken(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.fault("ec2", "RunInstances", CAPACITY, times=7)
    assert fleet(*UP).status == 0
    assert len(launched(aws)) == 8
    assert len(aws.instances(*LIVE)) == 1
    asked = [r.listed("Filter.1.Value") for r in aws.requests if r.parameters.get("Filter.1.Name") == "client-token"]
    assert [len(tokens) for tokens in asked] == [1]  # what AWS has refused needs no looking after


def test_every_attempt_has_a_token_of_its_own_and_a_repetition_has_the_same(
    aws: StandIn, lab: Deployed, fleet: Fleet
) -> None:
    aws.fault("ec2", "RunInstances", CAPACITY, times=3)
    aws.fault("ec2", "RunInstances", LOST, skip=0, times=1, when=lambda a, _: len(launched(a)) > 3)
    assert fleet(*UP).status == 0
    tokens = [r.parameters["ClientToken"] for r in aws.requests if r.operation == "RunInstances"]
    assert len(tokens) == 5
    assert tokens[3] == tokens[4]
    assert len(set(tokens)) == 4
    assert len(aws.instances()) == 1


@pytest.mark.parametrize("lost", [1, 3, 7])
def test_answers_that_are_lost_start_one_box(aws: StandIn, lab: Deployed, fleet: Fleet, lost: int) -> None:
    aws.fault("ec2", "RunInstances", LOST, times=lost)
    ended = fleet(*UP)
    assert ended.status == 0, ended
    assert len(aws.instances()) == 1
    assert ended.err.count("RunInstances: ConnectionClosedError; again in") == lost


def test_an_answer_lost_for_good_is_found_by_its_token(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.fault("ec2", "RunInstances", LOST, times=None)
    ended = fleet(*UP)
    assert ended.status == 0, ended
    assert len(aws.instances()) == 1
    assert set(launched(aws)) == {"us-west-2a"}  # nothing else was tried meanwhile


def test_a_quota_gives_a_way_of_buying_up_and_is_named(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.spot_prices = {("inf2.xlarge", zone): 0.3 for zone in lab.subnets}
    aws.fault("ec2", "RunInstances", SPOT_QUOTA, times=None, when=bought("spot"))
    aws.fault("ec2", "RunInstances", QUOTA, times=None, when=bought("on-demand"))
    ended = fleet(*UP, "--purchase", "spot,on-demand")
    assert ended.status == 6
    assert len(launched(aws)) == 2  # one of each: other zones have the same quota
    assert "'Running On-Demand Inf instances' (L-1945791B, counted in vCPUs) of us-west-2 to at least 4" in ended.err
    assert aws.instances() == []


def test_a_quota_of_one_way_leaves_the_other(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.spot_prices = {("inf2.xlarge", zone): 0.3 for zone in lab.subnets}
    aws.fault("ec2", "RunInstances", SPOT_QUOTA, times=None, when=bought("spot"))
    assert fleet(*UP, "--purchase", "spot,on-demand").status == 0
    assert tags(aws.instances()[0])["purchase"] == "on-demand"


def test_a_missing_right_stops_at_once(aws: StandIn, lab: Deployed, fleet: Fleet, tmp_path: Path) -> None:
    aws.fault("ec2", "RunInstances", FORBIDDEN, times=None)
    ended = fleet(*UP)
    assert ended.status == 5
    assert len(launched(aws)) == 1
    assert "allow ec2:RunInstances" in ended.err
    assert [one["outcome"] for one in attempts(tmp_path)] == ["auth"]


@pytest.mark.parametrize("operation", ["DescribeSubnets", "DescribeInstanceTypeOfferings", "DescribeInstances"])
def test_not_being_allowed_to_look_is_said(aws: StandIn, lab: Deployed, fleet: Fleet, operation: str) -> None:
    aws.fault("ec2", operation, FORBIDDEN, times=None)
    ended = fleet(*UP)
    assert ended.status == 5
    assert operation in ended.err
    assert launched(aws) == []


@pytest.mark.parametrize("trouble", [THROTTLED, BROKEN, DROPPED], ids=["throttled", "broken", "dropped"])
def test_a_storm_is_sat_out(aws: StandIn, lab: Deployed, fleet: Fleet, trouble: Any) -> None:
    for operation in ("DescribeInstances", "DescribeSubnets", "RunInstances", "DescribeInstanceStatus"):
        aws.fault("ec2", operation, trouble, times=5)
    aws.fault("ssm", "DescribeInstanceInformation", trouble, times=5)
    ended = fleet(*UP)
    assert ended.status == 0, ended
    assert len(aws.instances()) == 1


# -- spot


def test_the_cheapest_zone_is_tried_first(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    prices = {"us-west-2a": 0.5, "us-west-2b": 0.2}  # of us-west-2c nothing is known: it comes last
    aws.gaps.spot_prices = {("inf2.xlarge", zone): usd for zone, usd in prices.items()}
    aws.fault("ec2", "RunInstances", CAPACITY, times=3)
    assert fleet(*UP, "--purchase", "spot,on-demand").status == 0
    assert launched(aws) == ["us-west-2b", "us-west-2a", "us-west-2c", "us-west-2a"]
    last = next(r for r in reversed(aws.requests) if r.operation == "RunInstances")
    assert "InstanceMarketOptions.MarketType" not in last.parameters


def test_a_spot_box_says_what_it_costs_and_who_said_so(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.spot_prices = {("inf2.xlarge", "us-west-2b"): 0.25}
    assert fleet(*UP, "--purchase", "spot", "--zone", "us-west-2b", "--spot-max", "0.5").status == 0
    (box,) = aws.instances()
    assert box["InstanceLifecycle"] == "spot"
    assert tags(box)["usd_per_hour"].endswith("EC2 spot price history of us-west-2b")
    sent = next(r.parameters for r in aws.requests if r.operation == "RunInstances")
    assert sent["InstanceMarketOptions.SpotOptions.MaxPrice"] == "0.5"
    assert sent["InstanceInitiatedShutdownBehavior"] == "terminate"


def test_a_spot_market_above_the_limit_is_a_matter_of_price(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.spot_prices = {("inf2.xlarge", zone): 0.7 for zone in lab.subnets}
    ended = fleet(*UP, "--purchase", "spot", "--spot-max", "0.5")
    assert ended.status == 4
    assert launched(aws) == []
    aws.gaps.spot_prices = {("inf2.xlarge", zone): 0.2 for zone in lab.subnets}
    aws.fault("ec2", "RunInstances", SPOT_PRICE, times=None)
    ended = fleet(*UP, "--purchase", "spot", "--spot-max", "0.5")
    assert ended.status == 4
    assert len(launched(aws)) == 3
    assert "SpotMaxPriceTooLow" in ended.err


# -- limits and wrong usage


def test_money_cannot_be_limited_where_no_price_is_known(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    ended = fleet(*UP, "--instance-type", "inf2.8xlarge", "--max-usd", "10")
    assert ended.status == 2
    assert "no published on_demand price of inf2.8xlarge in us-west-2" in ended.err
    assert "--usd-per-hour" in ended.err
    ended = fleet(*UP, "--instance-type", "inf2.8xlarge", "--max-usd", "10", "--usd-per-hour", "2", "--json")
    assert ended.status == 0
    (box,) = ended.json["boxes"]
    assert (box["usd_per_hour"], box["price_source"]) == (2.0, "told with --usd-per-hour")
    ends = dt.datetime.fromisoformat(box["expires"]) - dt.datetime.fromisoformat(box["launched"])
    assert ends.total_seconds() / 3600 == pytest.approx(5, abs=0.01)


def test_a_price_that_is_not_known_is_no_reason_without_a_limit_in_money(
    aws: StandIn, lab: Deployed, fleet: Fleet
) -> None:
    assert fleet(*UP, "--instance-type", "inf2.8xlarge", "--json").json["boxes"][0]["usd_per_hour"] is None
    assert "usd_per_hour" not in tags(aws.instances()[0])
    assert "price unknown" in fleet("status").out


def test_money_that_is_gone_before_it_has_booted(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    ended = fleet(*UP, "--max-usd", "0.05", "--count", "2")
    assert ended.status == 4
    assert "at least 0.38 USD" in ended.err
    assert launched(aws) == []


def test_boxes_share_the_money_and_the_zone(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.fault("ec2", "RunInstances", CAPACITY)
    assert fleet(*UP, "--count", "3", "--max-usd", "7.582").status == 0
    boxes = aws.instances()
    assert {box["Placement"]["AvailabilityZone"] for box in boxes} == {"us-west-2b"}
    assert len(boxes) == 3
    assert len(launched(aws)) == 2
    ends = dt.datetime.fromisoformat(tags(boxes[0])["expires"]) - dt.datetime.now(dt.UTC)
    assert ends.total_seconds() / 3600 == pytest.approx(10 / 3, abs=0.05)


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (("--zone", "us-west-2d"), 2, "no subnet there; it has some in us-west-2a, us-west-2b, us-west-2c"),
        (("--kind", "trn2", "--instance-type", "trn2.48xlarge"), 3, "not offered in this region at all"),
        (("--kind", "trn1", "--zone", "us-west-2a"), 3, "offered in us-west-2b, us-west-2d"),
        (("--instance-type", "trn1.2xlarge"), 2, "its kind is trn1, not inf2"),
        (("--purchase", "spot,blok"), 2, "expected some of on-demand, spot, block"),
        (("--max-hours", "0"), 2, "--max-hours: expected more than 0"),
        (("--wait", "soon"), 2, "--wait: expected a time such as 90s"),
        (("--deployment", "other"), 1, "no deployment 'other' in us-west-2"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_starts(
    aws: StandIn, lab: Deployed, fleet: Fleet, more: tuple[str, ...], status: int, message: str
) -> None:
    ended = fleet(*UP, *more)
    assert ended.status == status
    assert message in ended.err
    assert aws.operations(changes=True) == []


def test_a_name_that_no_tag_should_have(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    ended = fleet("up", "my night", "--kind", "inf2")
    assert ended.status == 2
    assert "up to 40 letters" in ended.err


def test_a_dry_run_lists_the_calls_that_are_then_made(
    aws: StandIn, lab: Deployed, fleet: Fleet, tmp_path: Path
) -> None:
    planned = fleet(*UP, "--dry-run", "--json")
    assert planned.status == 0
    assert aws.operations(changes=True) == []
    assert aws.instances() == []
    assert not (tmp_path / "mlruns" / "fleet").exists()
    real = fleet(*UP, "--json")
    changes = aws.operations("ec2", changes=True)
    assert [call["operation"] for call in planned.json["planned"]] == changes == ["RunInstances"]
    sent = next(r.parameters for r in aws.requests if r.operation == "RunInstances")
    told = planned.json["planned"][0]["parameters"]
    for key in ("SubnetId", "ClientToken", "InstanceType"):
        assert told[key] == sent[key]
    assert real.json["planned"] == []
    said = fleet("up", "other", "--kind", "inf2", "--count", "2", "--dry-run").out
    assert "would call  ec2 RunInstances" in said
    assert "up to 12 h: 18.20 USD for 2 boxes, without disks" in said
    assert "would end " in fleet("down", "night", "--dry-run").out
