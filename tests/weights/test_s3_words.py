"""What a person reads while bytes move and when S3 refuses: figures that are right, remedies that name the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuronbench.weights import StoreError
from neuronbench.weights.meter import Meter, said_bytes
from neuronbench.weights.s3 import PART_BYTES, PART_VARIABLE, _part_bytes
from neuronbench.weights.s3_errors import told


class Refused(Exception):
    """As botocore's ClientError is."""

    def __init__(self, code: str, operation: str, text: str = "", **more: Any) -> None:
        super().__init__(text or f"An error occurred ({code}) when calling the {operation} operation")
        self.response = {"Error": {"Code": code}, **more}
        self.operation_name = operation


class NoCredentialsError(Exception):
    pass


HEADERS = {"ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": "eu-north-1"}}}


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (Refused("NoSuchBucket", "PutObject"), "store_not_found", "Create the bucket"),
        (Refused("AccessDenied", "PutObject"), "store_auth", "Allow s3:PutObject on s3://b/p"),
        (Refused("403", "HeadObject"), "store_auth", "s3:GetObject and s3:ListBucket"),
        (Refused("AccessDenied", "ListParts"), "store_auth", "s3:ListMultipartUploadParts"),
        (
            Refused("AccessDenied", "GetObject", "is not authorized to perform: kms:Decrypt on resource"),
            "store_auth", "Allow kms:Decrypt",
        ),
        (Refused("ExpiredToken", "UploadPart"), "store_auth", "token has expired"),
        (Refused("InvalidAccessKeyId", "GetObject"), "store_auth", "AWS_PROFILE"),
        (Refused("RequestTimeTooSkewed", "GetObject"), "store_auth", "clock"),
        (NoCredentialsError("none"), "store_auth", "AWS_PROFILE"),
        (Refused("PermanentRedirect", "GetObject", **HEADERS), "store_region", "AWS_REGION=eu-north-1"),
        (
            Refused("AuthorizationHeaderMalformed", "GetObject", "region 'a' is wrong; expecting 'us-west-2'"),
            "store_region", "AWS_REGION=us-west-2",
        ),
        (Refused("SlowDown", "UploadPart"), "store_throttled", "slower pace"),
        (Refused("BadDigest", "UploadPart"), "weights_mismatch", "changed on their way"),
        (ConnectionError("reset"), "store_unreachable", "goes on where it stopped"),
    ],
)  # fmt: skip
def test_every_refusal_says_what_to_do(error: Exception, kind: str, remedy: str) -> None:
    found = told(error, "s3://b/p", "write", "k")
    assert found.kind == kind
    assert remedy in found.remedy
    assert found.message.startswith("s3://b/p: cannot write k: ")
    again = StoreError("x", "y", remedy="z")
    assert told(again, "s3://b/p", "write", "k") is again


def test_a_sign_in_that_is_over_is_no_trouble_of_the_network() -> None:
    """Whoever waits for the network to come back would wait forever."""
    exceptions = pytest.importorskip("botocore.exceptions")
    for error in (
        exceptions.LoginRefreshRequired(), exceptions.LoginTokenLoadError(error_msg="x"), exceptions.NoAuthTokenError(),
        exceptions.CredentialRetrievalError(provider="process", error_msg="x"), exceptions.SSOError(),
        exceptions.TokenRetrievalError(provider="sso", error_msg="x"), exceptions.ProfileNotFound(profile="x"),
    ):  # fmt: skip
        assert told(error, "s3://b/p", "list", "k").kind == "store_auth", error


def test_progress_says_how_much_how_fast_and_how_long_it_will_take() -> None:
    said: list[str] = []
    now = [0.0]
    meter = Meter(said.append, 10_000_000_000, clock=lambda: now[0])
    meter.label("storing model.safetensors")
    meter.moved(1)
    assert said == []  # not for every piece
    meter.there(4_000_000_000)  # needed no time, and is no part of the rate
    for second in range(1, 13):
        now[0] = second
        meter.moved(200_000_000)
    assert said[-1] == "storing model.safetensors: 6.40 of 10.00 GB, 200.0 MB/s, 18 s left".replace("6.40", "6.40 GB")
    meter.lost(400_000_000)
    assert meter.line().startswith("storing model.safetensors: 6.00 GB of 10.00 GB")
    assert [said_bytes(count) for count in (0, 999, 1500, 2.5e6, 3e12)] == [
        "0 B", "999 B", "2 KB", "2.5 MB", "3000.00 GB",
    ]  # fmt: skip
    slow = Meter(None, 10**12, clock=lambda: now[0])
    now[0] += 10
    slow.moved(10**9)
    assert slow.line().endswith("2.8 h left")


def test_the_size_of_parts_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PART_VARIABLE, raising=False)
    assert _part_bytes() == PART_BYTES
    monkeypatch.setenv(PART_VARIABLE, "7000000")
    assert _part_bytes() == 7_000_000
    monkeypatch.setenv(PART_VARIABLE, "7MB")
    with pytest.raises(StoreError, match="expected a number of bytes"):
        _part_bytes()


def test_the_region_is_that_of_the_other_tools_of_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("boto3", reason="boto3 is not installed; `make harness` installs it")
    from neuronbench.weights.s3 import S3Blobs

    config = tmp_path / "config"
    config.write_text("[default]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert S3Blobs("a-bucket")._client.meta.region_name == "eu-west-3"
    monkeypatch.setenv("AWS_REGION", "sa-east-1")
    assert S3Blobs("a-bucket")._client.meta.region_name == "sa-east-1"
