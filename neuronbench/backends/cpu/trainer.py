"""Training on the CPU with trl, peft and transformers, in a worker; above one rank by torchrun over gloo.

The parameters of a point are the fields of `neuronbench.training.TrainJob`. Of these, `model`, `architecture`,
`weights`, `weights_seed`, `dtype`, `threads`, `world_size` and a data set in a file or on the hub make the trainer;
jobs that differ in nothing but the others share one. Further parameter:

| parameter | default | meaning |
|---|---|---|
| `worker_env` | {} | more environment variables of the worker |
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench import datasets, models
from neuronbench.backends.cpu.compiled import HANDLERS
from neuronbench.backends.cpu.processor import floor, host_cores
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

MODULE: Final = "training.handler"
DTYPES: Final = ("float32", "bfloat16")
OPTIMIZERS: Final = ("adamw", "sgd", "adafactor")
BYTES: Final = 258
"""Tokens of an architecture without a tokenizer: 256 bytes, an end, a padding."""
REFUSED: Final = "refused"
"""Setting of a spec that cannot be: why, in one line."""
QUIET: Final = {
    **OFFLINE, "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    # Runs are recorded by the harness alone; no library in the stack reports to anything by itself.
    "DISABLE_MLFLOW_INTEGRATION": "TRUE", "WANDB_DISABLED": "true", "WANDB_MODE": "disabled", "COMET_MODE": "disabled",
}  # fmt: skip
ALLOCATOR: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
"""Memory of a step goes to the next one and not back to the system (glibc): a step's tensors are large, and having
their pages made anew each time is a tenth of its time."""
_TRACKING: Final = "MLFLOW_"
"""Variables of this prefix say where runs go; a worker has no business with them."""


class TrlCpuProvider:
    """`neuronbench.protocols.Provider` of trainers on the CPU."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        """What trains, without what it is to train. A point that describes no job that can run here says why."""

        def made(given: Mapping[str, Json]) -> ResourceSpec:
            return ResourceSpec(
                kind="trainer", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given)
            )

        try:
            job = TrainJob.from_point(point)
        except ValueError as error:
            return made({REFUSED: " ".join(str(error).split())})
        given: dict[str, Json] = {
            "model": job.model,
            "architecture": job.architecture,
            "weights": job.weights,
            "weights_seed": job.weights_seed,
            "dtype": job.dtype,
            "threads": threads_of(job),
            "world_size": job.world_size,
            "worker_env": point.get("worker_env", {}),
        }
        if job.dataset.startswith(("file:", "hub:")):
            given["dataset"] = job.dataset
        wrong = wrong_job(job, settings)
        if not isinstance(given["worker_env"], Mapping):
            wrong = f"worker_env: expected a table of names and values, found {given['worker_env']!r}"
        return made({**given, REFUSED: wrong} if wrong else given)

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        if REFUSED in spec.settings:
            return Unsupported(reason=spec.settings[REFUSED])
        return without_stack(backend, "train", settings)

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerTrainer:
        return _Boot(spec, context).run()


class _Boot(Boot):
    """One boot: stack, model, data set, worker."""

    def run(self) -> WorkerTrainer:
        return self.told(self._run)

    def _run(self) -> WorkerTrainer:
        context, given = self.context, self.given
        stack = self.stack("train")
        self.facts["stack"] = stack_facts(stack)
        source = self._source(stack)
        files = self._files()
        cores = host_cores()[: given["threads"] * given["world_size"]]
        scratch = context.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        pinned = hasattr(os, "sched_setaffinity") and given["world_size"] == 1
        launch = Launch(
            python=stack.python, handlers=HANDLERS, module=MODULE, env=environment(given, scratch),
            cores=cores if pinned else None, rules=tuple(context.backend.failure_rules()),
            arguments={
                "world_size": given["world_size"], "cores": cores, "threads": given["threads"],
                "source": source, "model": given["model"], "datasets": files,
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
        except BaseException:
            worker.stop()
            raise
        self.facts["worker"] = told
        imports = f"of that {told['import_s']:.1f} s for imports"
        self.metrics.append(metric("load_time", ready_s, n=1, note=f"spawn → handler ready, {imports}"))
        return WorkerTrainer(
            self.spec, worker, world_size=given["world_size"], cores=len(cores), peak=peak(given["dtype"]),
            facts=self.facts, boot_metrics=self.metrics, call_deadline_s=context.settings.deadlines.point,
            progress=context.progress, restart=started,
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


def threads_of(job: TrainJob) -> int:
    """Threads of a rank: what the job says, else its share of the cores."""
    return job.threads or max(len(host_cores()) // job.world_size, 1)


def environment(given: FrozenMap, scratch: Path) -> dict[str, str]:
    """Of the worker and its ranks."""
    env = {name: value for name, value in clean_environment().items() if not name.startswith(_TRACKING)}
    env.update({**QUIET, **ALLOCATOR})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env[name] = str(given["threads"])
    env["TMPDIR"] = str(scratch)
    env.update({name: str(value) for name, value in given["worker_env"].items()})
    return env


def peak(dtype: str) -> Peak:
    """A bound of what a core can do: the processor's widest instructions at a clock that no processor reaches."""
    bound = floor(0.0, dtype, 1)
    return Peak(
        flops=bound.peak_flops, dtype=dtype, source=f"bound by instruction set, not a measurement: {bound.source}",
        date=datetime.now(UTC).date().isoformat(), bound=True,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# what cannot be, known without starting anything


def wrong_job(job: TrainJob, settings: Settings) -> str:
    """What makes the job impossible here, in one line; empty when nothing does."""
    return _wrong_host(job) or _wrong_model(job, settings) or _wrong_data(job, settings)


def _wrong_host(job: TrainJob) -> str:
    cores = len(host_cores())
    if job.dtype not in DTYPES:
        return f"dtype: expected one of {', '.join(DTYPES)} on the CPU; found {job.dtype!r}"
    if job.optimizer not in OPTIMIZERS:
        return f"optimizer: expected one of {', '.join(OPTIMIZERS)}; found {job.optimizer!r}"
    if job.world_size > cores:
        return f"world_size: {job.world_size} ranks are asked for, this process may use {cores} cores"
    if job.world_size * threads_of(job) > cores:
        asked = f"{job.world_size} ranks of {threads_of(job)} threads"
        return f"threads: {asked} are asked for, this process may use {cores} cores"
    return ""


def _wrong_model(job: TrainJob, settings: Settings) -> str:
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


def _wrong_data(job: TrainJob, settings: Settings) -> str:
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


__all__ = ["TrlCpuProvider", "environment", "peak", "threads_of", "wrong_job"]
