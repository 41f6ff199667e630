"""Trainers on NeuronCores, in a worker that starts one rank per core with torchrun.

Two providers; a point chooses with `trainer_provider`, the first is the default.

| name | trains by | methods |
|---|---|---|
| `trainer/optimum-neuron` | optimum-neuron's `NeuronSFTTrainer` and `NeuronTrainer` | `lora_sft`, `full_sft`,
`pretrain` |
| `trainer/nxd` | neuronx-distributed's parallel model and optimizer, a loop of our own | `full_sft`, `pretrain` |

Parameters of a point: the fields of `neuronbench.training.TrainJob` (see `neuronbench.trainers`), and

| parameter | default | meaning |
|---|---|---|
| `tensor_parallel_size` | `world_size`, where it and the model's heads allow | cores that share a copy of the model |
| `pipeline_parallel_size` | 1 | stages of the layers; `trainer/optimum-neuron` only |
| `zero_1` | true | the optimizer's state is spread over the copies |
| `sequence_parallel` | true | `trainer/optimum-neuron` only; has no effect without tensor parallelism |
| `stochastic_rounding` | true | of the hardware, in bfloat16; its seed is the job's |
| `precompile` | true | collect the graphs and compile them in parallel (`neuron_parallel_compile`) before the run |
| `cc_flags` | `--model-type=transformer` | NEURON_CC_FLAGS, all of it |
| `compile_cache` | NEURON_COMPILE_CACHE_URL, else `/var/tmp/neuron-compile-cache` | a folder |
| `profile` | false | the runtime captures a profile; times of such a run are no result |
| `worker_env` | {} | more environment variables of the worker |

`world_size` is the number of ranks, one core each; the data is shared by `world_size` / (tensor × pipeline) copies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench import Backend, Record, Stack, Unsupported, models
from neuronbench.catalog.accelerators import accelerator_of
from neuronbench.compiled import seeded_architecture
from neuronbench.model import Failure, FrozenMap, Json, Point, ResourceSpec
from neuronbench.protocols import BootContext, Peak, PointFailure
from neuronbench.trainers import TrainerBoot, TrainerProvider, environment, one_of
from neuronbench.training import TrainJob
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.trainer import WorkerTrainer
from neuronbench_neuron import compat, cores, stacks
from neuronbench_neuron.hardware import Hardware
from neuronbench_neuron.profile import tools as profiler
from neuronbench_neuron.profile.record import leave, mark
from neuronbench_neuron.training import rules

if TYPE_CHECKING:
    from neuronbench.config import Settings

HANDLERS: Final = Path(__file__).parent / "handlers"
CACHE: Final = "var/tmp/neuron-compile-cache"
"""The compiler's own default, below the root."""
CC_FLAGS: Final = "--model-type=transformer"
DTYPES: Final = ("float32", "bfloat16")
OPTIMIZERS: Final = ("adamw", "sgd")
CHOICES: Final[Mapping[str, Json]] = {
    "pipeline_parallel_size": 1, "zero_1": True, "sequence_parallel": True, "stochastic_rounding": True,
    "precompile": True, "cc_flags": CC_FLAGS,
}  # fmt: skip
ARENAS: Final = {"MALLOC_ARENA_MAX": "64"}
"""Else the host's memory grows with every checkpoint."""


class NeuronTrainerProvider(TrainerProvider):
    """What both have in common."""

    LIBRARY = ""
    """Distribution that trains."""
    METHODS: tuple[str, ...] = ()
    MODULE = ""
    """Of the handlers."""

    def cores(self, job: TrainJob) -> int:
        return job.world_size

    def more(self, job: TrainJob, point: Point) -> dict[str, Json]:
        given: dict[str, Json] = {name: point.get(name, default) for name, default in CHOICES.items()}
        for name, default in CHOICES.items():
            value = given[name]
            if type(value) is not type(default) or (name.endswith("_size") and int(value) < 1):
                raise ValueError(f"{name}: expected a value like {default!r}, found {value!r}")
        tensor = point.get("tensor_parallel_size")
        if tensor is None:
            tensor = default_tensor(job, given["pipeline_parallel_size"], _config(job))
        if isinstance(tensor, bool) or not isinstance(tensor, int) or tensor < 1:
            raise ValueError(f"tensor_parallel_size: expected a whole number from 1, found {tensor!r}")
        given["tensor_parallel_size"] = tensor
        given["compile_cache"] = point.get("compile_cache")
        if point.get("profile", False) is not False:
            given["profile"] = True  # a trainer of its own: what is captured slows it down
        parallel = tensor * given["pipeline_parallel_size"]
        if job.world_size % parallel:
            raise ValueError(
                f"world_size: expected a multiple of tensor_parallel_size × pipeline_parallel_size = {parallel}, "
                f"found {job.world_size}"
            )
        return {**given, "threads": job.threads or 1}

    def wrong(self, job: TrainJob, backend: Backend, settings: Settings, point: Point) -> str:
        if job.method not in self.METHODS:
            return rules.no_method(self.info.name, job.method, self.METHODS)
        wrong = one_of("dtype", job.dtype, DTYPES, " on Neuron") or one_of("optimizer", job.optimizer, OPTIMIZERS)
        return (
            wrong
            or _wrong_sequence(job, backend)
            or self.wrong_here(job, point)
            or self._too_large(job, backend, settings, point)
        )

    def _too_large(self, job: TrainJob, backend: Backend, settings: Settings, point: Point) -> str:
        given = self.more(job, point)
        ranks = int(given["tensor_parallel_size"]) * int(given["pipeline_parallel_size"])
        copies = job.world_size // ranks if given["zero_1"] else 1
        parameters = rules.parameters_of(_config(job))
        if parameters is None and job.model:
            parameters = models.metadata(job.model, settings).parameter_count
        memory = [
            device.memory_bytes / device.cores
            for device in _host(backend).devices
            if device.memory_bytes is not None and device.cores
        ]
        return rules.too_large(job, parameters, ranks, copies, min(memory, default=None))

    def wrong_here(self, job: TrainJob, point: Point) -> str:
        """What this library cannot do; empty when it can."""
        return ""

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        verdict = super().check(spec, backend, settings)
        if verdict is not None:
            return verdict
        stack = backend.stack(self.STACK, settings)
        if self.LIBRARY not in stack.packages:
            return Unsupported(
                reason=f"{self.info.name}: {stack.python} has no {self.LIBRARY}; name an environment that has: "
                "--nb-stack train=PATH"
            )
        reason = (
            rules.wrong_version(self.LIBRARY, str(stack.packages[self.LIBRARY]))
            or rules.wrong_places(spec.settings)
            or profiler.refused(spec.settings.get("profile"), spec.settings["worker_env"], _host(backend).root)
        )
        if reason:
            return Unsupported(reason=reason)
        return compat.refusal(use_of(spec, _host(backend), stack))


class OptimumProvider(NeuronTrainerProvider):
    """`trainer/optimum-neuron`."""

    LIBRARY = "optimum-neuron"
    METHODS = ("lora_sft", "full_sft", "pretrain")
    MODULE = "optimum_trainer"

    def wrong_here(self, job: TrainJob, point: Point) -> str:
        return rules.of_optimum(job, point)

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerTrainer:
        return NeuronTrainerBoot(spec, context, self.MODULE).run()


class NxdProvider(NeuronTrainerProvider):
    """`trainer/nxd`."""

    LIBRARY = "neuronx-distributed"
    METHODS = ("full_sft", "pretrain")
    MODULE = "nxd_trainer"

    def wrong_here(self, job: TrainJob, point: Point) -> str:
        return rules.of_nxd(job, point)

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerTrainer:
        return NeuronTrainerBoot(spec, context, self.MODULE).run()


class NeuronTrainerBoot(TrainerBoot):
    """One boot. Cores are taken before anything starts, and given back when the trainer has stopped."""

    def __init__(self, spec: ResourceSpec, context: BootContext, module: str) -> None:
        super().__init__(spec, context)
        self.host = _host(context.backend)
        self._module = module
        self._lease: cores.CoreLease | None = None
        self._captured = self.scratch / "captured"

    def launch(self, stack: Stack, arguments: Mapping[str, Json]) -> Launch:
        given = self.given
        owner = f"{self.spec.id} ({given['world_size']} ranks)"
        try:
            self._lease = cores.take(given["world_size"], host=self.host, owner=owner)
        except (cores.CoresBusy, ValueError) as error:
            text = " ".join(str(error).split())
            raise PointFailure(
                Failure(
                    kind="cores_busy", phase="boot", message=text, causal_line=text,
                    cause="the NeuronCores that the ranks need are not free",
                    remedy="`neuronbench doctor` shows who holds them.",
                )
            ) from error  # fmt: skip
        cache = cache_folder(given["compile_cache"], self.host)
        self.facts["neuron"] = {
            "cores": list(self._lease.ids), "tensor_parallel_size": given["tensor_parallel_size"],
            "pipeline_parallel_size": given["pipeline_parallel_size"], "cc_flags": given["cc_flags"],
        }  # fmt: skip
        self.facts.update(compat.facts(use_of(self.spec, self.host, stack)))
        more = {
            **ARENAS,
            "NEURON_COMPILE_CACHE_URL": cache,
            "NEURON_CC_FLAGS": given["cc_flags"],
            "NEURON_RT_STOCHASTIC_ROUNDING_EN": str(int(rounds(given))),
        }
        if "profile" in given:
            self._captured.mkdir(exist_ok=True)
            more.update(profiler.environment(self._captured))
        base = self._lease.environ(stacks.environment(stack, self.host.root))
        choices = {name: given[name] for name in (*CHOICES, "tensor_parallel_size")}
        return Launch(
            python=stack.python, handlers=HANDLERS, module=self._module,
            env=environment(given, self.scratch, given["threads"], base=base, more=more),
            rules=tuple(self.context.backend.failure_rules()),
            arguments={
                **arguments, "threads": given["threads"], "choices": choices, "cache_url": cache,
                "scratch": str(self.scratch), "dtype": given["dtype"],
            },
        )  # fmt: skip

    def cores(self) -> int:
        return int(self.given["world_size"])

    def peak(self) -> Peak | None:
        chip = accelerator_of(self.host.instance_type or self.host.family)
        dtype = self.given["dtype"]
        return chip.peak(dtype, logical_core_config=self.host.logical_core_config) if chip is not None else None

    def made(self, worker: Worker, **given: Any) -> WorkerTrainer:
        assert self._lease is not None
        captured = self._captured if "profile" in self.given else None
        return NeuronTrainer(self.spec, worker, lease=self._lease, captured=captured, root=self.host.root, **given)

    def let_go(self) -> None:
        if self._lease is not None:
            self._lease.release()


class NeuronTrainer(WorkerTrainer):
    """A trainer with cores."""

    def __init__(
        self,
        spec: ResourceSpec,
        worker: Worker,
        *,
        lease: cores.CoreLease,
        captured: Path | None,
        root: Path,
        **given: Any,
    ) -> None:
        """`captured`: where the runtime leaves profiles; None when it makes none."""
        super().__init__(spec, worker, **given)
        self._captured, self._root = captured, root
        self.core_ids = lease.ids
        """Ids of the cores its ranks have, as programs and tools see them."""
        self._lease = lease

    def stop(self) -> None:
        super().stop()
        self._lease.release()

    def point_ends(self, record: Record, into: Path, *, failed: bool) -> None:
        """Profiles of what was trained, where they were asked for. Raises `PointFailure`."""
        if self._captured is None:
            return
        mark(record)
        if not failed:
            leave(record, self._captured, into, self._root)


# --------------------------------------------------------------------------------------------------------------------


def use_of(spec: ResourceSpec, host: Hardware, stack: Stack) -> compat.Use:
    """What the tables of compatibility are asked about."""
    given = spec.settings
    asked = ("world_size", "tensor_parallel_size", "pipeline_parallel_size", "dtype")
    return compat.Use(
        purpose="train", backend=spec.backend, model=_config_of(given), settings={name: given[name] for name in asked},
        **compat.host_of(host, stack),  # type: ignore[arg-type]
    )  # fmt: skip


def _wrong_sequence(job: TrainJob, backend: Backend) -> str:
    """The rule on lengths: it is of the job, which `use_of` does not know."""
    host: dict[str, Any] = compat.host_of(_host(backend))
    use = compat.Use(
        purpose="train", backend=backend.info.name, settings={"sequence_length": job.sequence_length}, **host
    )
    return next((each.text for each in compat.findings(use) if each.id == "training-sequence"), "")


def default_tensor(job: TrainJob, pipeline: int, config: Mapping[str, Json]) -> int:
    """All ranks of a pipeline stage share a copy of the model, as far as its heads allow; the rest are copies."""
    ranks = max(job.world_size // pipeline, 1)
    heads = config.get("num_attention_heads") or ranks
    shared = config.get("num_key_value_heads") or heads
    fits = [n for n in range(1, ranks + 1) if ranks % n == 0 and heads % n == 0 and shared % n == 0]
    return max(fits, default=1)


def rounds(given: FrozenMap | Mapping[str, Json]) -> bool:
    """Whether the hardware rounds at random."""
    return bool(given["stochastic_rounding"]) and given["dtype"] == "bfloat16"


def cache_folder(told: Json, host: Hardware) -> str:
    """Where compiled graphs are kept: said by the point, by the environment, else the compiler's default."""
    return str(told or os.environ.get("NEURON_COMPILE_CACHE_URL") or host.root / CACHE)


def _config(job: TrainJob) -> Mapping[str, Json]:
    given = FrozenMap(model=job.model, architecture=job.architecture, weights=job.weights, weights_seed=0)
    return _config_of(given)


def _config_of(given: FrozenMap) -> Mapping[str, Json]:
    """The model's configuration where it is known without fetching anything; empty otherwise."""
    architecture, _ = seeded_architecture(given)
    path = Path(str(given["model"] or ""), "config.json")
    if architecture is None and path.is_absolute() and path.is_file():
        try:
            architecture = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return {}  # whoever loads it says what is wrong with it
    return architecture or {}


def _host(backend: Any) -> Hardware:
    found: Hardware = backend.found
    return found
