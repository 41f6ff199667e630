"""Losses of what was held out, and whether the training loss falls: from the logs of real toy runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuronbench.testing.toy_trainer import toy_job
from neuronbench.training import steps
from neuronbench.training.holdout import holdout, loss_falls_gate
from neuronbench.training.steps import RankLog, Steps


def test_losses_of_what_was_held_out_before_and_after(toy: Any, tmp_path: Path) -> None:
    trainer, job = toy(), toy_job(holdout=0.25)
    run = steps.read(trainer.train(job, folder=tmp_path / "run", deadline_s=30.0))
    made = {metric.key: metric for metric in holdout(run)}
    before, after = made["holdout_loss_before"].value, made["holdout_loss_after"].value
    assert before is not None
    assert after is not None
    assert after < before
    assert after == trainer.evaluate(job, folder=tmp_path / "run")["loss"]
    assert made["holdout_loss_after"].n == 16 * job.sequence_length
    assert made["holdout_loss_ratio"].value == pytest.approx(after / before)
    assert made["preference_accuracy_share"].value == 0.75


def test_nothing_is_said_of_a_job_that_holds_nothing_out(toy: Any, tmp_path: Path) -> None:
    run = steps.read(toy().train(toy_job(), folder=tmp_path / "run", deadline_s=30.0))
    assert holdout(run) == []


def run_of(*losses: float, evaluations: Any = ()) -> Steps:
    rows = [{"step": number, "loss": loss} for number, loss in enumerate(losses, 1)]
    return Steps(ranks=[RankLog(rank=0, start={"world_size": 1}, steps=rows, evaluations=evaluations)])


def test_an_evaluation_in_the_middle_is_not_the_end_and_one_that_is_not_finite_is_no_number() -> None:
    middle = [{"name": "holdout", "step": step, "loss": 2.0, "tokens": 9} for step in (0, 1)]
    assert [metric.key for metric in holdout(run_of(3.0, 2.0, evaluations=middle))] == ["holdout_loss_before"]
    bad = [*middle, {"name": "holdout", "step": 2, "loss": "nan", "tokens": 9}]
    made = {metric.key: metric for metric in holdout(run_of(3.0, 2.0, evaluations=bad))}
    assert made["holdout_loss_after"].value is None
    assert made["holdout_loss_after"].note == "the loss is nan"
    assert made["holdout_loss_ratio"].value is None


@pytest.mark.parametrize(
    ("losses", "passed"),
    [
        ((5, 4, 3, 3, 2, 1), True),
        ((1, 2, 3, 4, 5, 6), False),
        ((2, 2, 2), False),
        ((5, float("nan"), 4, 1), True),
        ((5, 1), None),
    ],
)
def test_whether_the_loss_falls(losses: tuple[float, ...], passed: bool | None) -> None:
    gate = loss_falls_gate(run_of(*losses))
    assert gate.passed is passed
    assert bool(gate.message) is (passed is not True)
