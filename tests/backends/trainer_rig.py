"""Real trainers on this CPU for tests, and the small job that they train. Needs a stack with trl and peft.

`NEURONBENCH_TEST_STACK` names another stack than `.venv-cpu` beside the project.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuronbench import config, processes
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.plugins import Plugins
from neuronbench.protocols import BootContext, PointFailure
from neuronbench.training import TrainJob, steps
from neuronbench.training.steps import Steps
from neuronbench.worker.trainer import WorkerTrainer

PROJECT = Path(__file__).parent.parent.parent
BOOT_S = 280.0
RUN_S = 200.0
TINY: Mapping[str, Json] = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
BASE: Mapping[str, Any] = {
    "method": "lora_sft", "architecture": TINY, "weights": "seeded", "sequence_length": 64, "batch_size": 2,
    "accumulation": 2, "steps": 6, "learning_rate": 1e-2, "seed": 1, "holdout": 0.1, "threads": 1,
    "adapter": {"r": 4, "alpha": 8.0, "dropout": 0.1, "targets": ["q_proj", "v_proj"]},
}  # fmt: skip


def job(**changes: Any) -> TrainJob:
    return TrainJob.from_point({**BASE, **changes})


FAKE_MLFLOW = """
import pathlib, traceback

def __getattr__(name):
    if not name.startswith("__"):
        with open(pathlib.Path(__file__).with_name("used.txt"), "a") as file:
            file.write(name + "\\n" + "".join(traceback.format_stack()))
    raise AttributeError(name)
"""
"""An mlflow for the workers that does nothing but tell when anything of it is used."""


def fake_mlflow(folder: Path) -> None:
    (folder / "mlflow").mkdir(parents=True)
    (folder / "mlflow" / "__init__.py").write_text(FAKE_MLFLOW, encoding="utf-8")
    (folder / "mlflow-3.1.0.dist-info").mkdir()
    told = "Metadata-Version: 2.1\nName: mlflow\nVersion: 3.1.0\n"
    (folder / "mlflow-3.1.0.dist-info" / "METADATA").write_text(told, encoding="utf-8")


@dataclasses.dataclass
class Rig:
    """A provider with a real stack, and what it booted."""

    folder: Path
    plugins: Plugins
    settings: config.Settings
    live: dict[str, WorkerTrainer] = dataclasses.field(default_factory=dict)
    runs: int = 0

    def spec(self, wanted: TrainJob) -> ResourceSpec:
        params = FrozenMap({**wanted.to_json(), "worker_env": {"PYTHONPATH": str(self.folder / "fakes")}})
        point = Point(benchmark="b.py::f", lane="lora_sft", backend="cpu", params=params, id="p")
        return self.plugins.provider("trainer/trl-cpu").spec(point, self.plugins.backend("cpu"), self.settings)

    def trainer(self, wanted: TrainJob) -> WorkerTrainer:
        spec = self.spec(wanted)
        if spec.key not in self.live:
            folder = self.folder / spec.key
            folder.mkdir()
            context = BootContext(
                backend=self.plugins.backend("cpu"), settings=self.settings, folder=folder, deadline_s=BOOT_S,
                progress=lambda text: None, spawn=partial(processes.spawn, pid_dir=self.folder / "pids"),
            )  # fmt: skip
            made = self.plugins.provider(spec.provider).boot(spec, context)
            assert isinstance(made, WorkerTrainer)
            self.live[spec.key] = made
        return self.live[spec.key]

    def run(self, wanted: TrainJob, name: str = "", *, resume: bool = False, again: bool = True) -> tuple[Steps, Path]:
        """Train, and what a verified log of it says. Ranks that a library aborts are started `again`, once: what is
        asked here is what ranks compute and not whether gloo always starts on a busy host."""
        self.runs += 1
        folder = self.folder / (name or f"run-{self.runs}")
        trainer = self.trainer(wanted)
        try:
            trainer.train(wanted, folder=folder, resume=resume, deadline_s=RUN_S)
        except PointFailure as error:
            if again and not name and re.search(r"rank \d+: ended by SIG|torchrun: ", str(error)):
                return self.run(wanted, again=False)
            error.add_note(trainer.logs[0].read_text(encoding="utf-8", errors="replace")[-4000:])
            raise
        found = steps.read(folder)
        steps.verify(found, wanted)
        return found, folder


def rigged(folder: Path) -> Iterator[Rig]:
    """For a fixture: trainers in `folder`, all of them stopped at the end. The test is skipped without a stack."""
    stack = os.environ.get("NEURONBENCH_TEST_STACK")
    settings = config.load(PROJECT, overrides={"stacks": {"any": stack} if stack else {}})
    plugins = Plugins(entry_points=False)
    made = Rig(folder, plugins, dataclasses.replace(settings, data_root=folder))
    fake_mlflow(folder / "fakes")
    spec = made.spec(job())
    unsupported = plugins.provider(spec.provider).check(spec, plugins.backend("cpu"), made.settings)
    if unsupported is not None:
        pytest.skip(unsupported.reason)
    yield made
    for trainer in made.live.values():
        trainer.stop()
