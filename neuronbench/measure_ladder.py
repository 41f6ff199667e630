"""Climbing to the wall: larger and larger values of one thing until one fails, then bisecting between the two.

Where the wall is and why it is there are both results: every rung is in the record, a failed one with its class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronbench.definitions import metric
from neuronbench.model import Failure, Json, Metric
from neuronbench.protocols import BootError, PointFailure

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session

LADDER: Final = "ladder"
"""Part of the workload that lists the rungs in the order they were tried."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One value that was tried."""

    value: int
    result: Any = None
    """What the attempt returned; None when it failed."""
    failure: Failure | None = None
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Json]:
        told: dict[str, Json] = {"value": self.value, "passed": self.failure is None, "wall_s": self.wall_s}
        if self.failure is not None:
            told["failure"] = {
                "kind": self.failure.kind, "phase": self.failure.phase, "message": self.failure.message,
                "causal_line": self.failure.causal_line, "remedy": self.failure.remedy,
            }  # fmt: skip
        metrics = getattr(self.result, "metrics", None)
        if isinstance(metrics, dict) and all(isinstance(each, Metric) for each in metrics.values()):
            told["metrics"] = {key: each.value for key, each in metrics.items()}
        return told


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """All rungs, in the order they were tried."""

    rungs: tuple[Rung, ...]

    @property
    def largest(self) -> int:
        """The largest value that passed."""
        return max(rung.value for rung in self.rungs if rung.failure is None)

    @property
    def wall(self) -> Rung | None:
        """The smallest that failed; None when none did."""
        failed = [rung for rung in self.rungs if rung.failure is not None]
        return min(failed, key=lambda rung: rung.value) if failed else None


def climb(
    session: Session,
    opened: OpenRecord,
    values: Sequence[int],
    attempt: Callable[[int], Any],
    *,
    id: str,
    resolution: int,
) -> Ladder:
    """Try and record; see `Measure.ladder`."""
    if not values or list(values) != sorted(set(values)):
        raise ValueError(f"ladder: expected values that rise, found {list(values)}")
    if resolution < 1:
        raise ValueError(f"ladder: resolution: expected a whole number from 1, found {resolution}")
    record = opened.record
    rungs: list[Rung] = []
    told: list[Json] = record.workload.setdefault(LADDER, [])

    def tried(value: int) -> bool:
        session.progress(f"{record.point.id}: {id} {value}")
        begun = time.monotonic()
        failure: Failure | None = None
        result: Any = None
        error: PointFailure | BootError | None = None
        try:
            result = attempt(value)
        except (PointFailure, BootError) as raised:
            failure, error = raised.failure, raised
        rungs.append(Rung(value=value, result=result, failure=failure, wall_s=time.monotonic() - begun))
        told.append(rungs[-1].to_json())
        if error is not None and len(rungs) == 1:
            raise error
        return failure is None

    top = next((position for position, value in enumerate(values) if not tried(value)), None)
    if top is not None:
        low, high = values[top - 1], values[top]
        while high - low > resolution:
            middle = low + max((high - low) // 2 // resolution, 1) * resolution
            if tried(middle):
                low = middle
            else:
                high = middle
    made = Ladder(rungs=tuple(rungs))
    wall = made.wall
    note = (
        f"no wall up to {values[-1]}, the last that was tried"
        if wall is None or wall.failure is None
        else f"{wall.value} fails: {wall.failure.kind}: {wall.failure.causal_line or wall.failure.message}"
    )
    record.add(metric(id, made.largest, n=len(rungs), note=note))
    record.notes.append(f"{id}: {made.largest}; {note}")
    return made
