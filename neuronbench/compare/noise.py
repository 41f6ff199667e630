"""Noise floors: how large a difference must be to be called one, who says so, and what history says about it.

A floor is the largest of

* the **band** of the metric: `--noise-floor`, else what a plugin's `comparison_policy` says, else the table here;
* its absolute part, where a metric has one: what the client itself may be off by, in the metric's unit;
* what **history** shows: 1.96·√2·σ, where σ is the spread from session to session of the same point in the same
  environment. Repeats of one session share a boot, a machine and an hour, and agree better than sessions do.

The text of a floor says which of them it was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuronbench.compare.reading import MetricKind

MAD_TO_SD: Final = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation."""
HISTORY_NEEDED: Final = 5
"""Fewest past sessions that say anything about spread."""
_TWO_SESSIONS: Final = 1.96 * math.sqrt(2)

Policy = Callable[[str, str], "Mapping[str, Any] | None"]
"""`comparison_policy` of the plugins: metric key and lane → `{"band": share, "floor": in the metric's unit}`."""

_BY_STAT: Final = {"p50": 0.03, "p90": 0.05, "p95": 0.05, "p99": 0.08, "p999": 0.10, "max": 0.15}
_BY_ID: Final = {
    "boot_time": 0.10, "boot_spawn": 0.10, "boot_weights": 0.10, "boot_compile": 0.10, "boot_listen": 0.10,
    "boot_first_token": 0.10, "compile_time": 0.10, "load_time": 0.10, "export_time": 0.10, "prepare_time": 0.10,
    "checkpoint_time": 0.10, "restore_time": 0.10, "merge_time": 0.10, "ship_time": 0.10,
    "train_to_serve_time": 0.10, "first_step_time": 0.10,
    "server_rss": 0.01, "worker_rss": 0.01, "artifact_size": 0.01, "checkpoint_size": 0.01,
}  # fmt: skip
_OTHER: Final = 0.02
"""Rates, means, and whatever is a single number."""
_SHARE: Final = 0.005
"""Of metrics that are shares themselves: half a percentage point."""
_CLIENT_MS: Final = 0.5
_TIMED_BY_CLIENT: Final = frozenset({"ttft", "ttft_due", "ttfat", "e2e", "e2e_due"})
"""Times that begin with a request being written: below half a millisecond the client is what is measured."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A noise floor on the scale of the comparison, and where it comes from."""

    size: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Past:
    """What earlier sessions say about the spread of a metric at a point."""

    sd: float
    """On the scale of the comparison, of one session's value."""
    sessions: int


@dataclass(frozen=True, kw_only=True)
class Bands:
    """Where bands come from, in order: what the user said, what plugins say, the table of this module."""

    given: Mapping[str, float] = field(default_factory=dict)
    """Metric key or id → share."""
    policy: Policy = lambda metric, lane: None

    def band(self, kind: MetricKind, lane: str, *, log: bool) -> tuple[float, float, str]:
        """Relative band (or the absolute one of a share), absolute floor in the metric's unit, and who says so."""
        for name in (kind.key, f"{kind.id}_{kind.stat}" if kind.stat else kind.id, kind.id, "*"):
            if name in self.given:
                return self.given[name], 0.0, "--noise-floor" + ("" if name == "*" else f" {name}")
        said = self.policy(kind.key, lane)
        if said:
            return float(said.get("band", 0.0)), float(said.get("floor", 0.0)), f"policy of a plugin for {kind.key}"
        if not log and kind.unit == "share":
            return _SHARE, 0.0, "default for shares"
        floor = _CLIENT_MS if kind.id in _TIMED_BY_CLIENT and kind.unit == "ms" else 0.0
        if kind.id in _BY_ID:
            return _BY_ID[kind.id], floor, f"default for {kind.id}"
        stat = kind.stat.rpartition("_")[2]
        if stat in _BY_STAT:
            return _BY_STAT[stat], floor, f"default for {stat}"
        return _OTHER, floor, "default"

    def floor(
        self, kind: MetricKind, lane: str, base: Sequence[float], head: Sequence[float], past: Past | None, *, log: bool
    ) -> Floor:
        """The floor for values of two sides; the same whichever of them is called base."""
        band, absolute, source = self.band(kind, lane, log=log)
        middle = (_centre(base, log=log) * _centre(head, log=log)) ** 0.5
        if log:
            size = math.log1p(band)
            text = f"{100 * band:.3g} % ({source})"
            if absolute and middle and math.log1p(absolute / middle) > size:
                size = math.log1p(absolute / middle)
                text = f"{absolute:g} {kind.unit} ({source}: what the client may be off by)"
        elif kind.unit == "share":
            size, text = band, f"{100 * band:.3g} percentage points ({source})"
        else:
            size = max(band * middle, absolute)
            text = f"{100 * band:.3g} % ({source})"
        if past is not None and past.sd * _TWO_SESSIONS > size:
            size = past.sd * _TWO_SESSIONS
            said = f"{100 * math.expm1(size):.3g} %" if log else f"{size:.3g} {kind.unit}"
            text = f"{said} (history: spread of {past.sessions} sessions)"
        return Floor(size=size, text=text)


def _centre(values: Sequence[float], *, log: bool) -> float:
    return math.exp(math.fsum(math.log(v) for v in values) / len(values)) if log else abs(statistics.fmean(values))


def spread_of_history(values: Sequence[float]) -> Past | None:
    """Spread of one session's value around the running median of five, which follows steps and drift.

    `values` are of sessions in order of time, on the scale of the comparison. None below `HISTORY_NEEDED`.
    """
    if len(values) < HISTORY_NEEDED:
        return None
    residuals = []
    for index, value in enumerate(values):
        start = max(0, min(index - 2, len(values) - 5))
        residuals.append(abs(value - statistics.median(values[start : start + 5])))
    return Past(sd=MAD_TO_SD * statistics.median(residuals) * _SHRUNK, sessions=len(values))


_SHRUNK: Final = 1.35
"""A value is part of the median it is compared with, so that its residual is too small, by this factor in a long
history of normal values and by 1.2 in one of five (simulated)."""
