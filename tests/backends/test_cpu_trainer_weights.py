"""Training on this CPU of weights that need workers of their own: in bfloat16, and those of a real model.

Needs a stack (`make stack`) with trl and peft, else it is skipped with the reason (see `trainer_rig.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from trainer_rig import Rig, job, rigged

from neuronbench.training import TrainJob


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, workers_inherit: None) -> Iterator[Rig]:
    yield from rigged(tmp_path_factory.mktemp("trainer"))


def test_bfloat16_is_what_the_weights_are_in(rig: Rig) -> None:
    wanted = job(dtype="bfloat16", method="full_sft", adapter=None, steps=4)
    found, folder = rig.run(wanted)
    assert found.losses[-1] < found.losses[0]
    rig.trainer(wanted).export(wanted, folder=folder, into=folder / "out")
    assert json.loads((folder / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    rig.live.pop(rig.spec(wanted).key).stop()


def test_real_weights_learn(rig: Rig) -> None:
    wanted = TrainJob(
        method="lora_sft", model="packaged:SmolLM2-135M-Instruct", steps=4, sequence_length=64, batch_size=2,
        learning_rate=5e-4, holdout=0.3, threads=1, dataset_limit=3,
    )  # fmt: skip
    found, folder = rig.run(wanted)
    assert found.start["dataset"]["sequences"] <= 4  # few, so that each step sees what the first one saw
    assert found.losses[-1] < found.losses[0] - 0.3
    assert found.start["parameters"]["frozen"] == pytest.approx(134.5e6, rel=0.01)
    told = rig.trainer(wanted).export(wanted, folder=folder, into=folder / "out")
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"} <= (
        told["files"].keys()
    )
