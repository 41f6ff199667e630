"""AWS for tests: moto's server (EC2, SSM, S3, IAM) on a port of this machine, with faults on request.

Used by commands in this process and in others: whatever has `environment()` talks to it. It runs in threads of the
test process, so that a test can look inside and act between two requests.

**Faults.** `aws.fault("ec2", "RunInstances", CAPACITY, times=None, when=in_zone("us-west-2a"))`. Those are a `Refusal`
(an error that AWS answers), `DROPPED` (the connection breaks before anything is done), `LOST` (it is done, and the
connection breaks before the answer), `CUT` (half of the answer's body), `SPOILED` (another byte in it). `aws.before`
and `aws.after` call a function of the test instead: instances die there, and other people interfere.

**Commands of SSM.** `aws.on_command(function)`: called in a thread with a `Command` for every instance that SendCommand
names; what it returns is what GetCommandInvocation tells. Without one every command succeeds and prints nothing.

**What moto does not do**, and is bridged in `aws_gaps.py` in the documented form: ClientToken of RunInstances (also as
a filter), SSM's DescribeInstanceInformation, SendCommand, GetCommandInvocation, ListCommandInvocations, CancelCommand,
prices in DescribeSpotPriceHistory, and Capacity Blocks (DescribeCapacityBlockOfferings, PurchaseCapacityBlock,
DescribeCapacityReservations, and launching into one).

    python tests/infra/aws_stand_in.py      serves a deployment and prints what to export, to try commands by hand
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aws_faults import (
    BROKEN,
    CAPACITY,
    CUT,
    DROPPED,
    FORBIDDEN,
    LOST,
    QUOTA,
    SPOILED,
    SPOT_PRICE,
    SPOT_QUOTA,
    THROTTLED,
    UNSUPPORTED,
    Breakage,
    Refusal,
)  # fmt: skip
from aws_gaps import Command, CommandResult, Gaps
from aws_wire import Answer, Request, error, read

REGION = "us-west-2"
__all__ = [
    "BROKEN", "CAPACITY", "CUT", "DROPPED", "FORBIDDEN", "LOST", "QUOTA", "SPOILED", "SPOT_PRICE",
    "SPOT_QUOTA", "THROTTLED", "UNSUPPORTED", "Answer", "Breakage", "Command", "CommandResult", "Deployed",
    "Refusal", "Request", "StandIn", "bought", "deploy", "in_zone", "serving",
]  # fmt: skip


def in_zone(zone: str) -> Callable[[StandIn, Request], bool]:
    """Of RunInstances: launched into that zone."""

    def met(aws: StandIn, request: Request) -> bool:
        return aws.zones.get(str(request.parameters.get("SubnetId"))) == zone

    return met


def bought(purchase: str) -> Callable[[StandIn, Request], bool]:
    """Of RunInstances: bought `on-demand`, on `spot` or into a `block`."""

    def met(_: StandIn, request: Request) -> bool:
        market = {"spot": "spot", "capacity-block": "block"}
        return market.get(str(request.parameters.get("InstanceMarketOptions.MarketType")), "on-demand") == purchase

    return met


@dataclass
class Rule:
    """A fault, or a function of the test, and when."""

    service: str
    operation: str
    what: Refusal | Breakage | Callable[[Request], Answer | None]
    skip: int
    times: int | None
    when: Callable[[StandIn, Request], bool] | None
    after: bool
    fired: int = 0
    seen: int = 0


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What `deploy` made."""

    name: str
    bucket: str
    subnets: dict[str, str]
    """Zone → subnet."""
    security_group: str


@dataclass
class StandIn:
    """A running stand-in. `requests` is what arrived since `reset`."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    zones: dict[str, str] = field(default_factory=dict)
    """Subnet → zone, of what `deploy` made."""
    deployed: Deployed | None = None
    """What `deploy` made; a test that changes it sets None, and the next test gets another."""
    gaps: Gaps = field(default_factory=Gaps)
    _moto: Any = None
    _clients: dict[str, Any] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # -- what a test says

    def fault(
        self,
        service: str,
        operation: str,
        what: Refusal | Breakage,
        *,
        times: int | None = 1,
        skip: int = 0,
        when: Callable[[StandIn, Request], bool] | None = None,
    ) -> Rule:
        """Let requests fail: the first `skip` that match pass, then `times` fail (None: all of them)."""
        return self._rule(Rule(service, operation, what, skip, times, when, after=False))

    def before(
        self,
        service: str,
        operation: str,
        act: Callable[[Request], Answer | None],
        *,
        times: int | None = 1,
        skip: int = 0,
    ) -> Rule:
        """Call `act` before a request is carried out; where it returns an `Answer`, that is sent instead."""
        return self._rule(Rule(service, operation, act, skip, times, None, after=False))

    def after(
        self,
        service: str,
        operation: str,
        act: Callable[[Request], Answer | None],
        *,
        times: int | None = 1,
        skip: int = 0,
    ) -> Rule:
        """Call `act` when a request has been carried out, before its answer is sent."""
        return self._rule(Rule(service, operation, act, skip, times, None, after=True))

    def on_command(self, run: Callable[[Command], CommandResult]) -> None:
        """Let SSM's commands be executed by `run`, in a thread of its own for each."""
        self.gaps.run_command = run

    def operations(self, service: str = "", *, changes: bool = False) -> list[str]:
        """Operations that arrived, in their order; with `changes` without those that only read."""
        reading = ("Describe", "Get", "List", "Head")
        return [
            request.operation
            for request in list(self.requests)
            if (not service or request.service == service) and not (changes and request.operation.startswith(reading))
        ]

    def environment(self, **more: str) -> dict[str, str]:
        """What a process needs in its environment to take this for AWS, and to wait for nothing."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION, "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "NO_PROXY": "127.0.0.1",
            "NEURONBENCH_FLEET_PACE": "0", **more,
        }  # fmt: skip

    def client(self, service: str) -> Any:
        """A client of the test's own; what it does is not among `requests` and meets no fault."""
        if service in self._clients:
            return self._clients[service]
        import boto3
        from botocore.config import Config

        config = Config(user_agent_extra="stand-in-test", retries={"total_max_attempts": 1})
        self._clients[service] = boto3.client(
            service, endpoint_url=self.url, region_name=REGION, aws_access_key_id="testing",
            aws_secret_access_key="testing", config=config,
        )  # fmt: skip
        return self._clients[service]

    def instances(self, *states: str) -> list[dict[str, Any]]:
        """All instances, or those in one of these states."""
        found = self.client("ec2").describe_instances()
        every = [box for reservation in found["Reservations"] for box in reservation["Instances"]]
        return [box for box in every if not states or box["State"]["Name"] in states]

    def stands(self) -> bool:
        """Whether what `deploy` made is still there: moto's state is that of the process, and others reset it, too."""
        from moto.backends import get_backend
        from moto.core.models import DEFAULT_ACCOUNT_ID

        return (
            self.deployed is not None and self.deployed.bucket in get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].buckets
        )

    def forget(self) -> None:
        """No boxes, no disks, no objects, no faults; what `deploy` made stays, which is much cheaper than `reset`."""
        from moto.backends import get_backend
        from moto.core.models import DEFAULT_ACCOUNT_ID

        with self._lock:
            self.rules.clear()
            self.requests.clear()
            self.gaps = Gaps()
        ec2 = get_backend("ec2")[DEFAULT_ACCOUNT_ID][REGION]
        for what in (ec2.reservations, ec2.volumes, ec2.enis, ec2.spot_instance_requests):
            what.clear()
        for bucket in get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].buckets.values():
            bucket.keys.clear()
            bucket.multiparts.clear()

    def reset(self) -> None:
        """As new: nothing was ever made, no fault is left."""
        with self._lock:
            self.rules.clear()
            self.requests.clear()
            self.zones.clear()
            self.gaps = Gaps()
            self.deployed = None
        request = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    # -- what the server does

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        body = _body(environ)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        request = read(environ, body)
        if not request.service or "stand-in-test" in str(environ.get("HTTP_USER_AGENT")):
            return self._carried_out(environ, start, request, seen=False)
        return self._carried_out(environ, start, request, seen=True)

    def _carried_out(self, environ: dict[str, Any], start: Any, request: Request, *, seen: bool) -> Iterable[bytes]:
        first = later = None
        if seen:
            with self._lock:
                self.requests.append(request)
                first, later = self._due(request, after=False), self._due(request, after=True)
        if isinstance(first, Refusal):
            return _send(start, error(request, first.status, first.code_of(request.service), first.message))
        if first is DROPPED:
            return _hang_up(environ)
        if first is not None and not isinstance(first, Breakage):
            instead = first(request)
            if instead is not None:
                return _send(start, instead)
        status, headers, content = self._done(environ, request)
        if later is not None and callable(later):
            later(request)
        if first is LOST:
            return _hang_up(environ)
        if first is SPOILED and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        if first is CUT:
            content = content[: len(content) // 2]  # the length in the headers stays that of the whole
        start(status, headers)
        return [content]

    def _done(self, environ: dict[str, Any], request: Request) -> tuple[str, list[tuple[str, str]], bytes]:
        def carry_out() -> tuple[str, list[tuple[str, str]], bytes]:
            told: dict[str, Any] = {}

            def started(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
                told.update(status=status, headers=headers)

            answer = self._moto(environ, started)
            try:
                content = b"".join(answer)
            finally:
                if hasattr(answer, "close"):
                    answer.close()
            return told["status"], told["headers"], content

        bridged = self.gaps.answer(request, carry_out)
        if bridged is None:
            return carry_out()
        if isinstance(bridged, tuple):
            return bridged
        headers = [("Content-Type", bridged.content_type), ("Content-Length", str(len(bridged.body)))]
        return f"{bridged.status} -", headers, bridged.body

    def _rule(self, rule: Rule) -> Rule:
        with self._lock:
            self.rules.append(rule)
        return rule

    def _due(self, request: Request, *, after: bool) -> Any:
        for rule in self.rules:
            if rule.after is not after or (rule.service, rule.operation) != (request.service, request.operation):
                continue
            if rule.when is not None and not rule.when(self, request):
                continue
            rule.seen += 1
            if rule.seen <= rule.skip or (rule.times is not None and rule.fired >= rule.times):
                continue
            rule.fired += 1
            return rule.what
        return None


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[StandIn]:
    """A stand-in on a free port of this machine."""
    import logging

    from moto.ec2.utils import filter_dict_attribute_mapping
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # of this process for good: they cost a second, and nobody asks
    filter_dict_attribute_mapping["client-token"] = "client_token"  # a filter of DescribeInstances that moto has not
    aws = StandIn()
    aws._moto = DomainDispatcherApplication(create_backend_app)
    # for every request moto looks through its folders for the service, and through a service's class for its methods
    aws._moto.get_backend_for_host = functools.cache(aws._moto.get_backend_for_host)
    responses: Any = importlib.import_module("moto.core.responses")
    if not hasattr(responses.method_names_from_class, "cache_info"):
        responses.method_names_from_class = functools.cache(responses.method_names_from_class)
    server = make_server("127.0.0.1", port, aws, threaded=True, request_handler=MotoRequestHandler)
    server.daemon_threads = True  # type: ignore[attr-defined]
    aws.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield aws
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def deploy(
    aws: StandIn, name: str = "lab", *, zones: tuple[str, ...] = ("us-west-2a", "us-west-2b", "us-west-2c")
) -> Deployed:
    """What the CDK application leaves behind: network, roles, bucket, launch templates, parameters of SSM."""
    ec2, ssm, s3, iam = (aws.client(service) for service in ("ec2", "ssm", "s3", "iam"))
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = {
        zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{index}.0/24", AvailabilityZone=zone)["Subnet"]["SubnetId"]
        for index, zone in enumerate(zones)
    }
    aws.zones.update({subnet: zone for zone, subnet in subnets.items()})
    group = ec2.create_security_group(GroupName=f"{name}-boxes", Description="boxes", VpcId=vpc)["GroupId"]
    iam.create_instance_profile(InstanceProfileName=f"{name}-box")
    bucket = f"{name}-results"
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})

    def tell(key: str, value: dict[str, Any]) -> None:
        ssm.put_parameter(
            Name=f"/neuronbench/{name}/{key}", Type="String", Value=json.dumps({"version": 1, **value}), Overwrite=True
        )

    tell("base", {
        "bucket": bucket, "region": REGION, "subnets": list(subnets.values()), "security_group": group,
        "instance_profile": f"{name}-box",
    })  # fmt: skip
    for kind, instance_type in (("inf2", "inf2.xlarge"), ("trn1", "trn1.2xlarge"), ("trn2", "trn2.3xlarge")):
        template = ec2.create_launch_template(
            LaunchTemplateName=f"{name}-{kind}",
            LaunchTemplateData={
                "ImageId": "ami-12c6146b", "InstanceType": instance_type, "SecurityGroupIds": [group],
                "BlockDeviceMappings": [
                    {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200, "DeleteOnTermination": True}}
                ],
            },
        )  # fmt: skip
        tell(f"box/{kind}", {
            "launch_template": template["LaunchTemplate"]["LaunchTemplateId"], "instance_type": instance_type,
            "ami_parameter": "/aws/service/neuron/dlami/example", "idle_stop_min": 30,
        })  # fmt: skip
    aws.deployed = Deployed(name=name, bucket=bucket, subnets=subnets, security_group=group)
    return aws.deployed


def _body(environ: dict[str, Any]) -> bytes:
    stream = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):
        return bytes(stream.read())
    return bytes(stream.read(int(environ.get("CONTENT_LENGTH") or 0)))


def _send(start: Any, answer: Answer) -> Iterable[bytes]:
    start(f"{answer.status} -", [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))])
    return [answer.body]


def _hang_up(environ: dict[str, Any]) -> Iterable[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("the stand-in hangs up")


def _main() -> None:
    import shlex
    import time

    with serving() as aws:
        deploy(aws)
        for key, value in aws.environment(NEURONBENCH_DEPLOYMENT="lab").items():
            print(f"export {key}={shlex.quote(value)}")
        print(f"# {Path(__file__).name} serves until Ctrl-C", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


if __name__ == "__main__":
    _main()
