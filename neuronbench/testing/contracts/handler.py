"""What is relied on in a handler: the code of a compiled model that runs in a worker, in a stack."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from neuronbench.model import FrozenMap, Json, ResourceSpec
from neuronbench.processes import spawn
from neuronbench.protocols import Floor, PointFailure
from neuronbench.stacks import clean_environment
from neuronbench.testing.contracts.base import HEAVY
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import WorkerModel
from neuronbench.worker.copies import Plan, start_copy


class HandlerContract:
    """`folder` and `module`: where the handler is; `python`: the stack's interpreter.

    `arguments` are those of its constructor, `compiles` and `loads` those of its verbs; in them `{artifact}` stands for
    the folder that `compile` is given to write to. `tolerance`: the largest difference from the reference.
    """

    folder: ClassVar[Path]
    module: ClassVar[str]
    python: ClassVar[Path] = Path(sys.executable)
    env: ClassVar[Mapping[str, str]] = {}
    arguments: ClassVar[Mapping[str, Json]] = {}
    compiles: ClassVar[Mapping[str, Json]] = {"target": "{artifact}"}
    loads: ClassVar[Mapping[str, Json]] = {}
    references: ClassVar[Mapping[str, Json]] = {}
    batch_size: ClassVar[int] = 1
    tolerance: ClassVar[float] = 1e-2
    uses: ClassVar[Sequence[str]] = ("torch", "transformers", "numpy")
    """Packages of the stack that the handler may import."""
    deadline_s: ClassVar[float] = 300.0

    @pytest.fixture
    def artifact(self, tmp_path: Path) -> Path:
        folder = tmp_path / "artifact"
        folder.mkdir()
        return folder

    def launch(self) -> Launch:
        return Launch(
            python=self.python, handlers=self.folder, module=self.module, env={**clean_environment(), **self.env},
            arguments=self.arguments,
        )  # fmt: skip

    @pytest.fixture
    def model(self, tmp_path: Path, artifact: Path) -> Iterator[WorkerModel]:
        """Compiled in one worker, loaded in another, as a provider does it."""
        started = partial(spawn, pid_dir=tmp_path / "pids")
        compiler = Worker.start(
            self.launch(), name="compiler", folder=tmp_path, spawn=started, deadline_s=self.deadline_s
        )
        try:
            compiler.call("compile", _placed(self.compiles, artifact), deadline_s=self.deadline_s, phase="boot")
        finally:
            compiler.stop()
        plan = Plan(
            launch=lambda index: self.launch(), load=_placed(self.loads, artifact), reference=self.launch(),
            reference_arguments=_placed(self.references, artifact), folder=tmp_path, spawn=started, name="contract",
            call_deadline_s=self.deadline_s, load_deadline_s=self.deadline_s,
        )  # fmt: skip
        worker, loaded = start_copy(plan, 0)
        spec = ResourceSpec(kind="compiled_model", backend="any", provider="compiled_model/any", settings=FrozenMap())
        made = WorkerModel(
            spec, plan, worker, loaded.value, batch_size=self.batch_size, floor=Floor(), max_workers=1, facts={},
            boot_metrics=[],
        )  # fmt: skip
        yield made
        made.stop()

    def test_it_imports_the_stack_and_the_standard_library_only(self) -> None:
        """The stack has none of the harness's dependencies, and its own must not be asked for more."""
        allowed = {*sys.stdlib_module_names, "nb_worker", *self.uses, *(name.replace("-", "_") for name in self.uses)}
        for path in sorted(self.folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module or ""]
                foreign = {name.partition(".")[0] for name in names} - allowed
                assert not foreign, f"{path.name} imports {', '.join(sorted(foreign))}"

    def test_it_imports_nothing_heavy_before_it_is_made(self) -> None:
        """A worker says hello at once and reports what a long import is doing; at module level it could not."""
        tree = ast.parse((self.folder / f"{self.module}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
                assert name.partition(".")[0] not in HEAVY or name.partition(".")[0] in ("numpy", "torch"), name

    def test_it_compiles_loads_and_answers(self, model: WorkerModel) -> None:
        """Inputs are described well enough to make them on any host, outputs have names and finite values."""
        assert model.inputs
        answers = model.outputs()
        assert answers
        for name, array in answers.items():
            assert array.size, f"output {name!r} is empty"
            assert _finite(array), f"output {name!r} is not finite"

    def test_the_same_inputs_have_the_same_answers(self, model: WorkerModel) -> None:
        """Else no reference could be cached, and no accuracy be stated."""
        batch = model.batch(seed=1)
        assert _distance(model.outputs(batch), model.outputs(batch)) == 0.0

    def test_other_inputs_have_other_answers(self, model: WorkerModel) -> None:
        """A model that was not fed computes something all the same."""
        assert _distance(model.outputs(model.batch(seed=1)), model.outputs(model.batch(seed=2))) > 0.0

    def test_its_answers_are_those_of_the_reference(self, model: WorkerModel) -> None:
        """Same names, same shapes; values within `tolerance`."""
        batch = model.batch(seed=3)
        found, wanted = model.outputs(batch), model.reference(batch)
        assert {name: array.shape for name, array in found.items()} == {
            name: array.shape for name, array in wanted.items()
        }
        assert _distance(found, wanted) <= self.tolerance

    def test_its_timer_sees_the_whole_call(self, model: WorkerModel) -> None:
        """A call that returns before the device is done needs a barrier (`synchronize`): what a timer does not see is
        no time, and the study that started this project published such times."""
        from neuronbench.measure_gates import run_gates

        model.use(model.batch())
        held: Any = model
        failed = [gate for gate in run_gates(model.latency(calls=30, warmup=3), held) if gate.passed is False]
        assert not failed, "; ".join(f"{gate.id}: {gate.message}" for gate in failed)

    def test_a_verb_that_fails_is_told_and_the_worker_lives_on(self, model: WorkerModel) -> None:
        """A bad request costs a record, not the model that took an hour to compile."""
        with pytest.raises(PointFailure):
            model._ask(0, "no_such_verb")
        assert model.alive()
        assert model.outputs()


def _placed(arguments: Mapping[str, Json], artifact: Path) -> dict[str, Json]:
    return {
        name: value.replace("{artifact}", str(artifact)) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _finite(array: Any) -> bool:
    import numpy as np

    return bool(np.isfinite(array).all()) if np.issubdtype(array.dtype, np.number) else True


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Largest absolute difference over all outputs."""
    import numpy as np

    return max(
        float(np.max(np.abs(one[name].astype(np.float64) - other[name].astype(np.float64)), initial=0.0))
        for name in one
    )
