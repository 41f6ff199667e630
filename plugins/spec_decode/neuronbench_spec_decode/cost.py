"""What a step costs over the tokens drafted in it, and which draft length that makes the best one.

A step of which `d` tokens were drafted takes

    t(d) = floor + cost * d

by least squares over what was measured: one observation for each answer, the mean time of its steps over the mean
number of tokens drafted in them. How far the observations lie from the line is stated with it; a step that computes in
static shapes has a staircase and not a line, and a wide error says so.

Of a step at draft length k, the i-th drafted token is kept as often as it was kept of the longest drafts measured
(greedy acceptance of a position does not depend on how many are drafted after it), so that by drafting k tokens in a
share `s` of the steps

    tokens per step = 1 + s * (kept at 1 + ... + kept at k)        time per token = t(s * k) / tokens per step

Nothing is said of draft lengths beyond the longest one measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from neuronbench_spec_decode.counters import Counts


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The line t(d) in ms."""

    floor_ms: float
    cost_ms: float
    """Per drafted token."""
    error_ms: float
    """Root mean square of what is left."""
    n: int

    def step_ms(self, drafted: float) -> float:
        return self.floor_ms + self.cost_ms * drafted

    @property
    def relative_error(self) -> float:
        """`error_ms` as a share of a step without a draft."""
        return self.error_ms / self.floor_ms if self.floor_ms > 0 else math.inf


def fit(drafted: Sequence[float], step_ms: Sequence[float]) -> Fit | None:
    """The line through (tokens drafted in a step, its time). None unless two numbers of tokens were seen, thrice."""
    import numpy as np

    x, y = np.asarray(drafted, dtype=float), np.asarray(step_ms, dtype=float)
    if len(x) < 3 or float(np.ptp(x)) < 0.1:
        return None
    design = np.stack([np.ones_like(x), x], axis=1)
    (floor, cost), *_ = np.linalg.lstsq(design, y, rcond=None)
    left = y - design @ np.array([floor, cost])
    return Fit(floor_ms=float(floor), cost_ms=float(cost), error_ms=float(np.sqrt((left**2).mean())), n=len(x))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The best draft length by the fit."""

    k: int
    speedup: float
    """Time per token at k = 0 over that at `k`."""
    by_k: tuple[float, ...]
    """The same for 0, 1, ... up to the longest draft measured."""


def predict(line: Fit, counted: Counts, steps: int) -> Prediction | None:
    """From what was counted at the longest drafts, over `steps` decode steps. None where nothing was drafted."""
    if not counted.drafts or not counted.drafted or not counted.kept_at or steps < 1 or line.floor_ms <= 0:
        return None
    share = min(counted.drafts / steps, 1.0)
    longest = counted.drafted / counted.drafts
    kept = [0.0, *accumulate(count / counted.drafts for count in counted.kept_at)]
    speedups = []
    for k, tokens in enumerate(kept):
        step_ms = line.step_ms(share * min(k, longest))
        if step_ms <= 0:
            return None
        speedups.append(line.floor_ms * (1 + share * tokens) / step_ms)
    best = max(range(len(speedups)), key=lambda k: (speedups[k], -k))
    return Prediction(k=best, speedup=speedups[best], by_k=tuple(speedups))
