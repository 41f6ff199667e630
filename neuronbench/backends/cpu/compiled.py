"""A model compiled ahead of time for the CPU (AOTInductor), in workers.

Parameters of a point that are this provider's business (others are ignored):

| parameter | default | meaning |
|---|---|---|
| `model` | – | model reference (`neuronbench.models`); may be left out when `architecture` is given |
| `architecture` | – | a configuration of transformers with `model_type`, for seeded weights |
| `weights` | `pretrained` | or `seeded`: random weights from `weights_seed`, on the architecture given or the model's |
| `weights_seed` | 0 | also of heads that the checkpoint has no weights for |
| `family` | `encoder` | module of `handlers/` that knows how to build it |
| `task` | `raw_output` | what it is used for, as the family names it |
| `batch_size` | 1 | |
| `sequence_length` | 128 | |
| `num_labels` | 2 | of a classification |
| `output_tokens` | 16 | of a generation: so many, whatever they are |
| `tp_degree` | 1 | cores that share one model copy; more than 1 is not for this provider |
| `dtype` | `float32` | |
| `threads` | 1 | threads of a model copy, pinned to as many cores; part of what is compiled |
| `compiler_flags` | {} | options of Inductor, `{name: value}` |
| `worker_env` | {} | more environment variables of the worker |
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench import artifacts, models
from neuronbench.worker.boot import OFFLINE, Boot, without_stack
from neuronbench.backends.cpu.compiled_facts import (
    artifact_facts,
    artifact_metrics,
    reference_parts,
    source_files,
    title,
)
from neuronbench.backends.cpu.processor import cores_of, cpu_flags, cxx, floor, host_cores
from neuronbench.catalog.architectures import architecture_of
from neuronbench.definitions import metric
from neuronbench.environment import host_facts
from neuronbench.model import Failure, FrozenMap, Json, Point, ResourceSpec, fingerprint
from neuronbench.protocols import Backend, BootContext, PointFailure, ProviderInfo, Stack, Unsupported
from neuronbench.stacks import clean_environment
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import Plan, WorkerModel, start_copy
from neuronbench.worker.references import References

if TYPE_CHECKING:
    from neuronbench.config import Settings

HANDLERS: Final = Path(__file__).parent / "handlers"
MODULE: Final = "aoti"
DEFAULTS: Final[Mapping[str, Json]] = {
    "model": None,
    "architecture": None,
    "weights": "pretrained",
    "weights_seed": 0,
    "family": "encoder",
    "task": "raw_output",
    "batch_size": 1,
    "sequence_length": 128,
    "num_labels": 2,
    "output_tokens": 16,
    "tp_degree": 1,
    "dtype": "float32",
    "threads": 1,
    "compiler_flags": {},
    "worker_env": {},
}
SHAPE: Final = ("batch_size", "sequence_length", "num_labels", "output_tokens")
"""Settings that say for which shapes the model is compiled."""
SHARED: Final = ("aoti.py", "common.py")
"""Modules of `handlers/` that every family rests on."""
USED: Final = {"asr": ("steps.py",), "seq2seq": ("steps.py",)}
"""Further ones, by the family that needs them."""
DTYPES: Final = ("float32", "bfloat16", "float16")


class AotiCpuProvider:
    """`neuronbench.protocols.Provider` of compiled models on the CPU."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        given = {name: point.get(name, default) for name, default in DEFAULTS.items()}
        return ResourceSpec(
            kind="compiled_model", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given)
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        wrong = wrong_settings(spec.settings)
        if wrong:
            return Unsupported(reason=wrong)
        if spec.settings["model"]:
            known = models.metadata(spec.settings["model"], settings).max_model_len
            length = spec.settings["sequence_length"]
            if known is not None and length > known:
                return Unsupported(
                    reason=f"sequence_length {length} is above the {known} tokens that {spec.settings['model']} takes"
                )
        if not cxx():
            return Unsupported(reason="no C++ compiler on the PATH; AOTInductor needs one: install g++, or set CXX")
        return without_stack(backend, "compile", settings)

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerModel:
        return _Boot(spec, context).run()


class _Boot(Boot):
    """One boot: model, artifact, first copy, verified."""

    def __init__(self, spec: ResourceSpec, context: BootContext) -> None:
        super().__init__(spec, context)
        self.scratch = context.folder / "scratch"

    def run(self) -> WorkerModel:
        try:
            return self.told(self._run)
        except BaseException:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise

    def _run(self) -> WorkerModel:
        context, given = self.context, self.given
        self.scratch.mkdir(exist_ok=True)
        stack = self.stack("compile")
        self.facts["stack"] = stack_facts(stack)
        source, identity = self._source(stack)
        parts = key_parts(given, stack, identity)
        rules = tuple(context.backend.failure_rules())

        def launch(index: int | None) -> Launch:
            cores = None if index is None else cores_of(index, given["threads"])
            return Launch(
                python=stack.python, handlers=HANDLERS, module=MODULE, cores=cores, rules=rules,
                env=environment(given, self.scratch),
                arguments={"threads": given["threads"], "family": given["family"]},
            )  # fmt: skip

        build: dict[str, Json] = {"source": source, "task": given["task"], "shape": {n: given[n] for n in SHAPE}}
        artifact = self._artifact(parts, launch(None), build)
        made = artifact.facts
        plan = Plan(
            launch=launch,
            load={
                "folder": str(artifact.folder),
                **{name: made[name] for name in ("names", "loop", "inputs", "outputs")},
            },
            reference=launch(None), reference_arguments=build,
            references=References(
                cache_dir=context.settings.cache_dir, parts=reference_parts(parts, given), title=title(given)
            ),
            release=artifact.release,
            folder=context.folder, spawn=context.spawn, name=self.spec.id,
            call_deadline_s=context.settings.deadlines.point, load_deadline_s=min(self.left_s(), 300.0),
            trash=[self.scratch],
        )  # fmt: skip
        context.progress(f"loading {title(given)}")
        with contextlib.ExitStack() as undo:
            undo.callback(artifact.release)
            worker, loaded = start_copy(plan, 0, context.progress)
            undo.callback(worker.stop)
            model = self._verified(plan, worker, loaded.value, artifact)
            undo.pop_all()
            return model

    def _verified(
        self, plan: Plan, worker: Worker, loaded: Mapping[str, Json], artifact: artifacts.Artifact
    ) -> WorkerModel:
        given, made = self.given, artifact.facts
        self.metrics.append(metric("load_time", loaded["seconds"], n=1))
        self.facts["weights"] = weights_in_words(made["model"])
        self.facts["per_item"] = made["per_item"]
        self.facts["worker"] = worker.call("facts", deadline_s=30.0, phase="boot").value
        model = WorkerModel(
            self.spec, plan, worker, loaded,
            batch_size=given["batch_size"],
            floor=floor(made["flops_per_call"], given["dtype"], given["threads"]),
            max_workers=max(len(host_cores()) // given["threads"], 1),
            facts=self.facts, boot_metrics=self.metrics,
        )  # fmt: skip
        model.host_bound = True
        self.context.progress("verifying the first answer")
        answer = model.outputs()
        self.facts["outputs"] = {name: {"dtype": str(a.dtype), "shape": list(a.shape)} for name, a in answer.items()}
        return model

    def _source(self, stack: Stack) -> tuple[dict[str, Json], dict[str, Json]]:
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

    def _artifact(self, parts: Mapping[str, Json], launch: Launch, build: Mapping[str, Json]) -> artifacts.Artifact:
        """From the cache, or compiled now in a worker that does nothing else."""
        context, given = self.context, self.given
        flags = {"cpp.threads": given["threads"], **given["compiler_flags"]}

        def compile(folder: Path) -> Mapping[str, Json]:
            context.progress(f"compiling {title(given)}")
            worker = Worker.start(
                launch, name=f"{self.spec.id}-compiler", folder=context.folder, spawn=context.spawn,
                deadline_s=self.left_s(), progress=context.progress,
            )  # fmt: skip
            try:
                arguments = {**build, "dtype": given["dtype"], "flags": flags, "target": str(folder)}
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
                title=title(given),
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


def key_parts(given: FrozenMap, stack: Stack, identity: Mapping[str, Json]) -> dict[str, Json]:
    """All that decides what the compiler makes; the digest of it is the artifact's key."""
    host = host_facts()
    files = [HANDLERS / name for name in (*SHARED, *USED.get(given["family"], ()), f"{given['family']}.py")]
    versions = {name: stack.packages.get(name) for name in ("torch", "transformers", "python")}
    return {
        "compiler": "aoti",
        "model": dict(identity),
        "family": given["family"],
        "task": given["task"],
        "shape": {name: given[name] for name in SHAPE},
        "dtype": given["dtype"],
        "threads": given["threads"],
        "flags": given["compiler_flags"],
        "env": given["worker_env"],
        "versions": {**versions, "cxx": cxx()},
        # The machine code is for the processor it was made on.
        "target": {"arch": host["host.arch"], "cpu": host["host.cpu_model"], "flags": fingerprint(list(cpu_flags()))},
        "handler": artifacts.source_digest(*files),
    }


def environment(given: FrozenMap, scratch: Path) -> dict[str, str]:
    """Of the worker: as many threads as the model copy has, and every cache that a compiler might keep in a folder that
    goes with the resource, so that a cold compile is cold."""
    threads = str(given["threads"])
    env = {**clean_environment(), **OFFLINE}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env[name] = threads
    env.update(TORCHINDUCTOR_CACHE_DIR=str(scratch / "inductor"), TMPDIR=str(scratch))
    env.update({name: str(value) for name, value in given["worker_env"].items()})
    return env


def wrong_settings(settings: FrozenMap) -> str:
    """What makes these settings impossible, in one line; empty when nothing does."""
    architecture = settings["architecture"]
    if not settings["model"] and not architecture:
        return "the point has neither `model` nor `architecture`, so there is nothing to compile"
    if architecture is not None and not (isinstance(architecture, Mapping) and architecture.get("model_type")):
        return f"architecture: expected a table with model_type, found {architecture!r}"
    if settings["weights"] not in ("pretrained", "seeded"):
        return f"weights: expected 'pretrained' or 'seeded', found {settings['weights']!r}"
    if not settings["model"] and settings["weights"] != "seeded":
        return "an architecture without a model has no weights: say weights = 'seeded'"
    if settings["model"] and architecture:
        return "give `model` or `architecture`, not both"
    others = {"__init__.py", *SHARED, *(name for names in USED.values() for name in names)}
    families = [path.stem for path in HANDLERS.glob("*.py") if path.name not in others]
    families.sort(key=lambda name: (name != DEFAULTS["family"], name))
    if settings["family"] not in families:
        return f"family: expected one of {', '.join(families)}; found {settings['family']!r}"
    if settings["dtype"] not in DTYPES:
        return f"dtype: expected one of {', '.join(DTYPES)}; found {settings['dtype']!r}"
    if settings["tp_degree"] != 1:
        return f"tp_degree {settings['tp_degree']}: a model is not spread over cores here; give a copy more `threads`"
    for name in ("batch_size", "sequence_length", "num_labels", "output_tokens", "threads"):
        value = settings[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return f"{name}: expected a whole number from 1, found {value!r}"
    if settings["threads"] > len(host_cores()):
        return f"threads: {settings['threads']} are asked for, this process may use {len(host_cores())} cores"
    for name in ("compiler_flags", "worker_env"):
        if not isinstance(settings[name], Mapping):
            return f"{name}: expected a table of names and values, found {settings[name]!r}"
    return ""


def seeded_architecture(given: Mapping[str, Json]) -> tuple[Mapping[str, Json] | None, str]:
    """The configuration that gets random weights, and what a reader must know of it; None where it is in a folder."""
    if given["architecture"]:
        return given["architecture"], "seeded random weights"
    if given["weights"] != "seeded":
        return None, ""
    return architecture_of(given["model"]), f"seeded random weights on the catalogue's architecture of {given['model']}"


def weights_in_words(made: Mapping[str, Json]) -> str:
    """`real`, `random (seed 0)`, or what of both: what a quality that is measured can be a quality of."""
    if made["weights"] == "seeded":
        return f"random (seed {made['seed']})"
    return f"real, but for random (seed {made['seed']}): {', '.join(made['new'])}" if made["new"] else "real"


def stack_facts(stack: Stack) -> dict[str, Json]:
    return {"python": str(stack.python), "source": stack.source, "packages": stack.packages.to_json()}
