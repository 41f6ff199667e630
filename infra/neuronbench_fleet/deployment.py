"""What the CDK application made, found by parameters of SSM and never by a name written here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuronbench_fleet.aws import Aws
from neuronbench_fleet.errors import AwsError, FleetError, UsageError

ENVIRONMENT: Final = "NEURONBENCH_DEPLOYMENT"
DEFAULT: Final = "neuronbench"
KINDS: Final = ("trn1", "trn2", "inf2")
_VERSION: Final = 1
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]")
"""What the CDK application takes for one."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Where boxes live and where what they measured goes."""

    name: str
    region: str
    bucket: str
    subnets: tuple[str, ...]
    security_group: str
    instance_profile: str


@dataclass(frozen=True, kw_only=True)
class BoxKind:
    """How a kind of box is launched."""

    kind: str
    launch_template: str
    instance_type: str
    ami_parameter: str
    """SSM parameter that names the image; the launch template resolves it."""
    idle_stop_min: int
    purchase: str = ""
    """How the deployment means it to be bought: `on-demand`, `capacity-block`, `asg`."""
    reservation: str = ""
    """A Capacity Block that was bought before."""


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """An MLflow server: its URI, and the secret that holds the login (never the login itself)."""

    uri: str
    secret: str


def deployment_name(told: str | None) -> str:
    """`told`, else NEURONBENCH_DEPLOYMENT, else `neuronbench`. Raises `UsageError` for one that cannot be its name."""
    name = told or os.environ.get(ENVIRONMENT) or DEFAULT
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{'--deployment' if told else ENVIRONMENT}: expected 2 to 32 lower-case letters, digits, hyphens; found"
            f" {name!r}"
        )
    return name


def find_deployment(aws: Aws, name: str) -> Deployment:
    """The deployment of that name in the region of `aws`. Raises `FleetError` where there is none."""
    parameter = f"/neuronbench/{name}/base"
    found = _read(aws, parameter)
    if found is None:
        raise FleetError(
            f"there is no deployment {name!r} in {aws.region}: no SSM parameter {parameter}",
            kind="not_found",
            remedy="deploy it (infra/README.md), or say where it is: --deployment, --region, --profile",
        )
    return Deployment(
        name=name,
        region=str(found.get("region") or aws.region),
        bucket=_text(parameter, found, "bucket"),
        subnets=tuple(str(subnet) for subnet in _list(parameter, found, "subnets")),
        security_group=_text(parameter, found, "security_group"),
        instance_profile=_text(parameter, found, "instance_profile"),
    )


def find_box(aws: Aws, deployment: Deployment, kind: str) -> BoxKind:
    """How that kind of box is launched there. Raises `FleetError` where the deployment has none of the kind."""
    parameter = f"/neuronbench/{deployment.name}/box/{kind}"
    found = _read(aws, parameter)
    if found is None:
        raise FleetError(
            f"the deployment {deployment.name!r} in {aws.region} has no boxes of kind {kind!r}: no SSM parameter"
            f" {parameter}",
            kind="not_found",
            remedy="deploy that kind, or ask for another: --kind " + "|".join(KINDS),
        )
    return BoxKind(
        kind=kind,
        launch_template=_text(parameter, found, "launch_template"),
        instance_type=_text(parameter, found, "instance_type"),
        ami_parameter=str(found.get("ami_parameter") or ""),
        idle_stop_min=int(found.get("idle_stop_min") or 0),
        purchase=str(found.get("purchase") or ""),
        reservation=str(found.get("reservation") or ""),
    )


def find_tracking(aws: Aws, deployment: Deployment) -> Tracking | None:
    """The deployment's MLflow server; None where it has none."""
    parameter = f"/neuronbench/{deployment.name}/tracking"
    found = _read(aws, parameter)
    if found is None:
        return None
    return Tracking(uri=_text(parameter, found, "uri"), secret=str(found.get("secret") or ""))


def _read(aws: Aws, name: str) -> Mapping[str, Any] | None:
    try:
        value = aws.call("ssm", "get_parameter", Name=name)["Parameter"]["Value"]
    except AwsError as error:
        if error.kind == "not_found":
            return None
        raise
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _odd(name, "expected JSON of an object", str(value)[:60])
    version = found.get("version")
    if version != _VERSION:
        raise _odd(name, f"expected version {_VERSION}", f"version {version!r}")
    return found


def _text(parameter: str, found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value:
        raise _odd(parameter, f"expected a text under {key!r}", repr(value))
    return value


def _list(parameter: str, found: Mapping[str, Any], key: str) -> list[Any]:
    value = found.get(key)
    if not isinstance(value, list) or not value:
        raise _odd(parameter, f"expected a list under {key!r}", repr(value))
    return value


def _odd(parameter: str, expected: str, found: str) -> FleetError:
    return FleetError(
        f"SSM parameter {parameter}: {expected}, found {found}",
        remedy="deploy with the version of neuronbench-fleet that you use here, or use the one that deployed",
    )
