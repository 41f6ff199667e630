"""Where a series of sessions jumps, and stays.

Change points by PELT with a quadratic cost (Killick et al. 2012), as `ruptures` has it, and then pruned: a step is kept
when it is larger than the noise floor and its t, with the variance left within the segments, is beyond what the best of
all positions would reach by chance.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.compare.noise import MAD_TO_SD

PERSIST: Final = 2
"""Fewest sessions on either side of a step: a single odd session is an outlier, not a step."""
NEEDED: Final = 6
"""Fewest sessions in which steps are looked for."""
_PENALTY: Final = 3.0
"""Of one more step, in units of variance × ln(sessions)."""
_ALPHA: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Step:
    """A lasting change between two sessions that follow each other."""

    index: int
    """Of the first session on the new level."""
    before: float
    after: float
    """Levels, on the scale of the values."""
    p: float
    """Two-sided, after correction for the choice among all positions."""

    @property
    def change(self) -> float:
        return self.after - self.before


def find(values: Sequence[float], band: float) -> list[Step]:
    """Steps larger than `band` in `values`, oldest first; none in a series shorter than `NEEDED`."""
    n = len(values)
    if n < NEEDED:
        return []
    sd = _spread(values)
    if sd == 0:
        return []
    edges = [0, *_changes(values, sd), n]
    while len(edges) > 2:
        steps = [_step(values, edges, index) for index in range(1, len(edges) - 1)]
        weak = [step for step in steps if abs(step.change) <= band or step.p > _ALPHA]
        if not weak:
            return steps
        edges.remove(max(weak, key=lambda step: (step.p, -abs(step.change))).index)
    return []


def _spread(values: Sequence[float]) -> float:
    """Standard deviation of a value, from differences of neighbours, which steps hardly touch."""
    differences = [b - a for a, b in itertools.pairwise(values)]
    middle = statistics.median(differences)
    robust = MAD_TO_SD * statistics.median(abs(d - middle) for d in differences)
    return (robust or statistics.pstdev(differences)) / math.sqrt(2)


def _changes(values: Sequence[float], sd: float) -> list[int]:
    import numpy as np
    import ruptures

    signal = (np.asarray(values) / sd).reshape(-1, 1)
    search = ruptures.KernelCPD(kernel="linear", min_size=PERSIST).fit(signal)  # the linear kernel's cost is quadratic
    return [int(index) for index in search.predict(pen=_PENALTY * math.log(len(values)))[:-1]]


def _step(values: Sequence[float], edges: Sequence[int], at: int) -> Step:
    from scipy.special import stdtr

    n, parts = len(values), [values[a:b] for a, b in itertools.pairwise(edges)]
    left, right = parts[at - 1], parts[at]
    before, after = statistics.fmean(left), statistics.fmean(right)
    within = math.fsum((v - statistics.fmean(part)) ** 2 for part in parts for v in part)
    df = n - len(parts)
    se = math.sqrt(within / df * (1 / len(left) + 1 / len(right))) if df > 0 else 0.0
    p = 0.0 if se == 0 else min(1.0, 2 * float(stdtr(df, -abs(after - before) / se)) * (n - 1))
    return Step(index=edges[at], before=before, after=after, p=p)
