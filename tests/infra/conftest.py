"""AWS for the tests of this folder: one stand-in for all of them, as new for every test."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aws_stand_in import Deployed, StandIn, deploy, serving
from fleet_lab import Lab
from fleet_project import Gates, project
from local_box import Boxes

from neuronbench import cli
from neuronbench.plugins import Plugins


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="session")
def aws_server() -> Iterator[StandIn]:
    with serving() as server:
        yield server


@pytest.fixture
def aws(aws_server: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """AWS without boxes or objects, which commands in this process and its children take for the real one."""
    (aws_server.forget if aws_server.stands() else aws_server.reset)()
    _read_models_once(monkeypatch)
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
    return aws.deployed or deploy(aws)


@pytest.fixture
def fleet(
    lab: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """Run `neuronbench fleet ...` in this process, in a project of its own."""
    (tmp_path / "neuronbench.toml").touch()
    command = _command()  # the same for all of them, made once
    monkeypatch.setattr(cli, "build", lambda _: command)
    monkeypatch.setattr(cli, "Plugins", lambda: None)

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        status = cli.main(["--root", str(tmp_path), "fleet", *arguments])
        said = capsys.readouterr()
        return Ended(status=status, out=said.out, err=said.err)

    return run


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    """What holds the points of the project that `local_fleet` has."""
    return Gates(tmp_path / "gates")


@pytest.fixture
def local_fleet(
    aws: StandIn, lab: Deployed, tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """Boxes on this machine, on which the real script, agent and pytest run."""
    monkeypatch.setenv("NEURONBENCH_PLUGINS", "fleet")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environ = {
        **aws.environment(),
        "TINY_GATES": str(gates.folder),
        "NEURONBENCH_AGENT_PACE": "0.1",
        "NEURONBENCH_PLUGINS": "fleet",
    }
    boxes = Boxes(aws, tmp_path / "boxes", environ)
    try:
        yield Lab(aws, lab, boxes, project(tmp_path / "project"), gates)
    finally:
        boxes.close()


@functools.cache
def _command() -> Any:
    import typer

    return typer.main.get_command(cli.build(Plugins()))


_CLASSES: dict[str, Any] = {}


@functools.cache
def _loader() -> Any:
    import botocore.loaders

    return botocore.loaders.create_loader()


def _read_models_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 reads megabytes of descriptions for every session, and makes classes of them: here once for all."""
    import botocore.client
    import botocore.session

    make = botocore.client.ClientCreator._create_client_class

    def class_of(creator: Any, service: str, model: Any) -> Any:
        if service not in _CLASSES:
            _CLASSES[service] = make(creator, service, model)
        return _CLASSES[service]

    monkeypatch.setattr(botocore.session, "create_loader", lambda *_: _loader())
    monkeypatch.setattr(botocore.client.ClientCreator, "_create_client_class", class_of)
