"""What was deployed is found by parameters, and what is odd about them is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aws_stand_in import Deployed, StandIn
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.deployment import deployment_name, find_box, find_deployment, find_tracking
from neuronbench_fleet.errors import FleetError


def put(aws: StandIn, name: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    aws.deployed = None  # the next test gets another
    aws.client("ssm").put_parameter(Name=name, Type="String", Value=text, Overwrite=True)


def test_a_deployment_is_found_by_its_parameters(aws: StandIn, lab: Deployed) -> None:
    door = Aws()
    found = find_deployment(door, "lab")
    assert (found.bucket, found.region, list(found.subnets)) == (lab.bucket, "us-west-2", list(lab.subnets.values()))
    assert find_box(door, found, "trn1").instance_type == "trn1.2xlarge"
    assert find_tracking(door, found) is None
    put(aws, "/neuronbench/lab/tracking", {"version": 1, "uri": "https://mlflow.example", "secret": "login"})
    tracking = find_tracking(door, found)
    assert tracking is not None
    assert (tracking.uri, tracking.secret) == ("https://mlflow.example", "login")


def test_none_of_that_name_says_where_it_was_looked_for(aws: StandIn, lab: Deployed) -> None:
    with pytest.raises(
        FleetError, match=r"no deployment 'other' in us-west-2: no SSM parameter /neuronbench/other/base"
    ):
        find_deployment(Aws(), "other")
    with pytest.raises(FleetError, match="no boxes of kind 'inf9'"):
        find_box(Aws(), find_deployment(Aws(), "lab"), "inf9")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("not json", "expected JSON of an object"),
        ({"version": 2, "bucket": "b"}, "expected version 1, found version 2"),
        (
            {"version": 1, "bucket": "b", "subnets": [], "security_group": "g", "instance_profile": "p"},
            "a list under 'subn",
        ),
        ({"version": 1, "bucket": 7, "subnets": ["s"]}, "a text under 'bucket', found 7"),
    ],
)
def test_a_parameter_that_is_odd_is_named(aws: StandIn, lab: Deployed, value: Any, message: str) -> None:
    put(aws, "/neuronbench/lab/base", value)
    with pytest.raises(FleetError, match=message) as error:
        find_deployment(Aws(), "lab")
    assert "/neuronbench/lab/base" in str(error.value)


def test_the_name_is_told_or_in_the_environment_or_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONBENCH_DEPLOYMENT", "lab")
    assert deployment_name("told") == "told"
    assert deployment_name(None) == "lab"
    monkeypatch.delenv("NEURONBENCH_DEPLOYMENT")
    assert deployment_name(None) == "neuronbench"
