"""A trainer in a worker, on hardware of any kind: from a point's parameters to a process that can train.

A backend's provider of the kind `trainer` derives from `TrainerProvider` and its boot from `TrainerBoot`; the handler
that does the work is one of `neuronbench/worker/handlers/training`. What cannot be trained is known before anything
starts.

The parameters of a point are the fields of `neuronbench.training.TrainJob`. Of these `SETTINGS` and a data set in a
file or on the hub make the trainer; jobs that differ in nothing but the others share one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench import datasets, models
from neuronbench.compiled import seeded_architecture, stack_facts
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.protocols import Backend, BootContext, Peak, PointFailure, ProviderInfo, Stack, Unsupported
from neuronbench.stacks import clean_environment
from neuronbench.training import TrainJob
from neuronbench.training.job import PREFERENCE
from neuronbench.worker.boot import OFFLINE, Boot, without_stack
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.trainer import WorkerTrainer

if TYPE_CHECKING:
    from neuronbench.config import Settings

SETTINGS: Final = ("model", "architecture", "weights", "weights_seed", "dtype", "world_size")
"""Of a job: what the trainer is made for."""
BYTES: Final = 258
"""Tokens of an architecture without a tokenizer: 256 bytes, an end, a padding."""
REFUSED: Final = "refused"
"""Setting of a spec that cannot be: why, in one line."""
QUIET: Final = {
    **OFFLINE, "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    # Runs are recorded by the harness alone; no library in the stack reports to anything by itself.
    "DISABLE_MLFLOW_INTEGRATION": "TRUE", "WANDB_DISABLED": "true", "WANDB_MODE": "disabled", "COMET_MODE": "disabled",
}  # fmt: skip
_TRACKING: Final = "MLFLOW_"
"""Variables of this prefix say where runs go; a worker has no business with them."""


class TrainerProvider:
    """`neuronbench.protocols.Provider` of trainers; a backend's own has the methods below that are marked so."""

    STACK = "train"

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    # -- the backend's own

    def wrong(self, job: TrainJob, backend: Backend, settings: Settings, point: Point) -> str:
        """What makes the job impossible on this hardware, in one line; empty when nothing does."""
        return ""

    def cores(self, job: TrainJob) -> int:
        """Of the backend's capacity."""
        return 1

    def more(self, job: TrainJob, point: Point) -> dict[str, Json]:
        """Further settings that make the trainer. Raises `ValueError` for what they cannot be."""
        return {}

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerTrainer:
        raise NotImplementedError

    # -- provider

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        """What trains, without what it is to train. A point that describes no job that can run here says why."""

        def made(given: Mapping[str, Json], cores: int = 1) -> ResourceSpec:
            return ResourceSpec(
                kind="trainer", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given),
                cores=cores,
            )  # fmt: skip

        try:
            job = TrainJob.from_point(point)
            given: dict[str, Json] = {name: getattr(job, name) for name in SETTINGS}
            given["worker_env"] = point.get("worker_env", {})
            given.update(self.more(job, point))
        except ValueError as error:
            return made({REFUSED: " ".join(str(error).split())})
        if job.dataset.startswith(("file:", "hub:")):
            given["dataset"] = job.dataset
        wrong = self.wrong(job, backend, settings, point) or wrong_model(job, settings) or wrong_data(job, settings)
        if not isinstance(given["worker_env"], Mapping):
            wrong = f"worker_env: expected a table of names and values, found {given['worker_env']!r}"
        return made({**given, REFUSED: wrong}) if wrong else made(given, self.cores(job))

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        if REFUSED in spec.settings:
            return Unsupported(reason=spec.settings[REFUSED])
        return without_stack(backend, self.STACK, settings)


class TrainerBoot(Boot):
    """One boot: stack, model, data sets, worker. A backend's own has `launch`, `cores` and `peak`."""

    STACK = "train"

    def __init__(self, spec: ResourceSpec, context: BootContext) -> None:
        super().__init__(spec, context)
        self.scratch = context.folder / "scratch"

    def run(self) -> WorkerTrainer:
        try:
            return self.told(self._run)
        except BaseException:
            self.let_go()
            raise

    # -- the backend's own

    def launch(self, stack: Stack, arguments: Mapping[str, Json]) -> Launch:
        """How the worker is started. `arguments`: of its handler, those that all trainers have."""
        raise NotImplementedError

    def ready(self, stack: Stack, told: Mapping[str, Json]) -> None:
        """The worker runs, and `told` is what it says of itself."""

    def cores(self) -> int:
        """That all ranks use together, in the unit of `peak`."""
        raise NotImplementedError

    def peak(self) -> Peak | None:
        raise NotImplementedError

    def made(self, worker: Worker, **given: object) -> WorkerTrainer:
        """The trainer. `given` are the arguments of `WorkerTrainer`."""
        return WorkerTrainer(self.spec, worker, **given)  # type: ignore[arg-type]

    def let_go(self) -> None:
        """The boot failed: give back what was taken for it."""

    # -- the boot

    def _run(self) -> WorkerTrainer:
        context, given = self.context, self.given
        stack = self.stack(self.STACK)
        self.facts["stack"] = stack_facts(stack)
        source = self._source(stack)
        files = self._files()
        self.scratch.mkdir(exist_ok=True)
        launch = self.launch(
            stack,
            {
                "world_size": given["world_size"], "source": source, "model": given["model"], "datasets": files,
                "cache": str(context.settings.cache_dir / "training" / "data"), "root": str(context.settings.root),
            },
        )  # fmt: skip

        def started(number: int) -> Worker:
            name = self.spec.id if number == 1 else f"{self.spec.id}-{number}"
            left_s = self.left_s() if number == 1 else context.settings.deadlines.boot
            return Worker.start(
                launch, name=name, folder=context.folder, spawn=context.spawn, deadline_s=left_s,
                progress=context.progress,
            )  # fmt: skip

        context.progress(f"starting {self.spec.id}")
        begun = time.monotonic()
        worker = started(1)
        try:
            ready_s = time.monotonic() - begun
            told = worker.call("facts", deadline_s=30.0, phase="boot").value
            self.ready(stack, told)
        except BaseException:
            worker.stop()
            raise
        self.facts["worker"] = told
        imports = f"of that {told['import_s']:.1f} s for imports"
        self.metrics.append(metric("load_time", ready_s, n=1, note=f"spawn → handler ready, {imports}"))
        return self.made(
            worker, world_size=given["world_size"], cores=self.cores(), peak=self.peak(), facts=self.facts,
            boot_metrics=self.metrics, call_deadline_s=context.settings.deadlines.point, progress=context.progress,
            restart=started,
        )  # fmt: skip

    def _source(self, stack: Stack) -> dict[str, Json]:
        """What the handler builds the model from."""
        given, context = self.given, self.context
        weights: dict[str, Json] = {"weights": given["weights"], "seed": given["weights_seed"]}
        architecture, note = seeded_architecture(given)
        if architecture is not None:
            made: dict[str, Json] = {"architecture": FrozenMap(architecture).to_json(), **weights}
            self.facts["model"] = {"reference": given["model"], **made, "note": note, "tokenizer": "bytes"}
            return made
        context.progress(f"looking up {given['model']}")
        try:
            found = models.resolve(
                given["model"], context.settings, progress=context.progress, python=stack.python, spawn=context.spawn,
                deadline_s=self.left_s(),
            )  # fmt: skip
        except models.ModelError as error:
            raise PointFailure(error.failure()) from error
        self.facts["model"] = {**found.facts(), **weights}
        return {"path": str(found.path), **weights}

    def _files(self) -> dict[str, str]:
        """Data sets that jobs may name, as files; that of the spec is fetched when it is not here."""
        wanted = [f"builtin:{name}" for name in datasets.BUILTIN]
        if "dataset" in self.given:
            wanted.append(self.given["dataset"])
        try:
            found = {
                name: datasets.find(name, root=self.context.settings.root, progress=self.context.progress)
                for name in wanted
            }
        except datasets.DataError as error:
            raise PointFailure(error.failure()) from error
        self.facts["datasets"] = {name: each.facts() for name, each in found.items()}
        return {name: str(each.path) for name, each in found.items()}


def environment(
    given: FrozenMap,
    scratch: Path,
    threads: int,
    *,
    base: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Of a worker and its ranks, over `base` (this process's own when None): quiet, offline, `threads` of each rank,
    `more`, and what the point says in `worker_env`."""
    env = clean_environment() if base is None else dict(base)
    env = {name: value for name, value in env.items() if not name.startswith(_TRACKING)}
    env.update(QUIET)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env[name] = str(threads)
    env["TMPDIR"] = str(scratch)
    env.update(more or {})
    env.update({name: str(value) for name, value in given["worker_env"].items()})
    return env


# --------------------------------------------------------------------------------------------------------------------
# what cannot be, known without starting anything


def one_of(name: str, value: str, known: Sequence[str], where: str = "") -> str:
    """That a setting has a value it cannot have; empty when it can."""
    return "" if value in known else f"{name}: expected one of {', '.join(known)}{where}; found {value!r}"


def wrong_model(job: TrainJob, settings: Settings) -> str:
    """What makes the job impossible for its model."""
    given = FrozenMap(model=job.model, architecture=job.architecture, weights=job.weights, weights_seed=0)
    architecture = seeded_architecture(given)[0]
    length: Json = None
    if architecture is not None:
        if not isinstance(architecture.get("model_type"), str):
            return f"architecture: expected a table with model_type, found {FrozenMap(architecture).to_json()!r}"
        wrong = _wrong_architecture(architecture, job)
        if wrong:
            return wrong
        length = architecture.get("max_position_embeddings")
    elif job.model:
        length = models.metadata(job.model, settings).max_model_len
    if isinstance(length, int) and job.sequence_length > length:
        return (
            f"sequence_length {job.sequence_length} is above the {length} tokens that "
            f"{job.model or 'the architecture'} takes"
        )
    return ""


def _wrong_architecture(architecture: Mapping[str, Json], job: TrainJob) -> str:
    hidden, heads = architecture.get("hidden_size"), architecture.get("num_attention_heads")
    shared = architecture.get("num_key_value_heads") or heads
    if isinstance(hidden, int) and isinstance(heads, int) and hidden % heads and "head_dim" not in architecture:
        return f"num_attention_heads: hidden_size {hidden} is not a multiple of {heads} heads"
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        return f"num_key_value_heads: {heads} heads cannot share {shared} of keys and values"
    size = architecture.get("vocab_size")
    if isinstance(size, int) and size < BYTES:
        return f"vocab_size: text is taken as bytes here, expected at least {BYTES}; found {size}"
    return ""


def wrong_data(job: TrainJob, settings: Settings) -> str:
    """What makes the job impossible with its data."""
    kind, _, name = job.dataset.partition(":")
    if kind == "synthetic" or kind == "hub":
        return ""
    path = Path(name).expanduser()
    path = path if path.is_absolute() else settings.root / path
    changed = path.stat().st_mtime_ns if kind == "file" and path.is_file() else 0
    form, wrong = _form(job.dataset, settings.root, changed)
    if wrong:
        return wrong
    if (form == "preferences") != (job.method in PREFERENCE):
        wanted = "pairs (prompt, chosen, rejected)" if job.method in PREFERENCE else "instructions or text"
        return f"dataset: {job.method} learns from {wanted}; {job.dataset} has {form}"
    return ""


@functools.lru_cache(maxsize=64)
def _form(reference: str, root: Path, changed_ns: int) -> tuple[str, str]:
    """Form of a data set, or why there is none. Read once, until the file changes."""
    try:
        return datasets.find(reference, root=root).form, ""
    except datasets.DataError as error:
        return "", f"dataset: {error.message}. {error.remedy}"


__all__ = ["TrainerBoot", "TrainerProvider", "environment", "one_of", "wrong_data", "wrong_model"]
