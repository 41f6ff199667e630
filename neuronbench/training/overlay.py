"""Two training runs laid over each other: where their losses part, by how much, and whether they move together."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.model import Json

TOLERANCE: Final = 1e-3
"""Relative to the loss: rounding of 16-bit arithmetic stays below it for some hundred steps."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """What two runs of losses say of each other, over the steps that both have."""

    steps: Sequence[int]
    """Steps that both runs have and whose losses are finite in both."""
    first: Sequence[float]
    second: Sequence[float]
    only_first: int
    """Steps that only the first run has."""
    only_second: int
    not_finite: int
    """Common steps left out because a loss is not finite."""
    identical: bool
    """All common losses are equal to the bit."""
    mean_gap: float | None
    """Mean of |second − first|."""
    signed_gap: float | None
    """Mean of second − first: which of the two is higher."""
    max_gap: float | None
    max_gap_step: int | None
    pearson_r: float | None
    """Correlation of the two losses; None below 3 steps or where one of them never changes."""
    divergence_step: int | None
    """First step from whose loss on the two differ by more than `tolerance` × the larger; None: never."""
    tolerance: float

    def to_json(self) -> dict[str, Json]:
        """Everything but the losses themselves."""
        names = (
            "only_first", "only_second", "not_finite", "identical", "mean_gap", "signed_gap", "max_gap", "max_gap_step",
            "pearson_r", "divergence_step", "tolerance",
        )  # fmt: skip
        return {"steps": len(self.steps), **{name: getattr(self, name) for name in names}}


def overlay(first: Mapping[int, float], second: Mapping[int, float], *, tolerance: float = TOLERANCE) -> Overlay:
    """Lay two runs over each other by step number: step → loss of each.

    Raises `ValueError` when they have no step in common, or the tolerance is not a share.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: expected a share from 0 to below 1, found {tolerance!r}")
    common = sorted(first.keys() & second.keys())
    if not common:
        raise ValueError(f"the runs have no step in common: {_range(first)} and {_range(second)}")
    steps = [step for step in common if math.isfinite(first[step]) and math.isfinite(second[step])]
    a, b = [first[step] for step in steps], [second[step] for step in steps]
    gaps = [abs(y - x) for x, y in zip(a, b, strict=True)]
    parted = [s for s, x, y, gap in zip(steps, a, b, gaps, strict=True) if gap > tolerance * max(abs(x), abs(y))]
    largest = max(range(len(gaps)), key=gaps.__getitem__) if gaps else None
    same = all(struct.pack("<d", first[step]) == struct.pack("<d", second[step]) for step in common)
    return Overlay(
        steps=steps,
        first=a,
        second=b,
        only_first=len(first) - len(common),
        only_second=len(second) - len(common),
        not_finite=len(common) - len(steps),
        identical=same,
        mean_gap=math.fsum(gaps) / len(gaps) if gaps else None,
        signed_gap=math.fsum(y - x for x, y in zip(a, b, strict=True)) / len(gaps) if gaps else None,
        max_gap=None if largest is None else gaps[largest],
        max_gap_step=None if largest is None else steps[largest],
        pearson_r=_pearson(a, b),
        divergence_step=parted[0] if parted else None,
        tolerance=tolerance,
    )


def _pearson(a: Sequence[float], b: Sequence[float]) -> float | None:
    if len(a) < 3:
        return None
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    x, y = [each - mean_a for each in a], [each - mean_b for each in b]
    spread = math.sqrt(math.fsum(each * each for each in x)) * math.sqrt(math.fsum(each * each for each in y))
    if spread == 0 or not math.isfinite(spread):
        return None
    return max(-1.0, min(1.0, math.fsum(p * q for p, q in zip(x, y, strict=True)) / spread))


def _range(losses: Mapping[int, float]) -> str:
    return f"steps {min(losses)} to {max(losses)}" if losses else "no steps"
