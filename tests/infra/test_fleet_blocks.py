"""Capacity Blocks: bought once, with a yes, within the money; used when they begin."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from aws_gaps import Block
from aws_stand_in import BROKEN, LOST, Deployed, StandIn
from neuronbench_fleet.blocks import block_hours
from neuronbench_fleet.boxes import LIVE

Fleet = Callable[..., Any]
UP = ("up", "big", "--kind", "inf2", "--purchase", "block", "--max-hours", "20")
NOW = dt.datetime.now(dt.UTC)


def offer(id_: str, usd: float, *, zone: str = "us-west-2b", begins_h: float = -0.5, hours: int = 24) -> Block:
    start = dt.datetime.now(dt.UTC) + dt.timedelta(hours=begins_h)
    return Block(id=id_, instance_type="inf2.xlarge", zone=zone, hours=hours, usd=usd, start=start)


def purchases(aws: StandIn) -> list[str]:
    return [r.parameters["CapacityBlockOfferingId"] for r in aws.requests if r.operation == "PurchaseCapacityBlock"]


@pytest.mark.parametrize(
    ("hours", "block"), [(1, 24), (24, 24), (25, 48), (14 * 24, 14 * 24), (14 * 24 + 1, 21 * 24), (22 * 24, 28 * 24)]
)
def test_blocks_are_days_and_then_weeks(hours: float, block: int) -> None:
    assert block_hours(hours) == block


def test_the_cheapest_block_within_reach_is_bought_and_used(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.blocks = [
        offer("cb-dear", 60), offer("cb-cheap", 48), offer("cb-later", 10, begins_h=30), offer("cb-week", 9, hours=168),
        offer("cb-away", 5, zone="us-west-2d"),
    ]  # fmt: skip
    ended = fleet(*UP, "--max-usd", "50", "--yes")
    assert ended.status == 0, ended
    assert purchases(aws) == ["cb-cheap"]
    assert "1 x 24 h in us-west-2b for 48.00 USD (2 USD/h each)" in ended.out
    assert "never refunded" in ended.out
    sent = next(r.parameters for r in aws.requests if r.operation == "RunInstances")
    assert sent["InstanceMarketOptions.MarketType"] == "capacity-block"
    (bought,) = aws.gaps.bought
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert sent[target] == bought
    (box,) = aws.instances(*LIVE)
    marks = {tag["Key"]: tag["Value"] for tag in box["Tags"]}
    assert marks["neuronbench:purchase"] == "block"
    assert marks["neuronbench:usd_per_hour"].startswith("2 ")
    ends = dt.datetime.fromisoformat(marks["neuronbench:expires"]) - dt.datetime.now(dt.UTC)
    assert 19.9 < ends.total_seconds() / 3600 <= 20  # the money is paid; the time is what was asked for
    told = fleet("down", "big")
    assert (told.status, f"Capacity Block {bought} is paid and stays" in told.out) == (0, True)
    assert fleet(*UP, "--max-usd", "50").status == 0  # the block is there: nothing is bought, nobody is asked
    assert purchases(aws) == ["cb-cheap"]


def test_nothing_is_bought_without_a_yes(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.blocks = [offer("cb-1", 48)]
    ended = fleet(*UP, "--max-usd", "50")
    assert ended.status == 2
    assert "--yes buys it" in ended.err
    planned = fleet(*UP, "--max-usd", "50", "--yes", "--dry-run", "--json")
    assert [call["operation"] for call in planned.json["planned"]] == ["PurchaseCapacityBlock"]
    assert purchases(aws) == []


def test_a_block_that_is_dearer_than_the_limit_is_left(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.blocks = [offer("cb-1", 48)]
    ended = fleet(*UP, "--max-usd", "40", "--yes")
    assert ended.status == 4
    assert "dearer than --max-usd 40: 1 x 24 h in us-west-2b for 48.00 USD" in ended.err
    assert purchases(aws) == []


def test_no_block_in_time_is_missing_capacity(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.blocks = [offer("cb-1", 48, begins_h=5)]
    ended = fleet(*UP, "--yes", "--wait", "1h")
    assert ended.status == 3
    assert purchases(aws) == []


@pytest.mark.parametrize("trouble", [LOST, BROKEN], ids=["lost", "broken"])
def test_a_purchase_without_an_answer_is_looked_up_and_not_repeated(
    aws: StandIn, lab: Deployed, fleet: Fleet, trouble: Any
) -> None:
    aws.gaps.blocks = [offer("cb-1", 48)]
    aws.fault("ec2", "PurchaseCapacityBlock", trouble)
    ended = fleet(*UP, "--yes")
    assert purchases(aws) == ["cb-1"]
    if trouble is LOST:
        assert ended.status == 0, ended
        assert len(aws.instances(*LIVE)) == 1
    else:
        assert ended.status == 1
        assert "before anything is bought again" in ended.err
        assert aws.instances() == []


def test_a_block_that_begins_soon_is_waited_for(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.blocks = [offer("cb-1", 48, begins_h=0.5)]
    looks = 0

    def begins(_: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            aws.gaps.reservation_states = dict.fromkeys(aws.gaps.bought, "active")

    aws.before("ec2", "DescribeCapacityReservations", begins, times=None)
    ended = fleet(*UP, "--yes")
    assert ended.status == 0, ended
    assert looks >= 3
    assert len(aws.instances(*LIVE)) == 1


def test_a_payment_that_fails_ends_it(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.blocks = [offer("cb-1", 48, begins_h=0.5)]

    def failed(_: Any) -> None:
        aws.gaps.reservation_states = dict.fromkeys(aws.gaps.bought, "payment-failed")

    aws.after("ec2", "PurchaseCapacityBlock", failed)
    ended = fleet(*UP, "--yes", "--wait", "40m")
    assert ended.status == 1
    assert "its payment failed" in ended.err
    assert purchases(aws) == ["cb-1"]  # and no other
    assert aws.instances() == []


def test_a_block_that_does_not_begin_is_not_waited_for_for_ever(aws: StandIn, lab: Deployed, fleet: Fleet) -> None:
    aws.gaps.blocks = [offer("cb-1", 48, begins_h=0.2)]
    ended = fleet(*UP, "--yes", "--wait", "15m")
    assert ended.status == 4
    assert "after what --wait allows" in ended.err
    assert purchases(aws) == ["cb-1"]
