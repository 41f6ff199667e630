"""What we use of optimum-neuron against its source: the release itself where its wheel is at hand, and a small one
that is not what it should be."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("check_optimum", ROOT / "plugins/neuron/tools/check_optimum.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_that_is_used_is_in_the_release() -> None:
    check = tool()
    told = os.environ.get("NEURONBENCH_OPTIMUM_WHEEL")
    places = [Path(told)] if told else [check.default_cache() / check.WHEEL, ROOT / "build" / check.WHEEL]
    found = next((path for path in places if path.is_file()), None)
    if found is None and os.environ.get("NEURONBENCH_FETCH_PARSERS"):
        try:
            found = check.fetch(check.default_cache())
        except RuntimeError as error:
            pytest.skip(str(error))
    if found is None:
        pytest.skip(
            f"{check.WHEEL} is not at hand: python plugins/neuron/tools/check_optimum.py fetches it, "
            "NEURONBENCH_FETCH_PARSERS=1 has it fetched here, NEURONBENCH_OPTIMUM_WHEEL names one"
        )
    assert check.problems(check.Wheel(found)) == []


ARGUMENTS = json.loads(
    (ROOT / "neuronbench/testing/neuron/packages/optimum/neuron/arguments.json").read_text(encoding="utf-8")
)

EVENTS = ("on_train_begin", "on_step_begin", "on_pre_optimizer_step", "on_step_end")
SOURCE = """\
== __init__.py
from .trainers import (NeuronSFTConfig, NeuronSFTTrainer, NeuronTrainer, NeuronTrainingArguments)
== models/training/__init__.py
from .a import NeuronModelForCausalLM, consolidate_model_parallel_checkpoints_to_unified_checkpoint
== models/training/modeling_auto.py
def f(trn_config: TrainingNeuronConfig): ...
== models/training/checkpointing.py
def consolidate_model_parallel_checkpoints_to_unified_checkpoint(checkpoint_dir, output_dir, save_format=''): ...
== trainers/training_args.py
class NeuronTrainingArguments:
SETTINGS    # Evaluation is not supported yet
== trainers/sft_config.py
class NeuronSFTConfig:
    pass
== trainers/sft_trainer.py
class NeuronSFTTrainer:
    def __init__(TAKEN, peft_config): ...
    def train(self): ...
    def training_step(self): ...
    def _save_checkpoint(self): ...
== trainers/transformers.py
class NeuronTrainer:
    def __init__(TAKEN): ...
    def get_train_dataloader(self): ...
    def training_step(self): ...
    def _save_checkpoint(self): ...
    def save_model(self): ...
    def train(self):
        # `resume_from_checkpoint` is not supported by the NeuronTrainer
        self.model = self.args = None
        self.args = 1
        self.grad_norm = None
EVENTS        xm.mark_step()
"""


def small(folder: Path, **replaced: str) -> Path:
    """A wheel with just what is looked at; `replaced`: text in any of its files → other text."""

    def default(value: Any) -> str:
        if isinstance(value, str) and value.startswith("<") and value.endswith("()>"):
            return f"field(default_factory={value[1:-3]})"
        plain = value[1:-1] if isinstance(value, str) and value.startswith("<") else repr(value)
        return f"field(default={plain})"

    known = ARGUMENTS["NeuronTrainingArguments"].items()
    text = SOURCE.replace("SETTINGS", "".join(f"    {name}: object = {default(value)}\n" for name, value in known))
    text = text.replace("EVENTS", "".join(f"        self.callback_handler.{name}()\n" for name in EVENTS))
    text = text.replace("TAKEN", "self, model, args, data_collator, train_dataset, processing_class, callbacks")
    files = {part.partition("\n")[0]: part.partition("\n")[2] for part in text.split("== ")[1:]}
    path = folder / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            for old, new in replaced.items():
                text = text.replace(old, new)
            archive.writestr(f"optimum/neuron/{name}", text)
    return path


def test_a_release_as_it_should_be_has_no_problem(tmp_path: Path) -> None:
    check = tool()
    assert check.problems(check.Wheel(small(tmp_path))) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("NeuronSFTConfig, ", "", "optimum.neuron has no NeuronSFTConfig"),
        ("    skip_cache_push:", "    skip_push:", "NeuronTrainingArguments has no skip_cache_push"),
        (
            "zero_1: object = field(default=True)",
            "zero_1: object = field(default=False)",
            "zero_1 is True, in 0.4.5 False",
        ),
        (", peft_config)", ")", "NeuronSFTTrainer() takes no peft_config"),
        ("def save_model", "def save_it", "NeuronTrainer defines no save_model"),
        ("self.callback_handler.on_step_end()\n", "xm.mark_step()\n", "does not tell on_step_end"),
        ("        xm.mark_step()\n", "", "no step marker after on_step_end"),
        ("is not supported by the ", "works in the ", "no longer refuses resume_from_checkpoint"),
        ("self.grad_norm = None", "pass", "NeuronTrainer sets no grad_norm"),
        ("save_format=", "form=", "has other parameters"),
        ("from .trainers import (", "from .trainers import (NeuronORPOTrainer, ", "has a NeuronORPOTrainer again"),
    ],
)
def test_a_release_that_is_another_is_found_out(tmp_path: Path, old: str, new: str, said: str) -> None:
    check = tool()
    found = check.problems(check.Wheel(small(tmp_path, **{old: new})))
    assert any(said in line for line in found), found
