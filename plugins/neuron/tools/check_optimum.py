"""Whether everything we use of optimum-neuron is in the release we are written to, by reading its source.

    python plugins/neuron/tools/check_optimum.py            # fetched from PyPI once, half a megabyte
    python plugins/neuron/tools/check_optimum.py WHEEL

The package itself cannot be imported without the Neuron SDK, so nothing is: handlers and the made-up package are read
with `ast`, and so is the wheel. Checked are every name the handlers import from `optimum`, every keyword they call it
with, methods they override or call, and that the made-up package has the same settings with the same defaults.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
HANDLERS: Final = ROOT / "plugins/neuron/neuronbench_neuron/training/handlers"
MADE_UP: Final = ROOT / "neuronbench/testing/neuron/packages/optimum/neuron"
VERSION: Final = "0.4.5"
WHEEL: Final = f"optimum_neuron-{VERSION}-py3-none-any.whl"
CLASSES: Final = {
    "NeuronTrainingArguments": ("optimum/neuron/trainers/training_args.py", ()),
    "NeuronSFTConfig": ("optimum/neuron/trainers/sft_config.py", ("NeuronTrainingArguments",)),
    "NeuronTrainer": ("optimum/neuron/trainers/transformers.py", ()),
    "NeuronSFTTrainer": ("optimum/neuron/trainers/sft_trainer.py", ()),
}
"""Class → where it is, and classes whose fields it has too."""
OF_TRL: Final = ("max_length", "packing", "dataset_kwargs")
"""Settings of `NeuronSFTConfig` that it has from trl's `SFTConfig`, of the trl that the release pins."""
METHODS: Final = {
    "NeuronTrainer": ("get_train_dataloader", "training_step", "_save_checkpoint", "train", "save_model"),
    "NeuronSFTTrainer": ("training_step", "_save_checkpoint", "train"),
}
"""Methods that the handlers call, or go before."""
EVENTS: Final = ("on_train_begin", "on_step_begin", "on_pre_optimizer_step", "on_step_end")
"""Callbacks of a step that the run lives on; `NeuronTrainer` has to tell them."""
ATTRIBUTES: Final = ("grad_norm", "model", "args")


class Wheel:
    """The source of a wheel, parsed on demand."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        self.names = set(self._archive.namelist())

    def text(self, name: str) -> str:
        return self._archive.read(name).decode("utf-8")

    def tree(self, name: str) -> ast.Module:
        return ast.parse(self.text(name))

    def cls(self, name: str) -> ast.ClassDef:
        path, _ = CLASSES[name]
        return next(n for n in self.tree(path).body if isinstance(n, ast.ClassDef) and n.name == name)


def default_cache() -> Path:
    """Where the release is kept once it was fetched."""
    return Path.home() / ".cache" / "neuronbench"


def fetch(cache: Path) -> Path:
    """Download the release's wheel from PyPI (half a megabyte). Raises `RuntimeError` with what pip said last."""
    cache.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", str(cache),
         f"optimum-neuron=={VERSION}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wheel = cache / WHEEL
    if done.returncode or not wheel.is_file():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"optimum-neuron {VERSION} cannot be fetched: {last}")
    return wheel


def problems(wheel: Wheel) -> list[str]:
    """All that does not fit, one line each; empty when everything does."""
    return [*_imports(wheel), *_keywords(wheel), *_methods(wheel), *_callbacks(wheel), *_made_up(wheel)]


# -- parts


def _used() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(HANDLERS.glob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def _imports(wheel: Wheel) -> Iterator[str]:
    """Every name that is imported from `optimum...` is given by that module of the wheel."""
    for path, tree in _used():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "optimum":
                given = names(wheel, str(node.module))
                for alias in node.names:
                    if alias.name not in given:
                        yield f"{path.name}: {node.module} has no {alias.name} in {VERSION}"


def names(wheel: Wheel, module: str) -> set[str]:
    """Names that a module gives: defined, imported, or listed for a lazy import."""
    base = module.replace(".", "/")
    name = f"{base}/__init__.py" if f"{base}/__init__.py" in wheel.names else f"{base}.py"
    if name not in wheel.names:
        return set()
    found: set[str] = set()
    for node in ast.walk(wheel.tree(name)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def _keywords(wheel: Wheel) -> Iterator[str]:
    """Every setting the handlers give is one of the class that gets it."""
    tree = ast.parse((HANDLERS / "optimum_run.py").read_text(encoding="utf-8"))
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "arguments")
    given = {
        key.value
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    } - {"use_reentrant", "skip_prepare_dataset"}
    known = set(fields(wheel.cls("NeuronTrainingArguments")))
    for name in sorted(given - known):
        yield f"optimum_run.py: NeuronTrainingArguments has no {name} in {VERSION}"
    updated = {
        keyword.arg
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update"
        for keyword in node.keywords
    }
    for name in sorted(str(each) for each in updated - set(OF_TRL)):
        yield f"optimum_run.py: {name} is given to NeuronSFTConfig and is not listed as trl's"
    for cls, passed in (
        ("NeuronTrainer", {"model", "args", "processing_class", "callbacks", "train_dataset", "data_collator"}),
        ("NeuronSFTTrainer", {"model", "args", "processing_class", "callbacks", "train_dataset", "data_collator",
                              "peft_config"}),
    ):  # fmt: skip
        taken = parameters(method(wheel.cls(cls), "__init__"))
        for name in sorted(passed - taken):
            yield f"optimum_run.py: {cls}() takes no {name} in {VERSION}"
    joining = wheel.tree("optimum/neuron/models/training/checkpointing.py")
    wanted = "consolidate_model_parallel_checkpoints_to_unified_checkpoint"
    function = next(n for n in joining.body if isinstance(n, ast.FunctionDef) and n.name == wanted)
    if parameters(function) != {"checkpoint_dir", "output_dir", "save_format"}:
        yield f"optimum_run.py: {wanted} has other parameters in {VERSION}"
    auto = wheel.text("optimum/neuron/models/training/modeling_auto.py")
    if "trn_config: TrainingNeuronConfig" not in auto:
        yield "optimum_run.py: NeuronModelForCausalLM.from_pretrained takes no trn_config"


def _methods(wheel: Wheel) -> Iterator[str]:
    for cls, wanted in METHODS.items():
        defined = {node.name for node in wheel.cls(cls).body if isinstance(node, ast.FunctionDef)}
        for name in wanted:
            if name not in defined:
                yield f"{cls} defines no {name} in {VERSION}"
    text = wheel.text(CLASSES["NeuronTrainer"][0])
    if "`resume_from_checkpoint` is not supported by the NeuronTrainer" not in text:
        yield "NeuronTrainer no longer refuses resume_from_checkpoint: the rule that says so is out of date"
    if "Evaluation is not supported yet" not in wheel.text(CLASSES["NeuronTrainingArguments"][0]):
        yield "NeuronTrainingArguments no longer refuses do_eval: our own loop could go"
    if any("NeuronORPOTrainer" in wheel.text(name) for name in ("optimum/neuron/__init__.py",)):
        yield "optimum.neuron has a NeuronORPOTrainer again: the rule that says so is out of date"
    for name in ATTRIBUTES:
        if f"self.{name} = " not in text:
            yield f"NeuronTrainer sets no {name} in {VERSION}"


def _callbacks(wheel: Wheel) -> Iterator[str]:
    """The callbacks are told, and that of a step's end comes before the step marker: the barrier rests on it."""
    text = wheel.text(CLASSES["NeuronTrainer"][0])
    for name in EVENTS:
        if f"callback_handler.{name}(" not in text:
            yield f"NeuronTrainer does not tell {name} in {VERSION}"
    end = text.find("callback_handler.on_step_end(")
    if "xm.mark_step()" not in text[end : end + 200]:
        yield "NeuronTrainer: no step marker after on_step_end; see handlers/xla.py, wait()"


def _made_up(wheel: Wheel) -> Iterator[str]:
    """The made-up package has the settings of the real one: as many, with the same defaults."""
    told = json.loads((MADE_UP / "arguments.json").read_text(encoding="utf-8"))
    if told["optimum-neuron"] != VERSION:
        yield f"arguments.json is of {told['optimum-neuron']}, not of {VERSION}"
    real = fields(wheel.cls("NeuronTrainingArguments"))
    for name in sorted(real.keys() ^ told["NeuronTrainingArguments"].keys()):
        yield f"arguments.json: {name} is in one of the two only"
    for name in sorted(real.keys() & told["NeuronTrainingArguments"].keys()):
        if real[name] != told["NeuronTrainingArguments"][name]:
            yield f"arguments.json: {name} is {told['NeuronTrainingArguments'][name]!r}, in {VERSION} {real[name]!r}"


def fields(cls: ast.ClassDef) -> dict[str, Any]:
    """A data class's fields and their defaults; `<text>` for a default that is no literal."""
    found: dict[str, Any] = {}
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            value: ast.expr = node.value
            text = ""
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
                given = {keyword.arg: keyword.value for keyword in value.keywords}
                text = "()" if "default_factory" in given else ""
                value = given.get("default") or given["default_factory"]
            try:
                found[node.target.id] = ast.literal_eval(value)
            except ValueError:
                found[node.target.id] = f"<{ast.unparse(value)}{text}>"
    return found


def method(cls: ast.ClassDef, name: str) -> ast.FunctionDef:
    return next(node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == name)


def parameters(function: ast.FunctionDef) -> set[str]:
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, nargs="?")
    kept = default_cache() / WHEEL
    found = problems(Wheel(parser.parse_args().wheel or (kept if kept.is_file() else fetch(default_cache()))))
    print("\n".join(found) if found else f"all that is used of optimum-neuron is in {VERSION}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
