"""What a step log says of examples that were never trained on, and whether the training loss falls."""

from __future__ import annotations

import math
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.model import Gate, Metric
from neuronbench.training.steps import Steps

NAME: Final = "holdout"
"""Evaluations of this name are of the split that was held out."""


def holdout(run: Steps) -> list[Metric]:
    """Loss before the first step and after the last, their ratio, and of pairs the share that is ranked right.

    Only what was evaluated: an empty list for a job that holds nothing out.
    """
    found = [one for one in run.first.evaluations if one.get("name") == NAME]
    last = run.numbers[-1] if run.numbers else 0
    before = next((one for one in found if one["step"] == 0), None)
    after = next((one for one in reversed(found) if one["step"] == last and last), None)
    made = [
        metric("holdout_loss", _finite(one["loss"]), stat=stat, n=int(one["tokens"]), note=_note(one["loss"]))
        for stat, one in (("before", before), ("after", after))
        if one is not None
    ]
    if before is not None and after is not None:
        start, end = _finite(before["loss"]), _finite(after["loss"])
        made.append(metric("holdout_loss_ratio", end / start if start and end is not None else None, n=1))
    if after is not None and after.get("preferred") is not None:
        made.append(metric("preference_accuracy", float(after["preferred"]), n=1))
    return made


def _finite(loss: Any) -> float | None:
    return float(loss) if math.isfinite(float(loss)) else None


def _note(loss: Any) -> str:
    return "" if math.isfinite(float(loss)) else f"the loss is {loss}"


def loss_falls_gate(run: Steps) -> Gate:
    """Whether the training loss is lower at the end: the mean of the last third of steps against that of the first."""
    losses = [loss for loss in run.losses if math.isfinite(loss)]
    third = len(losses) // 3
    if not third:
        return Gate(id="loss_falls", passed=None, message=f"needs 3 steps with a finite loss, found {len(losses)}")
    begin, end = sum(losses[:third]) / third, sum(losses[-third:]) / third
    return Gate(
        id="loss_falls",
        passed=end < begin,
        observed=end,
        limit=begin,
        message=""
        if end < begin
        else f"the loss is {end:.4g} over the last third of steps, {begin:.4g} over the first",
    )
