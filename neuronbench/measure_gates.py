"""Whether what the timed loops of a compiled model gave can be believed.

Gates, of severity `invalid` but for the last:

| id | fails when |
|---|---|
| `timer_escapes_device` | more than 5 % of the wall of a loop, last output on the host, was seen by no timer |
| `implausible` | a call was faster than the device can be, or the rate of all workers higher |
| `non_finite_output` | an answer has NaN or infinity in it |
| `mask_ignored` | answers for real tokens change with the tokens in the padding |
| `window_covered` | a worker did not call from the window's opening to its end |
| `cores_contended` | (provisional) copies on the host's cores had less than 90 % of them |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Gate
from neuronbench.protocols import CompiledModel, Floor

if TYPE_CHECKING:
    from neuronbench.worker.runs import Run

ESCAPE_LIMIT: Final = 0.05
"""Share of a loop's wall that no timer may have missed."""
PROBE_LIMIT: Final = 0.25
"""The same for loops of a few calls, where the loop's ends weigh more; a queue of calls in flight fills most of it."""
MASK_LIMIT: Final = {"float32": 1e-3, "float64": 1e-3}
"""By dtype of the model: how much of an output's largest value may change with the padding."""
MASK_LIMIT_SHORT: Final = 2e-2
"""The same for models with 16-bit arithmetic."""
BUSY_SHARE: Final = 0.9
"""Share of its core that a copy on the host's own cores has to have had."""


def run_gates(run: Run, model: CompiledModel) -> list[Gate]:
    """What the loops themselves tell."""
    least_ms = float(run.durations_ms().min(initial=float("inf")))
    gates = [escape_gate(run), floor_gate(least_ms, model.floor)]
    if run.window_ns is not None:
        gates.append(cover_gate(run))
    return gates


def escape_gate(run: Run) -> Gate:
    """The timers' sum against the wall of the loop up to the last output on the host; whole loop and short ones."""
    probe = run.probe_escape
    if run.escape <= ESCAPE_LIMIT and probe is not None and probe > PROBE_LIMIT:
        return escape_verdict(probe, PROBE_LIMIT, "loops of a few calls")
    return escape_verdict(run.escape, ESCAPE_LIMIT, "the loop")


def escape_verdict(share: float, limit: float, over: str) -> Gate:
    """The gate for a share of the wall that no timer saw."""
    passed = share <= limit
    why = f"{share:.0%} of the wall of {over} was seen by no timer: calls return before the device is done"
    return Gate(
        id="timer_escapes_device",
        passed=passed,
        observed=round(share, 6),
        limit=limit,
        unit="share",
        message="" if passed else why,
    )


def floor_gate(least_ms: float, floor: Floor) -> Gate:
    """No call is faster than launching it, or than its operations take at the peak of its cores."""
    limit_ms = 1e3 * floor.seconds
    if not limit_ms or least_ms == float("inf"):
        why = "no floor is known for this model" if not limit_ms else "no call ended inside the window"
        return Gate(id="implausible", passed=None, unit="ms", message=why)
    passed = least_ms >= limit_ms
    why = (
        f"a call took {least_ms:.4g} ms, none can take less than {limit_ms:.4g} ms "
        f"({floor.flops_per_call:.3g} operations; {floor.source or f'launch {floor.launch_us:g} µs'})"
    )
    return Gate(
        id="implausible",
        passed=passed,
        observed=round(least_ms, 6),
        limit=round(limit_ms, 6),
        unit="ms",
        message="" if passed else why,
    )


def cover_gate(run: Run) -> Gate:
    """Every worker called from the opening of the window, if the run has one, to its end."""
    start, end = run.span_ns
    late_ms = max((loop.begun_ns - start) / 1e6 for loop in run.loops)
    early_ms = max((end - loop.stopped_ns) / 1e6 for loop in run.loops)
    missing_ms = max(late_ms, early_ms, 0.0)
    why = f"a worker began {late_ms:.0f} ms after the window had opened" if late_ms > 0 else ""
    why = why or f"a worker's calls ended {early_ms:.0f} ms before the window closed"
    return Gate(
        id="window_covered",
        passed=missing_ms == 0,
        observed=round(missing_ms, 3),
        limit=0,
        unit="ms",
        message=why if missing_ms else "",
    )


def finite_gate(answers: Sequence[Mapping[str, Any]]) -> Gate:
    """No NaN and no infinity in any output: of the first answer, and of each loop's last."""
    import numpy as np

    wrong: dict[str, int] = {}
    for answer in answers:
        for name, values in answer.items():
            if np.issubdtype(values.dtype, np.inexact):
                wrong[name] = wrong.get(name, 0) + int((~np.isfinite(values)).sum())
    total = sum(wrong.values())
    each = ", ".join(f"{name} {count}" for name, count in wrong.items() if count)
    return Gate(
        id="non_finite_output",
        passed=total == 0,
        observed=total,
        limit=0,
        unit="values",
        message=f"NaN or infinity in {len(answers)} answers: {each} values" if total else "",
    )


def mask_gate(model: CompiledModel) -> Gate:
    """The answers for real tokens do not depend on what stands in the padding."""
    ask = getattr(model, "mask_error", None)
    found = ask() if callable(ask) else None
    if found is None:
        return Gate(id="mask_ignored", passed=None, severity="invalid", message="the model has no attention mask")
    limit = MASK_LIMIT.get(str(model.spec.settings.get("dtype", "float32")), MASK_LIMIT_SHORT)
    passed = found <= limit
    return Gate(
        id="mask_ignored",
        passed=passed,
        observed=found,
        limit=limit,
        unit="share",
        message=""
        if passed
        else f"other tokens in the padding change the answers by {found:.2g} of their largest value",
    )


def contention_gate(busy_pct: float | None, run: Run) -> Gate | None:
    """Copies that compute on a core of their own have to have it: what is missing, something else on the host took.

    None for copies of several cores, whose threads wait for each other.
    """
    if any(cores is None or len(cores) != 1 for cores in run.cores.values()):
        return None
    return contention_verdict(None if busy_pct is None else busy_pct / (100 * len(run.loops)))


def contention_verdict(share: float | None) -> Gate:
    """The gate for the share of their cores that copies had; None where it is not known."""
    share = None if share is None else round(share, 4)
    passed = None if share is None else share >= BUSY_SHARE
    why = "the workers' CPU was not sampled inside the window"
    if share is not None:
        why = "" if passed else f"the copies had {share:.0%} of their cores: other processes took the rest; end them"
    return Gate(
        id="cores_contended", passed=passed, observed=share, limit=BUSY_SHARE, unit="share", severity="provisional",
        message=why,
    )  # fmt: skip
