"""A training job: plain data, one identity, and errors that say what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuronbench.model import FrozenMap, Point
from neuronbench.training import TrainJob

BASE: dict[str, Any] = {"method": "lora_sft", "steps": 10, "model": "packaged:x"}


def test_a_job_is_plain_data_and_comes_back_the_same() -> None:
    job = TrainJob(**BASE, adapter={"r": 4, "targets": "all-linear"}, holdout=0.1)
    back = TrainJob.from_json(json.loads(json.dumps(job.to_json())))
    assert back == job
    assert back.digest == job.digest
    assert job.adapter == FrozenMap(r=4, alpha=32.0, dropout=0.0, targets="all-linear")
    assert hash(job) == hash(back)


def test_whole_numbers_and_their_fractions_are_the_same_job() -> None:
    one, other = (
        TrainJob(**BASE, learning_rate=1, adapter={"alpha": 8}),
        TrainJob(**BASE, learning_rate=1.0, adapter={"alpha": 8.0}),
    )
    assert one.digest == other.digest


@pytest.mark.parametrize(
    "name", [name for name in TrainJob(**BASE).to_json() if name not in ("architecture", "weights")]
)
def test_every_field_is_part_of_the_identity(name: str) -> None:
    other = {
        "method": "orpo", "dataset": "synthetic:1", "dtype": "bfloat16", "on_non_finite": "continue", "model": "y",
        "optimizer": "sgd", "adapter": {"r": 3}, "holdout": 0.5, "packing": False, "recompute": True,
        "dataset_limit": 5, "threads": 2,
    }  # fmt: skip
    job = TrainJob(**{**BASE, "dataset": "builtin:preferences"})
    changed = job.changed(**{name: other.get(name, 7)})
    assert changed.digest != job.digest


def test_an_adapter_is_there_by_default_where_one_is_trained_only() -> None:
    assert TrainJob(**BASE).adapter is not None
    assert TrainJob(**{**BASE, "method": "full_sft"}).adapter is None
    assert TrainJob(**{**BASE, "method": "orpo", "dataset": "builtin:preferences"}).adapter is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "lora"}, "method: expected lora_sft, .*found 'lora'.*did you mean 'lora_sft'"),
        ({"steps": 0}, "steps: expected a whole number from 1, found 0"),
        ({"steps": True}, "steps: expected a whole number"),
        ({"learning_rate": 0}, "learning_rate: expected a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a number above 0"),
        ({"holdout": 1.0}, "holdout: expected a share from 0 to below 1"),
        ({"packing": 1}, "packing: expected true or false, found 1"),
        ({"model": None}, "model: expected a model reference"),
        ({"architecture": {"layers": 2}}, "weights: an architecture of the job's own has no pretrained weights"),
        ({"adapter": {"rank": 4}}, "adapter: 'rank' is no setting of one"),
        ({"adapter": {}}, "adapter: lora_sft trains one"),
        ({"adapter": {"r": 0}}, "adapter.r: expected a whole number from 1"),
        ({"adapter": {"targets": []}}, "adapter.targets: expected names"),
        ({"method": "full_sft", "adapter": {"r": 2}}, "adapter: full_sft trains all weights"),
        ({"warmup_steps": 11}, "warmup_steps: expected at most the 10 steps"),
        ({"dataset": "dolly"}, "dataset: expected builtin:NAME"),
        ({"dataset": "synthetic:x"}, "dataset: the seed of synthetic data is a whole number"),
        ({"method": "dpo"}, "dataset: dpo learns from pairs"),
        ({"world_size": 0}, "world_size: expected a whole number from 1"),
        ({"sequence_lenght": 3}, "'sequence_lenght' is no setting of a training job .did you mean 'sequence_length'"),
    ],
)
def test_what_is_wrong_is_said_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainJob.from_json({**BASE, **changes})


def test_a_point_gives_a_job_and_its_other_parameters_are_nobodys_business() -> None:
    params = FrozenMap(**BASE, behaviour="plain", role="smoke", sequence_length=64)
    point = Point(benchmark="b", lane="lora_sft", backend="fake", params=params, id="p")
    job = TrainJob.from_point(point, seed=7)
    assert (job.sequence_length, job.seed, job.steps) == (64, 7, 10)


def test_a_parameter_that_is_almost_a_setting_is_an_error_not_ignored() -> None:
    with pytest.raises(ValueError, match=r"'warm_up_steps' is no setting .*did you mean 'warmup_steps'"):
        TrainJob.from_point({**BASE, "warm_up_steps": 5})
    with pytest.raises(ValueError, match="method: a training job needs one; found model, steps"):
        TrainJob.from_point({"model": "m", "steps": 3})
