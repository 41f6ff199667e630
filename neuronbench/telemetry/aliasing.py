"""Whether a mean of sampled utilisation can be believed: how long one execution takes against the sampling period.

A sampler reads the utilisation of a device once a period, each as a share of that period. `neuron-monitor` credits an
execution to the one period in which it ends: executions that are shorter than the period add up, one that is longer
shows as a single busy period among idle ones, whatever the device did: 1 s in 1.4 s reads as 71 %, on a device that
never rested. A sampler that looks at the state of an instant sees a long execution as it is, once a few looks fall
into each. Between a third of the period and three periods neither is to be trusted.
"""

from __future__ import annotations

from typing import Final

from neuronbench.model import Gate

SHARE: Final = 1 / 3
"""An execution up to this share of a period averages out; looks that are this share of an execution apart see it."""


def aliased(period_s: float, execution_s: float, *, credited_at_end: bool = True) -> bool:
    """Whether executions of that length make the mean of a series with that period meaningless.

    `credited_at_end` is how `neuron-monitor` counts; without it long executions are seen again.
    """
    if execution_s <= SHARE * period_s:
        return False
    return credited_at_end or period_s > SHARE * execution_s


def aliasing_gate(
    period_s: float | None, execution_s: float | None, *, busy_pct: float | None = None, credited_at_end: bool = True
) -> Gate:
    """Failed where utilisation has to be null: observed is the execution time, limit what the period can resolve.

    `busy_pct` is what the series shows; where executions outlast the period the message says what aliasing alone would
    show. Evaluates nothing without a period or an execution time.
    """
    if period_s is None or execution_s is None or period_s <= 0 or execution_s <= 0:
        why = "no period between samples" if not period_s else "the time of one execution is not known"
        return Gate(id="aliased", passed=None, unit="s", severity="info", message=why)
    bad = aliased(period_s, execution_s, credited_at_end=credited_at_end)
    message = f"one execution takes {execution_s:.4g} s, telemetry has a period of {period_s:.4g} s"
    if bad and credited_at_end and execution_s > period_s:
        message += f": on a device that never rests it shows {100 * period_s / execution_s:.1f} %"
        message += f", here {busy_pct:.1f} %" if busy_pct is not None else ""
    return Gate(
        id="aliased",
        passed=not bad,
        observed=execution_s,
        limit=SHARE * period_s,
        unit="s",
        severity="info",
        message=message + ("; utilisation says nothing and is null" if bad else ""),
    )
