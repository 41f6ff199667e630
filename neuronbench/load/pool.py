"""Pools of observations for percentiles: exact up to a limit, log-spaced bins beyond it."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronbench import stats
from neuronbench.definitions import metric
from neuronbench.model import Metric
from neuronbench.stats import Quantile

EXACT_LIMIT: Final = 500_000
_BINS_PER_E: Final = 2000
"""Bins are 0.05 % wide."""
_LOW: Final = -16.0
_HIGH: Final = 16.0


class Pool:
    """Observations of one quantity, and how many more are at +∞."""

    def __init__(self) -> None:
        self.infinite = 0
        self._parts: list[npt.NDArray[Any]] = []
        self._held = 0
        self._sorted: npt.NDArray[Any] | None = None
        self._bins: npt.NDArray[np.int64] | None = None
        self.n = 0
        self.total = 0.0
        self.least, self.largest = math.inf, -math.inf

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add observations; NaN are left out."""
        values = values[~np.isnan(values)]
        if not len(values):
            return
        self.n += len(values)
        self.total += float(values.sum(dtype=np.float64))
        self.least, self.largest = min(self.least, float(values.min())), max(self.largest, float(values.max()))
        self._sorted = None
        if self._bins is None:
            self._parts.append(values)
            self._held += len(values)
            if self._held <= EXACT_LIMIT:
                return
            self._bins = np.zeros(int((_HIGH - _LOW) * _BINS_PER_E), dtype=np.int64)
            parts, self._parts = self._parts, []
            for part in parts:
                self._count(part)
        else:
            self._count(values)

    def _count(self, values: npt.NDArray[Any]) -> None:
        assert self._bins is not None
        logs = np.log(np.maximum(values, 1e-9, dtype=np.float64))
        index = np.clip(((logs - _LOW) * _BINS_PER_E).astype(np.int64), 0, len(self._bins) - 1)
        self._bins += np.bincount(index, minlength=len(self._bins))

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    def values(self) -> npt.NDArray[Any]:
        """All finite observations, sorted; only while the pool is exact."""
        if self._sorted is None:
            parts, self._parts = self._parts, []
            merged = np.concatenate(parts) if parts else np.empty(0)
            del parts
            merged.sort()
            self._sorted = merged
            self._parts = [merged]
        return self._sorted

    def quantile(self, p: float, *, failures: bool = True, independent: bool = True) -> Quantile:
        infinite = self.infinite if failures else 0
        if self._bins is None:
            return stats.quantile(self.values(), p, infinite, independent=independent)
        k = stats.rank(self.n + infinite, p)
        if k > self.n:
            return Quantile(None, None, None, self.n + infinite, f"unbounded: falls on one of {infinite} failures")
        index = int(np.searchsorted(np.cumsum(self._bins), k))
        value = min(max(math.exp((index + 0.5) / _BINS_PER_E + _LOW), self.least), self.largest)
        return Quantile(
            value, None, None, self.n + infinite, f"from bins 0.05 % wide: more than {EXACT_LIMIT} observations"
        )


def percentile_metric(id: str, pool: Pool, p: float, *, ok: bool = False, independent: bool = True) -> Metric:
    """`ttft_p99_ms`, or of the successes alone `ttft_ok_p99_ms`."""
    found = pool.quantile(p, failures=not ok, independent=independent)
    bounded = found.low is not None or found.high is not None
    return metric(
        id,
        found.value,
        stat=f"{'ok_' if ok else ''}p{100 * p:g}",
        n=found.n,
        low=found.low,
        high=found.high,
        confidence=stats.CONFIDENCE if bounded else None,
        note=found.note,
    )


def mean_metric(id: str, pool: Pool, *, ok: bool = False) -> Metric:
    """Mean; with failures in the population it is unbounded."""
    infinite = 0 if ok else pool.infinite
    return metric(
        id,
        None if infinite else pool.mean,
        stat="ok_mean" if ok else "mean",
        n=pool.n + infinite,
        note=f"unbounded: {infinite} failures" if infinite else "" if pool.n else "no observation",
    )


def max_metric(id: str, pool: Pool) -> Metric:
    infinite = pool.infinite
    return metric(
        id,
        pool.largest if pool.n and not infinite else None,
        stat="max",
        n=pool.n + infinite,
        note=f"unbounded: {infinite} failures" if infinite else "" if pool.n else "no observation",
    )
