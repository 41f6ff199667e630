"""Backends and stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from neuronbench.model import FrozenMap, Json
from neuronbench.protocols.registered import BackendInfo


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a backend found on this host. `reason` names what is missing when not `available`."""

    available: bool
    reason: str = ""
    cores: int = 0
    facts: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A Python interpreter that can import the accelerator's software. Never the harness's own."""

    kind: str
    """What it is for: `serving`, `compile`, `train`."""
    python: Path
    source: str
    """Why this one: `--nb-stack`, `neuronbench.toml`, `.venv-cpu beside the project`, ..."""
    packages: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable
    """Distribution name → version, of those that matter."""


@runtime_checkable
class Backend(Protocol):
    """A kind of hardware and how to use it. Constructed once per session with its `BackendInfo`.

    Optional, and not part of the protocol: `profilers`, names of the tools by which its runtime captures profiles;
    where it has none, points with `profile` (`--nb-profile`) are skipped.
    """

    info: BackendInfo

    def probe(self) -> Probe:
        """Look at the host; seconds at most, starts no accelerator process. Called once and cached."""

    def stack(self, kind: str, settings: Any) -> Stack:
        """The interpreter to use for `kind`; raises `LookupError` that lists where it looked and how to make one."""

    def facts(self) -> Mapping[str, Json]:
        """Facts for the environment: driver, SDK, instance type."""

    def failure_rules(self) -> Sequence[Any]:
        """Extra `neuronbench.failures.Rule`s, tried before the general ones."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A finding of `neuronbench doctor`.

    `ok`; `info` when there is nothing to do about it; `warn` when results suffer; `fail` when runs fail. A backend with
    checks of its own has a method `checks(settings)` that returns them, asked where it is available; it is optional,
    and not part of `Backend`.
    """

    name: str
    status: Literal["ok", "info", "warn", "fail"]
    found: str
    remedy: str = ""
