"""What a boot is given, how it fails, and who boots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from neuronbench.model import Failure, Json, Metric, Point, ResourceSpec
from neuronbench.protocols.backends import Backend
from neuronbench.protocols.registered import ProviderInfo, Unsupported
from neuronbench.protocols.resources import Resource


class Progress(Protocol):
    """Where long steps say what they are doing. Cheap to call; the receiver limits the rate of what is printed."""

    def __call__(self, text: str) -> None: ...


@dataclass(kw_only=True)
class BootContext:
    """All a provider may use while it boots."""

    backend: Backend
    settings: Any
    """`neuronbench.config.Settings`."""
    folder: Path
    """Empty folder for logs and scratch files of this boot; it becomes the attachments of the boot record."""
    deadline_s: float
    progress: Progress
    spawn: Callable[..., Any]
    """`neuronbench.processes.spawn` with the session's pid folder filled in: the only way to start a child."""


class BootError(Exception):
    """A resource could not be made. Carries the classified failure, and what had been measured until then."""

    def __init__(self, failure: Failure, *, metrics: Sequence[Metric] = (), facts: Mapping[str, Json] | None = None):
        super().__init__(f"{failure.kind}: {failure.causal_line or failure.message}")
        self.failure = failure
        self.metrics = list(metrics)
        self.facts = dict(facts or {})


class PointFailure(Exception):
    """A point has no result, and why."""

    def __init__(self, failure: Failure) -> None:
        text = failure.causal_line or failure.message
        super().__init__(f"{failure.kind}: {text}" + (f"\nremedy: {failure.remedy}" if failure.remedy else ""))
        self.failure = failure


class DeadlineExceeded(PointFailure):
    """Something took longer than it may."""


@runtime_checkable
class Provider(Protocol):
    """Boots one kind of resource. Constructed once per session with its `ProviderInfo`."""

    info: ProviderInfo

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        """Derive the spec from the point's parameters: pure, no I/O beyond reading local model metadata."""

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        """Static checks that cost no boot: divisibility, context length against the model, missing stack."""

    def boot(self, spec: ResourceSpec, context: BootContext) -> Resource:
        """Make it live and verified, or raise `BootError`. Must not outlive `context.deadline_s`."""
