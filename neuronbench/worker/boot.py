"""What every boot in a worker begins with: a deadline, what becomes known on the way, and a stack that can do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from neuronbench.model import Failure, Json, Metric, ResourceSpec
from neuronbench.protocols import Backend, BootContext, BootError, PointFailure, Stack, Unsupported

if TYPE_CHECKING:
    from neuronbench.config import Settings

OFFLINE: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
"""Environment of a worker: what it needs is looked up before it starts, and it tells nobody."""

R = TypeVar("R")


class Boot:
    """One boot. `facts` and `metrics` fill as it goes on; a failure takes along what there is of them."""

    def __init__(self, spec: ResourceSpec, context: BootContext) -> None:
        self.spec, self.context, self.given = spec, context, spec.settings
        self.until = time.monotonic() + context.deadline_s
        self.facts: dict[str, Json] = {}
        self.metrics: list[Metric] = []

    def told(self, boot: Callable[[], R]) -> R:
        """What `boot()` returns; a `PointFailure` becomes a `BootError` with what was found until then."""
        try:
            return boot()
        except PointFailure as error:
            raise BootError(error.failure, metrics=self.metrics, facts=self.facts) from error

    def left_s(self) -> float:
        """Seconds until the deadline, never 0."""
        return max(self.until - time.monotonic(), 0.1)

    def stack(self, kind: str) -> Stack:
        """The stack for `kind`; raises `PointFailure` where there is none."""
        try:
            return self.context.backend.stack(kind, self.context.settings)
        except LookupError as error:
            text = str(error.args[0])
            raise PointFailure(
                Failure(
                    kind="stack_missing", phase="boot", message=text, causal_line=text.partition("\n")[0],
                    cause=f"no Python environment here can {kind}",
                    remedy=f"Run `make stack`, or give one: --nb-stack {kind}=PATH.",
                )
            ) from error  # fmt: skip


def without_stack(backend: Backend, kind: str, settings: Settings) -> Unsupported | None:
    """Before anything boots: why there is no stack for `kind`; None where there is one."""
    try:
        backend.stack(kind, settings)
    except LookupError as error:
        return Unsupported(reason=" ".join(str(error.args[0]).split()))
    return None
