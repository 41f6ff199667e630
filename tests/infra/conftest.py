"""AWS for the tests of this folder: one stand-in a module, as new for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aws_stand_in import Deployed, StandIn, deploy, serving


@pytest.fixture(scope="module")
def aws_server() -> Iterator[StandIn]:
    with serving() as server:
        yield server


@pytest.fixture
def aws(aws_server: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """An empty AWS, which commands in this process and its children take for the real one."""
    aws_server.reset()
    for key, value in aws_server.environment().items():
        monkeypatch.setenv(key, value)
    for key in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(key, raising=False)
    yield aws_server
    # a thread of the server that was still at work must not find the next test's rules
    aws_server.rules.clear()


@pytest.fixture
def lab(aws: StandIn, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """The deployment `lab`: subnets in three zones, boxes of all kinds, a bucket."""
    monkeypatch.setenv("NEURONBENCH_DEPLOYMENT", "lab")
    return deploy(aws)
