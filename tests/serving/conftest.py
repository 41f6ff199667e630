"""A boot context with real children, and the fake server."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from neuronbench import config, processes
from neuronbench.failures import Rule
from neuronbench.protocols import BackendInfo, BootContext, Probe
from neuronbench.serving.openai_server import ServerCommand
from neuronbench.serving.server import OpenAIServer

FAKE = Path(__file__).parent / "fake_vllm.py"


class FakeBackend:
    info = BackendInfo(name="fake", title="Fake", target="", family="fake")

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def probe(self) -> Probe:
        return Probe(available=True, cores=1)

    def stack(self, kind: str, settings: object) -> None:
        raise LookupError("none")

    def facts(self) -> dict[str, str]:
        return {}

    def failure_rules(self) -> tuple[Rule, ...]:
        return self.rules


@pytest.fixture
def said() -> list[str]:
    """What was reported as progress."""
    return []


@pytest.fixture
def context(tmp_path: Path, said: list[str]) -> Callable[..., BootContext]:
    def make(deadline_s: float = 100.0, *, port: int = 0, rules: tuple[Rule, ...] = ()) -> BootContext:
        settings = config.load(tmp_path, environ={"XDG_CACHE_HOME": str(tmp_path / "cache")})
        settings = dataclasses.replace(settings, port=port, deadlines=config.Deadlines(stop=2.0))
        folder = tmp_path / "boot"
        folder.mkdir(exist_ok=True)
        return BootContext(
            backend=FakeBackend(*rules),
            settings=settings,
            folder=folder,
            deadline_s=deadline_s,
            progress=said.append,
            spawn=partial(processes.spawn, pid_dir=tmp_path / "pids"),
        )

    return make


@pytest.fixture
def command() -> Callable[..., ServerCommand]:
    def make(mode: str = "ok", *more: str, **env: str) -> ServerCommand:
        argv = [sys.executable, str(FAKE), "--served-model-name", "m", "--port", "{port}", *more]
        return ServerCommand(argv=argv, env={**os.environ, "FAKE_VLLM": mode, **env}, model_name="m")

    return make


@pytest.fixture
def keep() -> Iterator[Callable[[OpenAIServer], OpenAIServer]]:
    """Stops what it was given, at the end of the test."""
    servers: list[OpenAIServer] = []

    def remember(server: OpenAIServer) -> OpenAIServer:
        servers.append(server)
        return server

    yield remember
    for server in servers:
        server.stop()
