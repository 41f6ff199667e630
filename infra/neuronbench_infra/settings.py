"""The settings of a deployment, checked as a whole before anything is made of them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuronbench.catalog.instances import instance_of, instances
from neuronbench_infra.keys import KINDS, PREFIX, SettingsError, Source, wrong

AMI_PARAMETERS: Final[Mapping[str, str]] = {
    "trn1": "/aws/service/neuron/dlami/pytorch-2.9/ubuntu-24.04/latest/image_id",
    "trn2": "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id",
    "inf2": "/aws/service/neuron/dlami/pytorch-inference-vllm/ubuntu-24.04/latest/image_id",
}
"""Names as AWS Neuron's guide to its images has them; see the runbook on which of them still move."""
INSTANCE_TYPES: Final[Mapping[str, str]] = {"trn1": "trn1.2xlarge", "trn2": "trn2.3xlarge", "inf2": "inf2.xlarge"}
WITH_BLOCKS: Final = ("trn1", "trn2")
"""Kinds that Capacity Blocks are sold for."""
_AZ: Final = r"[a-z]{2}(-[a-z]+)+-\d[a-z]|[a-z]{2}(-[a-z]+)+-\d-[a-z]+-\d[a-z]"
_MAIL: Final = r"[^@\s,]+@[^@\s,]+\.[^@\s,]+"
WIDEST_PREFIX: Final = 8
"""Networks with a shorter prefix than this are refused unless `tracking-open` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """Where boxes live: a VPC of our own, or somebody's."""

    zones: int
    azs: tuple[str, ...]
    vpc_id: str
    subnet_ids: tuple[str, ...]
    private_subnet_ids: tuple[str, ...]
    nat: bool
    egress_ports: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a month may cost."""

    usd: float
    mails: tuple[str, ...]
    by_tag: bool


@dataclass(frozen=True, kw_only=True)
class Box:
    """One kind of box."""

    kind: str
    instance_type: str
    ami_parameter: str
    ami: str
    """Empty, or the id that goes before the parameter."""
    disk_gib: int
    disk_mib_s: int
    disk_iops: int
    purchase: str
    reservation: str
    az: str
    most: int


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """The MLflow server."""

    host: str
    certificate: str
    cidrs: tuple[str, ...]
    public: bool
    zone_id: str
    image: str
    database_class: str
    multi_az: bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All of a deployment."""

    deployment: str
    account: str | None
    region: str | None
    network: Network
    budget: Budget | None
    boxes: tuple[Box, ...]
    tracking: Tracking | None
    idle_stop_min: int
    max_hours: int
    on_shutdown: str


def read_settings(context: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Settings of a CDK context and an environment (the process's own where none is given).

    Raises `SettingsError` for a name that does not exist, a value that cannot be, and values that exclude each other.
    """
    environ = os.environ if environ is None else environ
    source = Source(context, environ)
    kinds = source.several("kinds", "|".join(KINDS), ", ".join(KINDS), ",".join(KINDS))
    _only_of_kinds(source, kinds)
    network = _network(source)
    tracking = _tracking(source)
    if tracking and network.vpc_id and len(network.private_subnet_ids) < 2:
        raise wrong("private-subnet-ids", "two or more with tracking-host and vpc-id", "none or one")
    if tracking and tracking.zone_id and "." not in tracking.host:
        raise wrong("tracking-host", "a full name with tracking-zone-id", tracking.host)
    region = source.matching(
        "region", r"[a-z]{2}(-[a-z]+)+-\d", "a region's name", environ.get("CDK_DEFAULT_REGION", "")
    )
    _only_of_region(region, network, tracking)
    return Settings(
        deployment=source.matching(
            "deployment", r"[a-z][a-z0-9-]{0,30}[a-z0-9]", "2 to 32 lower-case letters, digits, hyphens", "neuronbench"
        ),
        account=source.matching("account", r"\d{12}", "twelve digits", environ.get("CDK_DEFAULT_ACCOUNT", "")) or None,
        region=region or None,
        network=network,
        budget=_budget(source),
        boxes=tuple(_box(source, kind, network) for kind in kinds),
        tracking=tracking,
        idle_stop_min=source.whole("idle-stop-min", 30, 5, 24 * 60),
        max_hours=source.whole("max-hours", 24, 1, 24 * 14),
        on_shutdown=source.choice("on-shutdown", ("stop", "terminate"), "stop"),
    )


def _only_of_region(region: str, network: Network, tracking: Tracking | None) -> None:
    """The wrong region is found out after minutes of deploying, half done; where it is known, it is said here."""
    if not region:
        return
    for zone in network.azs:
        if not zone.startswith(region):
            raise wrong("azs", f"zones of {region}, the region that is deployed to", zone)
    if tracking and (there := tracking.certificate.split(":")[3]) != region:
        raise wrong("tracking-certificate", f"one in {region}, the region that is deployed to", f"one in {there}")


def _only_of_kinds(source: Source, kinds: tuple[str, ...]) -> None:
    from neuronbench_infra.keys import OF_A_KIND

    for kind in KINDS:
        idle = [f"{kind}-{key}" for key in OF_A_KIND if kind not in kinds and source.given(f"{kind}-{key}")]
        if idle:
            raise SettingsError(f"{PREFIX}{idle[0]}: is set, but {PREFIX}kinds ({', '.join(kinds)}) leaves {kind} out")


def _network(source: Source) -> Network:
    azs = source.several("azs", _AZ, "names of zones")
    vpc = source.matching("vpc-id", r"vpc-[0-9a-f]{8,17}", "an id such as vpc-0…")
    subnet = r"subnet-[0-9a-f]{8,17}"
    subnets = source.several("subnet-ids", subnet, "ids such as subnet-0…")
    private = source.several("private-subnet-ids", subnet, "ids such as subnet-0…")
    if vpc:
        if not subnets:
            raise wrong("subnet-ids", "subnets of the VPC that vpc-id names", "none")
        if len(azs) != len(subnets):
            raise wrong("azs", f"the zones of the {len(subnets)} subnets, in their order", ", ".join(azs) or "none")
        if private and len(private) != len(subnets):
            raise wrong("private-subnet-ids", f"one for each of the {len(azs)} zones", str(len(private)))
        for key in ("zones", "egress"):
            if source.given(key):
                raise SettingsError(
                    f"{PREFIX}{key}: is for a new VPC, but {PREFIX}vpc-id names one; leave one of them out"
                )
    elif subnets or private:
        key = "subnet-ids" if subnets else "private-subnet-ids"
        raise SettingsError(f"{PREFIX}{key}: needs {PREFIX}vpc-id too")
    if azs and source.given("zones"):
        raise SettingsError(f"{PREFIX}zones: {PREFIX}azs says it already; leave one of them out")
    if azs and not vpc and len(azs) < 2:
        raise wrong("azs", "two or more (a load balancer and a database want two)", azs[0])
    ports = source.several("egress-ports", r"\d{1,5}", "ports", "443")
    for port in ports:
        if not 1 <= int(port) <= 65535:
            raise wrong("egress-ports", "ports from 1 to 65535", port)
    if "443" not in ports:
        raise wrong("egress-ports", "443 among them (SSM and S3)", ", ".join(ports))
    return Network(
        zones=len(azs) or source.whole("zones", 3, 2, 6),
        azs=azs,
        vpc_id=vpc,
        subnet_ids=subnets,
        private_subnet_ids=private,
        nat=source.choice("egress", ("public", "nat"), "public") == "nat",
        egress_ports=tuple(map(int, ports)),
    )


def _budget(source: Source) -> Budget | None:
    text = source.text("budget-usd")
    mails = source.several("budget-mail", _MAIL, "addresses")
    if text == "none":
        if mails or source.given("budget-scope"):
            raise wrong("budget-usd", "an amount, since budget-mail or budget-scope is set", text)
        return None
    if not re.fullmatch(r"\d{1,7}(\.\d{1,2})?", text) or float(text) <= 0:
        raise wrong("budget-usd", "dollars a month, or `none` for no budget at all", text or "nothing")
    if not mails:
        raise wrong("budget-mail", "who is told when money runs out, or budget-usd=none", "nobody")
    if len(mails) > 10:
        raise wrong("budget-mail", "at most ten", str(len(mails)))
    return Budget(
        usd=float(text), mails=mails, by_tag=source.choice("budget-scope", ("account", "tag"), "account") == "tag"
    )


def _box(source: Source, kind: str, network: Network) -> Box:
    purchase = source.choice(f"{kind}-purchase", ("on-demand", "capacity-block", "asg"), "on-demand")
    reservation = source.matching(f"{kind}-reservation", r"cr-[0-9a-f]{8,17}", "an id such as cr-0…")
    if purchase == "capacity-block":
        if kind not in WITH_BLOCKS:
            raise wrong(f"{kind}-purchase", "on-demand or asg: no Capacity Blocks are sold of it", purchase)
        if not reservation:
            raise wrong(f"{kind}-reservation", "the Capacity Block's reservation, bought beforehand", "nothing")
    elif reservation:
        raise wrong(f"{kind}-purchase", f"capacity-block, since {kind}-reservation is set", purchase)
    if source.given(f"{kind}-max") and purchase != "asg":
        raise wrong(f"{kind}-purchase", f"asg, since {kind}-max is set", purchase)
    ami = source.matching(f"{kind}-ami", r"ami-[0-9a-f]{8,17}", "an id such as ami-0…")
    if ami and source.given(f"{kind}-ami-parameter"):
        raise wrong(
            f"{kind}-ami-parameter", f"nothing, since {kind}-ami pins one", source.text(f"{kind}-ami-parameter")
        )
    az = source.matching(f"{kind}-az", _AZ, "a zone's name")
    if az and az not in network.azs:
        raise wrong(f"{kind}-az", f"one of azs ({', '.join(network.azs) or 'which is not set'})", az)
    mib_s = source.whole(f"{kind}-disk-mib-s", 500, 125, 1000)
    iops = source.whole(f"{kind}-disk-iops", 4000, 3000, 16000)
    if mib_s > iops / 4:
        raise wrong(f"{kind}-disk-iops", f"{mib_s * 4} or more for {mib_s} MiB/s", str(iops))
    return Box(
        kind=kind,
        instance_type=_instance_type(source, kind),
        ami_parameter=source.matching(
            f"{kind}-ami-parameter", r"/[A-Za-z0-9_./-]{1,1000}", "a parameter's path", AMI_PARAMETERS[kind]
        ),
        ami=ami,
        disk_gib=source.whole(f"{kind}-disk-gib", 512, 120, 16384),
        disk_mib_s=mib_s,
        disk_iops=iops,
        purchase=purchase,
        reservation=reservation,
        az=az,
        most=source.whole(f"{kind}-max", 1, 1, 64),
    )


def _instance_type(source: Source, kind: str) -> str:
    name = source.text(f"{kind}-instance-type", INSTANCE_TYPES[kind])
    found = instance_of(name)
    if found is None or found.family != kind:
        offered = ", ".join(each.name for each in instances() if each.family == kind)
        raise wrong(f"{kind}-instance-type", f"one of {offered}", name)
    return name


def _tracking(source: Source) -> Tracking | None:
    host = source.matching("tracking-host", r"[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?", "a host name, lower case")
    if not host:
        others = ("certificate", "cidrs", "open", "scheme", "zone-id", "image", "database", "multi-az")
        idle = next((key for key in others if source.given(f"tracking-{key}")), None)
        if idle:
            raise SettingsError(
                f"{PREFIX}tracking-{idle}: is set, but {PREFIX}tracking-host is not, so there is no server"
            )
        return None
    certificate = source.matching(
        "tracking-certificate", r"arn:aws[a-z-]*:acm:[a-z0-9-]+:\d{12}:certificate/[0-9a-f-]+", "the ARN of one in ACM"
    )
    if not certificate:
        raise wrong("tracking-certificate", f"the ARN of a certificate for {host} in ACM: logins go over it", "nothing")
    return Tracking(
        host=host,
        certificate=certificate,
        cidrs=_cidrs(source),
        public=source.choice("tracking-scheme", ("internal", "internet-facing"), "internal") == "internet-facing",
        zone_id=source.matching("tracking-zone-id", r"Z[A-Z0-9]{5,31}", "an id such as Z0…"),
        image=source.matching("tracking-image", r"\S{3,500}", "an image's name"),
        database_class=source.matching("tracking-database", r"db\.[a-z0-9]+\.[a-z0-9]+", "db.CLASS", "db.t4g.small"),
        multi_az=source.flag("tracking-multi-az"),
    )


def _cidrs(source: Source) -> tuple[str, ...]:
    cidrs = source.several("tracking-cidrs", r"[0-9./]+", "IPv4 networks such as 10.0.0.0/16")
    if not cidrs:
        raise wrong("tracking-cidrs", "networks that may reach the server", "none")
    for text in cidrs:
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as error:
            raise wrong("tracking-cidrs", f"IPv4 networks ({error})", text) from None
        if network.prefixlen < WIDEST_PREFIX and not source.flag("tracking-open"):
            raise wrong("tracking-cidrs", "no network that wide, or tracking-open=true if it is really meant", text)
    return cidrs
