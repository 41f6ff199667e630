"""Metrics of an accelerator from its own monitor, whatever plugin's sampler reads it, and whether they mean anything.

A sampler called `accelerator` gives series by these names, those it has: `utilization_percent`, `period_s` (over which
a sample is), `covered_s` (time since the report before), `execution_s` (the longest executions),
`device_latency_p50_s`, `device_latency_p99_s`, `device_bytes`, `outcome/...` and `error/...` (counters),
`ecc/DEVICE/..._uncorrected` (counters), `restarts`, and `accelerator_power` gives `DEVICE/power_percent`. A backend
without such a sampler has no such metrics.

A sample counts when executions are short for its period (`telemetry.aliasing`); all others are left out, and when none
is left the utilisation is null and the gate `aliased` says with which execution and which period.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from neuronbench.definitions import metric
from neuronbench.model import Gate, Metric
from neuronbench.telemetry.aliasing import aliased, aliasing_gate
from neuronbench.telemetry.names import ACCELERATOR, ACCELERATOR_POWER
from neuronbench.telemetry.table import Series, Telemetry, Window

POWER_NS: Final = 180 * 10**9
"""Windows below it say nothing of a mean that the driver makes once a minute."""
COVERED: Final = 0.8
"""Share of the window that the periods of its samples have to add up to."""


def accelerator(
    telemetry: Telemetry, start_ns: int, end_ns: int, *, execution_s: float | None = None
) -> tuple[list[Metric], list[Gate]]:
    """Metrics and gates of a window; nothing of either without the sampler.

    `execution_s`: how long an execution takes at most, by other knowledge, where the monitor does not say it.
    """
    prefix = f"{ACCELERATOR}/"
    tried = ACCELERATOR in telemetry.errors
    if not tried and not any(name.startswith(prefix) for name in telemetry.series()):
        return [], []
    window = telemetry.window(start_ns, end_ns)
    utilization, gate = _utilization(telemetry, window, execution_s)
    found = [*utilization, *_latency(window), *_memory(window), *_counts(telemetry, window), *_power(telemetry, window)]
    return found, [gate, _errors_gate(telemetry, window), _monitor_gate(telemetry, window)]


# -- utilisation


@dataclass(frozen=True, kw_only=True)
class _Sample:
    value: float
    period_s: float | None
    execution_s: float | None

    @property
    def known(self) -> bool:
        return bool(self.period_s and self.execution_s)


def _samples(telemetry: Telemetry, window: Window, execution_s: float | None) -> list[_Sample]:
    series = {
        name: _in_window(telemetry.get(f"{ACCELERATOR}/{name}"), window)
        for name in ("utilization_percent", "period_s", "execution_s")
    }
    # An idle period reports no latency: the executions are those that were seen last, or next.
    known = sorted(series["execution_s"].items())
    return [
        _Sample(
            value=value, period_s=series["period_s"].get(at),
            execution_s=series["execution_s"].get(at, _nearest(known, at)) or execution_s,
        )
        for at, value in sorted(series["utilization_percent"].items())
    ]  # fmt: skip


def _in_window(series: Series, window: Window) -> dict[int, float]:
    return {
        at: value
        for at, value in zip(series.mono_ns, series.values, strict=True)
        if window.start_ns <= at <= window.end_ns
    }


def _nearest(known: Sequence[tuple[int, float]], at: int) -> float | None:
    return min(known, key=lambda pair: abs(pair[0] - at))[1] if known else None


def _utilization(telemetry: Telemetry, window: Window, execution_s: float | None) -> tuple[list[Metric], Gate]:
    samples = _samples(telemetry, window, execution_s)
    judged = [sample for sample in samples if sample.known]
    if not judged:
        why = "the monitor saw none of the cores in use inside the window"
        if samples:
            why = "nobody says how long executions take, so nobody knows whether samples of this period alias"
        gate = replace(aliasing_gate(None, None), message=why)
        return [metric("accelerator_utilization", None, stat=stat, note=why) for stat in ("mean", "min")], gate
    good = [one for one in judged if not aliased(one.period_s or 0.0, one.execution_s or 0.0)]
    shown = max(good or judged, key=lambda one: (one.execution_s or 0.0) / (one.period_s or 1.0))
    every = sum(one.value for one in judged) / len(judged)
    gate = aliasing_gate(shown.period_s, shown.execution_s, busy_pct=every)
    if not good:
        return [
            metric("accelerator_utilization", None, stat=stat, note=f"aliased: {gate.message}")
            for stat in ("mean", "min")
        ], gate
    short = f"{len(samples) - len(good)} of {len(samples)} samples left out, whose period was short for an execution"
    note = short if len(good) < len(samples) else ""
    weights = [one.period_s or 0.0 for one in good]
    mean = sum(one.value * weight for one, weight in zip(good, weights, strict=True)) / sum(weights)
    return [
        metric("accelerator_utilization", mean, stat="mean", n=len(good), note=note),
        metric("accelerator_utilization", min(one.value for one in good), stat="min", n=len(good), note=note),
    ], gate


# -- the rest


def _latency(window: Window) -> list[Metric]:
    """Of executions, by the runtime's own percentiles of each period: the median of them over the window."""
    found = []
    for stat in ("p50", "p99"):
        values = sorted(window.values(f"{ACCELERATOR}/device_latency_{stat}_s"))
        value = values[(len(values) - 1) // 2] * 1e3 if values else None
        why = "the runtime reported no latency inside the window"
        found.append(metric("execution_latency", value, stat=stat, n=len(values), note="" if values else why))
    return found


def _memory(window: Window) -> list[Metric]:
    peak = window.max(f"{ACCELERATOR}/device_bytes")
    why = "" if peak is not None else "the monitor reported no runtime's memory inside the window"
    return [metric("device_memory", peak, stat="max", n=window.n(f"{ACCELERATOR}/device_bytes"), note=why)]


def _counts(telemetry: Telemetry, window: Window) -> list[Metric]:
    done = _rise(telemetry, f"{ACCELERATOR}/outcome/completed", window)
    failed, why = _failed(telemetry, window)
    none = "" if done is not None else "the runtime reported no executions inside the window"
    return [
        metric("executions", done, n=0 if done is None else 1, note=none),
        metric("execution_errors", failed, n=0 if failed is None else 1, note=why),
    ]


def _failed(telemetry: Telemetry, window: Window) -> tuple[float | None, str]:
    """Errors and executions that did not complete well in the window, and uncorrected memory errors.

    A counter that appears inside the window began at 0 before it: errors of runtimes that attached meanwhile count.
    Memory is watched without any runtime: that it has no errors does not say that executions had none.
    """
    names = telemetry.series()
    of_runtimes = [
        name for name in names
        if name.startswith((f"{ACCELERATOR}/outcome/", f"{ACCELERATOR}/error/")) and not name.endswith("/completed")
    ]  # fmt: skip
    of_memory = [name for name in names if name.startswith(f"{ACCELERATOR}/ecc/") and "uncorrected" in name]
    counted, memory = (
        [rise for name in those if (rise := _rise(telemetry, name, window)) is not None]
        for those in (of_runtimes, of_memory)
    )
    if not counted and not any(memory):
        return None, "the runtime reported no counts of errors"
    return sum(counted) + sum(memory), ""


def _rise(telemetry: Telemetry, name: str, window: Window) -> float | None:
    inside = window.values(name)
    series = telemetry.get(name)
    before = [v for at, v in zip(series.mono_ns, series.values, strict=True) if at < window.start_ns]
    if not inside:
        return None
    first = before[-1] if before else inside[0] if "/ecc/" in name else 0.0
    return max(inside[-1] - first, 0.0)


def _errors_gate(telemetry: Telemetry, window: Window) -> Gate:
    failed, why = _failed(telemetry, window)
    message = why
    if failed:
        each = [
            f"{name.removeprefix(f'{ACCELERATOR}/')} {rise:g}"
            for name in telemetry.series()
            if not name.endswith("/completed")
            and name.startswith((f"{ACCELERATOR}/outcome/", f"{ACCELERATOR}/error/", f"{ACCELERATOR}/ecc/"))
            and "_corrected" not in name
            and (rise := _rise(telemetry, name, window))
        ]
        message = f"the device or its runtime failed inside the window: {', '.join(each)}"
    return Gate(
        id="device_errors", passed=None if failed is None else failed == 0, observed=failed, limit=0, unit="errors",
        message=message,
    )  # fmt: skip


def _monitor_gate(telemetry: Telemetry, window: Window) -> Gate:
    """Whether the monitor watched the window: its end, or its silence, is never a flat line."""
    covered = _in_window(telemetry.get(f"{ACCELERATOR}/covered_s"), window).values()
    # The last report comes up to a period before the window's end; in a short window that is much of it.
    longest_s = max(covered, default=0.0)
    share = sum(covered) / max((window.end_ns - window.start_ns) / 1e9 - longest_s, longest_s, 1e-9)
    errors = telemetry.errors.get(ACCELERATOR)
    passed = errors is None and share >= COVERED
    message = (
        ""
        if passed
        else f"{errors.last} ({errors.count} times)"
        if errors
        else "the monitor's periods do not cover the window"
    )
    return Gate(
        id="accelerator_monitored", passed=passed, observed=round(min(share, 1.0), 3), limit=COVERED, unit="share",
        severity="provisional", message=message,
    )  # fmt: skip


def _power(telemetry: Telemetry, window: Window) -> list[Metric]:
    names = [
        name for name in telemetry.series()
        if name.startswith(f"{ACCELERATOR_POWER}/") and name.endswith("/power_percent")
    ]  # fmt: skip
    if not names:
        return []
    values = [value for name in names for value in window.values(name)]
    long_enough = window.end_ns - window.start_ns >= POWER_NS
    why = "" if long_enough else f"the driver averages over a minute: needs a window of {POWER_NS / 6e10:g} minutes"
    if long_enough and not values:
        why = "the driver showed no power inside the window"
    mean = sum(values) / len(values) if values and long_enough else None
    return [metric("device_power", mean, stat="mean", n=len(values) if long_enough else 0, note=why)]
