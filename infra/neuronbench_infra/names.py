"""Names and tags that the commands of `neuronbench fleet` look for, and where they find what a deployment made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aws_cdk import Stack, Tags
from aws_cdk import aws_ssm as ssm
from constructs import Construct

DEPLOYMENT_TAG: Final = "neuronbench:deployment"
KIND_TAG: Final = "neuronbench:kind"
FLEET_TAG: Final = "neuronbench:fleet"
PURCHASE_TAG: Final = "neuronbench:purchase"
READ_WRITE: Final = ("runs/", "weights/", "caches/")
"""Where in the bucket boxes add objects."""
READ_ONLY: Final = ("code/",)
"""Where in the bucket boxes only read."""


def parameter_name(deployment: str, what: str) -> str:
    """`base`, `box/KIND` or `tracking` → the SSM parameter that says where it is."""
    return f"/neuronbench/{deployment}/{what}"


def publish(scope: Construct, deployment: str, what: str, values: Mapping[str, Any]) -> ssm.StringParameter:
    """Write an SSM parameter with JSON; what is only known when deployed is filled in then."""
    return ssm.StringParameter(
        scope,
        "Parameter",
        parameter_name=parameter_name(deployment, what),
        description=f"neuronbench: what the deployment {deployment} has of {what}",
        string_value=Stack.of(scope).to_json_string({"version": 1, **values}),
    )


def tag(stack: Stack, deployment: str) -> None:
    """Mark all that a stack makes as the deployment's: what the guard acts on and costs are told apart by."""
    Tags.of(stack).add(DEPLOYMENT_TAG, deployment)
