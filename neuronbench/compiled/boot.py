"""One boot of a compiled model: weights, artifact (kept, or compiled now), first copy, verified."""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from neuronbench import artifacts, models
from neuronbench.compiled.facts import (
    artifact_facts,
    artifact_metrics,
    reference_parts,
    source_files,
    stack_facts,
    title,
    weights_in_words,
)
from neuronbench.compiled.settings import SHAPE, seeded_architecture
from neuronbench.definitions import metric
from neuronbench.model import Failure, Json, ResourceSpec
from neuronbench.protocols import BootContext, Floor, PointFailure, Stack
from neuronbench.worker.boot import Boot
from neuronbench.worker.client import Launch, Reply, Worker
from neuronbench.worker.compiled import WorkerModel
from neuronbench.worker.copies import Plan, start_copy
from neuronbench.worker.references import References

LOAD_S: Final = 300.0
"""What loading a copy may take, at most."""


class CompiledBoot(Boot, ABC):
    """One boot; a backend's own derives from it and has the methods below that are marked so."""

    model_class: ClassVar[type[WorkerModel]] = WorkerModel

    def __init__(self, spec: ResourceSpec, context: BootContext) -> None:
        super().__init__(spec, context)
        self.scratch = context.folder / "scratch"
        self.rules = tuple(context.backend.failure_rules())

    def run(self) -> WorkerModel:
        try:
            return self.told(self._run)
        except BaseException:
            self.let_go()
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise

    # -- the backend's own

    def title(self) -> str:
        """What is compiled, for people."""
        return title(self.given)

    def begin(self, stack: Stack) -> None:
        """The stack is known, and nothing was started yet."""

    @abstractmethod
    def key_parts(self, stack: Stack, identity: Mapping[str, Json]) -> dict[str, Json]:
        """All that decides what the compiler makes; the digest of it is the artifact's key.

        The names `model`, `family`, `task`, `shape`, `threads`, `env`, `versions`, `target`, `handler` decide what the
        reference answers, too.
        """

    @abstractmethod
    def launch(self, stack: Stack, index: int) -> Launch:
        """How copy `index` is started. Raises `PointFailure` where there is no room for it."""

    @abstractmethod
    def aside(self, stack: Stack, *, compiling: bool) -> Launch:
        """How the compiler's worker is started, and that of the reference, which has no device."""

    def build(self, source: Mapping[str, Json], *, reference: bool) -> dict[str, Json]:
        """Arguments of the handler that say what to build: for the compiler, or for the reference."""
        return {"source": source, "task": self.given["task"], "shape": {name: self.given[name] for name in SHAPE}}

    def compile_options(self) -> dict[str, Json]:
        """Further arguments of the handler's verb `compile`."""
        return {}

    def load_options(self, made: Mapping[str, Json]) -> dict[str, Json]:
        """Further arguments of the handler's verb `load`. `made`: what `compile` said."""
        return {}

    @abstractmethod
    def floor(self, made: Mapping[str, Json]) -> Floor:
        """What no call can be faster than."""

    @abstractmethod
    def max_workers(self) -> int:
        """Copies that fit beside each other."""

    def ready(self, model: WorkerModel, worker: Worker) -> None:
        """The first copy is loaded; its answer is not looked at yet."""

    def let_go(self) -> None:
        """Give back what the boot has taken (cores, say): it failed, or its model has stopped. Idempotent."""

    def sourced(self, stack: Stack) -> tuple[dict[str, Json], dict[str, Json]]:
        """What the handler builds the model from, and the model's part of the artifact's key."""
        given = self.given
        weights = {"weights": given["weights"], "seed": given["weights_seed"]}
        architecture, note = seeded_architecture(given)
        if architecture is not None:
            made = {"architecture": architecture, **weights}
            self.facts["model"] = {"reference": given["model"], **made, "note": note}
            return made, made
        self.context.progress(f"looking up {given['model']}")
        try:
            model = models.resolve(
                given["model"], self.context.settings, progress=self.context.progress, python=stack.python,
                spawn=self.context.spawn, deadline_s=self.left_s(),
            )  # fmt: skip
        except models.ModelError as error:
            raise PointFailure(error.failure()) from error
        config = source_files(model.path)
        facts = model.facts()
        if given["weights"] == "seeded":
            facts["note"] = f"the model's architecture with random weights, seed {given['weights_seed']}"
        self.facts["model"] = {**facts, **weights}
        digest = model.weights_digest if given["weights"] == "pretrained" else ""
        return {"path": str(model.path), **weights}, {"config": config, "digest": digest, **weights}

    # -- the order of things

    def _run(self) -> WorkerModel:
        context, given = self.context, self.given
        self.scratch.mkdir(exist_ok=True)
        stack = self.stack("compile")
        self.facts["stack"] = stack_facts(stack)
        self.begin(stack)
        source, identity = self.sourced(stack)
        parts = self.key_parts(stack, identity)
        artifact = self._artifact(parts, self.aside(stack, compiling=True), self.build(source, reference=False))
        made = artifact.facts

        def release() -> None:
            artifact.release()
            self.let_go()

        plan = Plan(
            launch=lambda index: self.launch(stack, index),
            load={
                "folder": str(artifact.folder),
                **{name: made[name] for name in ("names", "loop", "inputs", "outputs")},
                **self.load_options(made),
            },
            reference=self.aside(stack, compiling=False), reference_arguments=self.build(source, reference=True),
            references=References(
                cache_dir=context.settings.cache_dir, parts=reference_parts(parts, given), title=self.title()
            ),
            release=release,
            folder=context.folder, spawn=context.spawn, name=self.spec.id,
            call_deadline_s=context.settings.deadlines.point, load_deadline_s=min(self.left_s(), LOAD_S),
            trash=[self.scratch],
        )  # fmt: skip
        context.progress(f"loading {self.title()}")
        with contextlib.ExitStack() as undo:
            undo.callback(artifact.release)
            worker, loaded = start_copy(plan, 0, context.progress)
            undo.callback(worker.stop)
            model = self._verified(plan, worker, loaded, artifact)
            undo.pop_all()
            return model

    def _verified(self, plan: Plan, worker: Worker, loaded: Reply, artifact: artifacts.Artifact) -> WorkerModel:
        given, made = self.given, artifact.facts
        self.metrics.append(metric("load_time", loaded.value["seconds"], n=1))
        self.facts["weights"] = weights_in_words(made["model"])
        self.facts["per_item"] = made["per_item"]
        self.facts["worker"] = worker.call("facts", deadline_s=30.0, phase="boot").value
        model = self.model_class(
            self.spec, plan, worker, loaded.value,
            batch_size=given["batch_size"], floor=self.floor(made), max_workers=self.max_workers(),
            facts=self.facts, boot_metrics=self.metrics,
        )  # fmt: skip
        self.ready(model, worker)
        self.context.progress("verifying the first answer")
        answer = model.outputs()
        self.facts["outputs"] = {name: {"dtype": str(a.dtype), "shape": list(a.shape)} for name, a in answer.items()}
        return model

    def _artifact(self, parts: Mapping[str, Json], launch: Launch, build: Mapping[str, Json]) -> artifacts.Artifact:
        """From the cache, or compiled now in a worker that does nothing else."""
        context, given = self.context, self.given

        def compile(folder: Path) -> Mapping[str, Json]:
            context.progress(f"compiling {self.title()}")
            worker = Worker.start(
                launch, name=f"{self.spec.id}-compiler", folder=context.folder, spawn=context.spawn,
                deadline_s=self.left_s(), progress=context.progress,
            )  # fmt: skip
            try:
                arguments = {**build, "dtype": given["dtype"], "target": str(folder), **self.compile_options()}
                reply = worker.call(
                    "compile", arguments, deadline_s=self.left_s(), phase="boot", progress=context.progress
                )
            finally:
                worker.stop()
            return {**reply.value, "wall_s": reply.elapsed_s}

        try:
            found = artifacts.ArtifactCache(context.settings.cache_dir).obtain(
                parts,
                compile,
                progress=context.progress,
                deadline_s=self.left_s(),
                failure_of=_failure_of,
                title=self.title(),
            )
        except artifacts.Busy as error:
            raise PointFailure(
                Failure(kind="boot_timeout", phase="boot", message=str(error), causal_line=str(error),
                        remedy="Wait for it, or raise the deadline: --nb-deadline boot=SECONDS.")
            ) from error  # fmt: skip
        self.metrics += artifact_metrics(found)
        self.facts["artifact"] = artifact_facts(found)
        return found


def _failure_of(error: BaseException) -> Failure | None:
    return error.failure if isinstance(error, PointFailure) else None
