"""What share of its hardware a run's arithmetic takes, and of what: a documented peak, or what was measured here.

The peak of an accelerator's core is its maker's (see `catalog.accelerators`). A host has none that holds at whatever
clock it runs at: there the denominator is the matrix product that `measure.host_floor` saw in this session, of the same
type and on as many threads, and without one there is no utilisation. What the instructions of a processor cannot exceed
is a bound (`Peak.bound`) and serves to tell the impossible only.
"""

from __future__ import annotations

from neuronbench.definitions import metric
from neuronbench.model import Metric, Record
from neuronbench.protocols import Peak
from neuronbench.training.flops import FlopModel
from neuronbench.training.window import NO_STEP, Window

NO_PEAK = "no peak known for a core of this hardware"


def host_peak(floor: Record | None, dtype: str, cores: int) -> Peak | str:
    """Per core, from a record of the host's floor: its product of fp32 matrices on `cores` threads; else why not."""
    if dtype != "float32":
        return f"the host's products are measured in float32, these are {dtype}"
    if floor is None:
        return "measure.host_floor earlier in the session gives one"
    failed = [gate.id for gate in floor.gates if gate.passed is False and gate.id != "beyond_cache"]
    if failed:
        return f"{floor.receipt_id} measured what the host can do, but its gate {failed[0]} failed"
    found = floor.metrics.get(f"matmul_rate_t{cores}_GFLOP_s")
    if found is None or found.value is None:
        return f"{floor.receipt_id} has no product of matrices on {cores} threads"
    return Peak(
        flops=found.value * 1e9 / cores,
        dtype=dtype,
        source=f"matrix product measured on {cores} threads of this host, receipt {floor.receipt_id}",
        date=floor.started_at[:10],
    )


def share(window: Window, flops: FlopModel, peak: Peak, cores: int) -> tuple[float, str]:
    """What share of `cores` × `peak` the rate by the wall takes, in percent, and the formula and the peak in words."""
    rate = float(window.tokens.sum()) / (window.wall_ns / 1e9)
    kind = "at most" if peak.bound else "dense"
    of_what = f"{cores} × {peak.flops / 1e12:.6g} TFLOP/s {kind} {peak.dtype}, {peak.source}, {peak.date}"
    return flops.mfu_pct(rate, peak.flops, cores), f"{flops.formula()}; {of_what}"


def mfu(window: Window, flops: FlopModel | str, peak: Peak | None, floor: Peak | str, cores: int) -> Metric:
    """The utilisation, or null and why. `flops`: the model, or why there is none; `floor`: see `host_peak`."""
    if isinstance(flops, str):
        return metric("mfu", None, note=flops)
    measured = peak is not None and peak.bound
    rated = floor if measured else peak
    if not isinstance(rated, Peak):
        why = f"; {rated}" if rated else ""
        return metric("mfu", None, note=f"{NO_PEAK}{why}; {flops.formula()}")
    if not window.steps or window.wall_ns <= 0:
        return metric("mfu", None, note=NO_STEP)
    value, of_what = share(window, flops, rated, cores)
    if measured and value > 100.0:
        text = f"{value:.4g} % of what was measured, which was not the best this host can do"
        return metric("mfu", None, n=window.steps, note=f"{text}: {of_what}")
    return metric("mfu", value, n=window.steps, note=of_what)
