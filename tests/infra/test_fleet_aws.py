"""The door to AWS: what is repeated and what never, what a dry run holds back, and what errors are called."""

from __future__ import annotations

from typing import Any

import pytest
from aws_stand_in import BROKEN, CAPACITY, DROPPED, FORBIDDEN, LOST, QUOTA, THROTTLED, Answer, Deployed, StandIn
from neuronbench_fleet.aws import ATTEMPTS, Aws, Call
from neuronbench_fleet.errors import AwsError, Kind, classify, classify_code, quota_remedy
from neuronbench_fleet.pace import Pace, backoff_s


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, "capacity"),  # EC2 calls it a server error: it is none
        ("Server.InsufficientInstanceCapacity", 500, "capacity"),
        ("Unsupported", 400, "unsupported"),
        ("VcpuLimitExceeded", 400, "quota"),
        ("VolumeLimitExceeded", 400, "quota"),
        ("RequestLimitExceeded", 503, "throttle"),  # ends like a quota
        ("SlowDown", 503, "throttle"),
        ("SpotMaxPriceTooLow", 400, "price"),
        ("UnauthorizedOperation", 403, "auth"),
        ("ExpiredToken", 400, "auth"),
        ("OptInRequired", 401, "auth"),
        ("InvalidInstanceID.NotFound", 400, "not_found"),
        ("NoSuchKey", 404, "not_found"),
        ("ParameterNotFound", 400, "not_found"),
        ("IdempotentParameterMismatch", 400, "conflict"),
        ("PreconditionFailed", 412, "conflict"),
        ("InvalidParameterValue", 400, "invalid"),
        ("NeverHeardOf", 502, "service"),
    ],
)
def test_every_code_has_a_class(code: str, status: int, kind: Kind) -> None:
    assert classify_code(code, status) == kind


def test_a_missing_right_is_named() -> None:
    response = {
        "Error": {
            "Code": "UnauthorizedOperation",
            "Message": "You are not authorized to perform this operation. User: arn:aws:iam::role/me is not authorized"
            " to perform: ec2:RunInstances on resource: x. Encoded authorization failure message: " + "Q" * 500,
        },
        "ResponseMetadata": {"HTTPStatusCode": 403},
    }
    error = type("ClientError", (Exception,), {"response": response})()
    found = classify(error, service="ec2", operation="RunInstances")
    assert found.kind == "auth"
    assert "allow ec2:RunInstances" in found.remedy
    assert "decode-authorization-message" in found.remedy
    assert "QQQ" not in found.message


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        ("RequestExpired", "Request has expired.", "the sign-in has expired"),  # so EC2 says it of a token, too
        ("InvalidSignatureException", "Signature expired: 20261130T041500Z is now earlier than 20261130T042000Z",
         "this machine's clock is wrong"),
        ("InvalidSignatureException", "The request signature we calculated does not match", "are not known to AWS"),
    ],
)  # fmt: skip
def test_a_sign_in_that_is_over_and_a_clock_that_is_wrong_are_told_apart(code: str, message: str, words: str) -> None:
    told = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    found = classify(type("ClientError", (Exception,), {"response": told})(), service="ssm", operation="GetParameters")
    assert found.kind == "auth"
    assert words in found.remedy


@pytest.mark.parametrize("name", ["LoginRefreshRequired", "SSOTokenLoadError", "CredentialRetrievalError"])
def test_a_sign_in_that_is_missing_is_not_being_allowed(name: str) -> None:
    found = classify(type(name, (Exception,), {})("x"))
    assert (found.kind, "sign in" in found.remedy) == ("auth", True)


def test_a_quota_is_named_with_how_to_raise_it() -> None:
    told = quota_remedy("trn1.32xlarge", "spot", 128, "us-west-2")
    assert "All Trn Spot Instance Requests" in told
    assert "--quota-code L-6B0D517C --desired-value 128" in told


def test_waits_double_up_to_a_bound() -> None:
    assert all(base / 2 <= backoff_s(attempt) <= base for attempt, base in ((1, 1.0), (3, 4.0), (20, 30.0)))


def test_the_clock_moves_on_by_waits_that_tests_do_not_wait() -> None:
    slept: list[float] = []
    pace = Pace(0.0, sleep=slept.append)
    before = pace.now_s()
    pace.wait(3600)
    assert slept == [0.0]
    assert pace.now_s() - before >= 3600


# -- against a server


@pytest.mark.parametrize("trouble", [THROTTLED, BROKEN, DROPPED], ids=["throttled", "broken", "dropped"])
def test_what_may_pass_is_tried_again(aws: StandIn, lab: Deployed, trouble: Any) -> None:
    waits: list[str] = []
    door = Aws(on_retry=waits.append)
    aws.fault("ssm", "GetParameter", trouble, times=ATTEMPTS - 1)
    door.call("ssm", "get_parameter", Name="/neuronbench/lab/base")
    assert len(waits) == door.repeated == ATTEMPTS - 1
    assert door.counts() == {"ssm GetParameter": 1}


def test_patience_ends(aws: StandIn, lab: Deployed) -> None:
    rule = aws.fault("ec2", "DescribeInstances", THROTTLED, times=None)
    with pytest.raises(AwsError, match=f"RequestLimitExceeded.*{ATTEMPTS} attempts") as error:
        list(Aws().pages("ec2", "describe_instances", "Reservations"))
    assert error.value.kind == "throttle"
    assert rule.fired == ATTEMPTS


@pytest.mark.parametrize(
    ("trouble", "kind", "status"), [(CAPACITY, "capacity", 3), (FORBIDDEN, "auth", 5), (QUOTA, "quota", 6)]
)
def test_what_does_not_pass_is_not_tried_again(
    aws: StandIn, lab: Deployed, trouble: Any, kind: str, status: int
) -> None:
    rule = aws.fault("ec2", "StartInstances", trouble, times=None)
    with pytest.raises(AwsError) as error:
        Aws().call("ec2", "start_instances", InstanceIds=["i-0123456789abcdef0"])
    assert (error.value.kind, error.value.status) == (kind, status)
    assert rule.fired == 1


def test_a_page_of_something_in_between_is_an_outage(aws: StandIn, lab: Deployed) -> None:
    page = Answer(status=502, body=b"<!doctype html><title>Bad gateway</title>", content_type="text/html")
    aws.before("ec2", "DescribeInstances", lambda _: page, times=2)
    door = Aws()
    assert list(door.pages("ec2", "describe_instances", "Reservations")) == []
    assert door.repeated == 2


@pytest.mark.parametrize("trouble", [LOST, BROKEN], ids=["lost", "broken"])
def test_a_purchase_is_never_repeated(aws: StandIn, lab: Deployed, trouble: Any) -> None:
    rule = aws.fault("ec2", "PurchaseCapacityBlock", trouble, times=None)
    with pytest.raises(AwsError) as error:
        Aws().call("ec2", "purchase_capacity_block", CapacityBlockOfferingId="cb-1", InstancePlatform="Linux/UNIX")
    assert not error.value.answered
    assert rule.fired == 1


def test_a_dry_run_reads_and_changes_nothing(aws: StandIn, lab: Deployed) -> None:
    heard: list[Call] = []
    door = Aws(dry_run=True, on_call=heard.append)
    assert door.call("ssm", "get_parameter", Name="/neuronbench/lab/base")["Parameter"]["Value"]
    assert door.call("s3", "put_object", Bucket=lab.bucket, Key="x", Body=b"secret bytes").get("ETag") is None
    assert "TerminatingInstances" not in door.client("ec2").terminate_instances(InstanceIds=["i-0123456789abcdef0"])
    assert [call.operation for call in door.plan()] == ["PutObject", "TerminateInstances"]
    assert aws.operations() == ["GetParameter"]
    assert [call.made for call in heard] == [True, False, False]


def test_what_is_printed_of_a_call_has_no_secrets(aws: StandIn, lab: Deployed) -> None:
    door = Aws(dry_run=True)
    door.call("s3", "put_object", Bucket=lab.bucket, Key="x", Body=b"bytes of a body")
    door.call("ec2", "run_instances", MinCount=1, MaxCount=1, UserData="password=hunter22")
    door.call(
        "ssm", "send_command", DocumentName="AWS-RunShellScript", InstanceIds=["i-0"],
        Parameters={"commands": ["export HF_TOKEN=hf_abcdefghijklmnopqrstuv"]},
    )  # fmt: skip
    told = "\n".join(call.line() for call in door.calls) + str([call.to_json() for call in door.calls])
    assert "[stream]" in told
    for secret in ("bytes of a body", "hunter22", "hf_abc"):
        assert secret not in told


def test_a_region_that_nobody_named(aws: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(AwsError, match="--region"):
        Aws()
    monkeypatch.setenv("AWS_REGION", "sa-east-1")  # as the other tools of AWS read it
    assert Aws().region == "sa-east-1"


def test_a_profile_that_is_not_there(aws: StandIn) -> None:
    with pytest.raises(AwsError, match="list-profiles") as error:
        Aws(profile="nobody")
    assert error.value.status == 5


def test_no_credentials_is_not_being_allowed(aws: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AwsError, match="aws sso login") as error:
        Aws().call("ssm", "get_parameter", Name="/x")
    assert error.value.status == 5
    assert aws.operations() == []
