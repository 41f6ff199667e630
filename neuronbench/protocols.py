"""What the parts promise each other. Objects that satisfy these do the work; hooks only register and observe.

Third parties implement `Backend`, `Provider`, `Resource`, `Sink` and `Sampler`; nothing here needs a base class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from neuronbench.definitions import DEFINITIONS, Definition
from neuronbench.definitions import metric as defined
from neuronbench.model import Failure, FrozenMap, Json, Metric, Point, Record, ResourceSpec

if TYPE_CHECKING:
    from neuronbench.training.job import TrainJob

# --------------------------------------------------------------------------------------------------------------------
# what plugins register. Keyword-only, so that a later field with a default breaks nobody.


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """A kind of hardware. `target` is `"package.module:Class"`, imported on first use; `Class(info)` is a `Backend`."""

    name: str
    title: str
    target: str
    family: str
    """Providers name the families they serve: `cpu`, `neuron`."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaneInfo:
    """A family of benchmarks with one metric vocabulary."""

    name: str
    title: str
    headline: tuple[str, ...] = ()
    """Metric keys shown in tables, in order, such as `ttft_p50_ms`."""
    needs: tuple[str, ...] = ()
    """Kinds of resource its benchmarks lease."""
    leads: bool = False
    """Its points run before all others, whose records cite them."""
    version: int = 1
    definitions: Mapping[str, tuple[str, Literal["lower", "higher"] | None, str]] = field(default_factory=dict)
    """Metrics of the lane's own: id → (unit, better, meaning)."""
    benchmarks: str = ""
    """Package with the lane's `bench_*.py` files, `acme_lane.benchmarks`, and its grids in a folder `grids` in it.

    They are collected with a project's `benchmarks` folder, so that installing a lane is all it takes."""

    @property
    def vocabulary(self) -> Mapping[str, Definition]:
        """Definitions of all metrics that the lane may write: its own, and those of `neuronbench.definitions`."""
        own = {
            id_: Definition(id=id_, unit=unit, better=better, text=text, version=self.version)
            for id_, (unit, better, text) in self.definitions.items()
        }
        return {**DEFINITIONS, **own}

    def metric(self, id: str, value: float | None, **told: Any) -> Metric:
        """A metric by its definition in the vocabulary, with unit and direction; `told` as for `definitions.metric`.

        Raises `KeyError` for an id that neither the lane nor the core defines.
        """
        return defined(id, value, among=self.vocabulary, **told)


@dataclass(frozen=True, kw_only=True)
class ProviderInfo:
    """Something that can boot a kind of resource on some families of hardware. `target(info)` is a `Provider`."""

    name: str
    """`endpoint/vllm-cpu`: kind, slash, what it is."""
    kind: str
    families: tuple[str, ...]
    target: str


@dataclass(frozen=True, kw_only=True)
class SinkInfo:
    """A place receipts are forwarded to. `target(settings)` is a `Sink`."""

    name: str
    title: str
    target: str


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """A telemetry sampler, described so that the telemetry process can build it: `target(**options)` is a `Sampler`."""

    name: str
    target: str
    options: Mapping[str, Json] = field(default_factory=dict)
    period_s: float = 0.5
    live: Mapping[str, str] = field(default_factory=dict)
    """Series shown while the benchmark runs → their label in that line: `{"cpu_percent": "server CPU"}`. The unit is
    that of the series' name (`_percent`, `_bytes`); labels of a series (`name{engine="0"}`) are left out here."""


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """Verdict of `check_point`: the point is skipped, or expected to fail when `known_bad`."""

    reason: str
    known_bad: bool = False


# --------------------------------------------------------------------------------------------------------------------
# backends and stacks


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a backend found on this host. `reason` names what is missing when not `available`."""

    available: bool
    reason: str = ""
    cores: int = 0
    facts: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A Python interpreter that can import the accelerator's software. Never the harness's own."""

    kind: str
    """What it is for: `serving`, `compile`, `train`."""
    python: Path
    source: str
    """Why this one: `--nb-stack`, `neuronbench.toml`, `.venv-cpu beside the project`, ..."""
    packages: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable
    """Distribution name → version, of those that matter."""


@runtime_checkable
class Backend(Protocol):
    """A kind of hardware and how to use it. Constructed once per session with its `BackendInfo`."""

    info: BackendInfo

    def probe(self) -> Probe:
        """Look at the host; seconds at most, starts no accelerator process. Called once and cached."""

    def stack(self, kind: str, settings: Any) -> Stack:
        """The interpreter to use for `kind`; raises `LookupError` that lists where it looked and how to make one."""

    def facts(self) -> Mapping[str, Json]:
        """Facts for the environment: driver, SDK, instance type."""

    def failure_rules(self) -> Sequence[Any]:
        """Extra `neuronbench.failures.Rule`s, tried before the general ones."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A finding of `neuronbench doctor`.

    `ok`; `info` when there is nothing to do about it; `warn` when results suffer; `fail` when runs fail. A backend with
    checks of its own has a method `checks(settings)` that returns them, asked where it is available; it is optional,
    and not part of `Backend`.
    """

    name: str
    status: Literal["ok", "info", "warn", "fail"]
    found: str
    remedy: str = ""


# --------------------------------------------------------------------------------------------------------------------
# resources


class Progress(Protocol):
    """Where long steps say what they are doing. Cheap to call; the receiver limits the rate of what is printed."""

    def __call__(self, text: str) -> None: ...


@dataclass(kw_only=True)
class BootContext:
    """All a provider may use while it boots."""

    backend: Backend
    settings: Any
    """`neuronbench.config.Settings`."""
    folder: Path
    """Empty folder for logs and scratch files of this boot; it becomes the attachments of the boot record."""
    deadline_s: float
    progress: Progress
    spawn: Callable[..., Any]
    """`neuronbench.processes.spawn` with the session's pid folder filled in: the only way to start a child."""


class BootError(Exception):
    """A resource could not be made. Carries the classified failure, and what had been measured until then."""

    def __init__(self, failure: Failure, *, metrics: Sequence[Metric] = (), facts: Mapping[str, Json] | None = None):
        super().__init__(f"{failure.kind}: {failure.causal_line or failure.message}")
        self.failure = failure
        self.metrics = list(metrics)
        self.facts = dict(facts or {})


class PointFailure(Exception):
    """A point has no result, and why."""

    def __init__(self, failure: Failure) -> None:
        text = failure.causal_line or failure.message
        super().__init__(f"{failure.kind}: {text}" + (f"\nremedy: {failure.remedy}" if failure.remedy else ""))
        self.failure = failure


class DeadlineExceeded(PointFailure):
    """Something took longer than it may."""


@runtime_checkable
class Resource(Protocol):
    """A live, leased thing."""

    spec: ResourceSpec
    facts: Mapping[str, Json]
    """Known at boot: weights' digests, versions, command line, port."""
    boot_metrics: Sequence[Metric]
    logs: Sequence[Path]

    def alive(self) -> bool:
        """Cheap; called before each lease."""

    def pids(self) -> Sequence[int]:
        """Root processes, for telemetry of the process tree."""

    def diagnose(self, phase: str) -> Failure | None:
        """When it died or misbehaves: why, from its logs and exit status."""

    def stop(self) -> None:
        """End it and everything it started; idempotent; returns when it is gone."""


@runtime_checkable
class Endpoint(Resource, Protocol):
    """A served model behind an OpenAI-compatible API."""

    base_url: str
    """`http://127.0.0.1:8000`, without `/v1`."""
    model: str
    """The name to send in requests."""
    vocabulary: Vocabulary | None
    """Token ids that synthetic prompts may use; None when unknown."""
    metrics_url: str | None
    api_key: str | None


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input of a compiled model, and what values make sense for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = "normal"
    """`token_ids` (whole numbers from `low` to below `high`), `attention_mask` (1 where there is input, 0 for padding),
    `zeros`, `normal` (drawn from the standard normal distribution), or `audio` (samples from −1 to 1, 16 kHz)."""
    low: int = 0
    high: int = 0


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What no call can be faster than. A number beyond it is not a result but a sign that nothing was computed."""

    launch_us: float = 0.0
    """What starting any computation on the device takes at least."""
    flops_per_call: float = 0.0
    """Floating-point operations that a call cannot do without, by count of its matrix multiplications."""
    peak_flops: float = 0.0
    """Operations per second of the cores one model copy has, generously; 0 when unknown."""
    source: str = ""
    """Where the peak is from."""

    @property
    def seconds(self) -> float:
        """The least time of a call."""
        computing = self.flops_per_call / self.peak_flops if self.peak_flops else 0.0
        return max(self.launch_us / 1e6, computing)


@runtime_checkable
class CompiledModel(Resource, Protocol):
    """A model compiled ahead of time for fixed shapes and loaded on the device."""

    batch_size: int
    """Items per call."""
    inputs: Sequence[InputSpec]
    floor: Floor
    max_workers: int
    """Copies of the model that fit beside each other, one per core (or group of cores)."""

    def batch(self, seed: int = 0, lengths: Sequence[int] | None = None) -> Mapping[str, Any]:
        """Seeded inputs as numpy arrays by name, the same on every backend; `lengths` leaves the rest as padding."""

    def call(self, batch: Mapping[str, Any] | None = None) -> Any:
        """One call; its duration and, when asked for, its outputs. None calls again with the last batch."""

    def latency(self, *, calls: int, warmup: int = 10) -> Any:
        """Calls one after the other on one copy: the duration of each."""

    def throughput(self, *, seconds: float, workers: int | None = None, warmup: int = 3) -> Any:
        """Copies calling at the same time, without pauses: the instants at which their calls ended."""

    def outputs(self, inputs: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The compiled model's answers as numpy arrays by name."""

    def reference(self, inputs: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The answers of the uncompiled model in fp32 on the host, same inputs, same names."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What a core can do at best, and who says so: the denominator of a utilisation is never anonymous."""

    flops: float
    """Dense floating-point operations per second of one core."""
    dtype: str
    """For numbers of this type."""
    source: str
    """A document, or how it was measured."""
    date: str
    """When that was so, ISO 8601."""
    bound: bool = False
    """Only what it cannot exceed, not what it reaches: tells the impossible, and is no denominator of a utilisation."""


@runtime_checkable
class Trainer(Resource, Protocol):
    """Trains jobs, one after the other, each from a fresh state.

    A run leaves its step logs (`steps-rank<r>.jsonl`, see `neuronbench.training.steps`), its checkpoints and its final
    state in a folder that the caller names. What cannot be trained raises `PointFailure`; the trainer may be dead then.
    """

    world_size: int
    """Ranks it trains with."""
    cores: int
    """Cores that all ranks use together, in the unit of `peak`."""
    peak: Peak | None
    """None when nobody says what the hardware can do: no utilisation then."""

    def prepare(self, job: TrainJob) -> Mapping[str, Json]:
        """Tokenise and pack the data once; `name`, `digest`, `sequences`, `tokens`, ... of it. Cached by digest."""

    def describe(self, job: TrainJob) -> Mapping[str, Json]:
        """What the start line of the job's log would say of model and data, without training."""

    def train(
        self,
        job: TrainJob,
        *,
        folder: Path,
        resume: bool = False,
        watch: Callable[[Mapping[str, Json]], None] | None = None,
        deadline_s: float,
    ) -> Path:
        """Train; returns `folder`. `resume` goes on from the latest checkpoint there, if there is one.

        `watch` gets each line of rank 0's log as it appears, read from the file, so that watching costs nothing.
        """

    def evaluate(self, job: TrainJob, *, folder: Path, split: str = "holdout") -> Mapping[str, Json]:
        """`loss` and `tokens` of the `holdout` or `train` split, by the state that training left in `folder`."""

    def export(self, job: TrainJob, *, folder: Path, into: Path, merged: bool = True) -> Mapping[str, Json]:
        """Write the trained weights as safetensors into `into`: `files` maps each name to `sha256` and `bytes`.

        `merged`: adapters become part of the weights, so that a server needs nothing else.
        """


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Ids of ordinary tokens, from which prompts of an exact length are drawn without any tokenizer."""

    size: int
    special_ids: tuple[int, ...] = ()
    max_model_len: int | None = None


@runtime_checkable
class Provider(Protocol):
    """Boots one kind of resource. Constructed once per session with its `ProviderInfo`."""

    info: ProviderInfo

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        """Derive the spec from the point's parameters: pure, no I/O beyond reading local model metadata."""

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        """Static checks that cost no boot: divisibility, context length against the model, missing stack."""

    def boot(self, spec: ResourceSpec, context: BootContext) -> Resource:
        """Make it live and verified, or raise `BootError`. Must not outlive `context.deadline_s`."""


# --------------------------------------------------------------------------------------------------------------------
# caches


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """Something that is kept between sessions, and could be made again."""

    key: str
    title: str
    """What it is, for people: model, shape, type."""
    size_bytes: int
    created_at: float
    """Seconds since the epoch, like `used_at`."""
    used_at: float
    """When it was last used."""
    in_use: bool = False
    """Whether a process that runs has it: it is not to be removed."""


@runtime_checkable
class Cache(Protocol):
    """A place where things are kept that could be made again: `neuronbench cache` shows, checks and prunes it.

    A backend with caches of its own (a compiler's, for one) has a method `caches(settings)` that returns them; it is
    optional, and not part of `Backend`.
    """

    name: str
    title: str
    folder: Path

    def entries(self) -> Sequence[CacheEntry]:
        """All that is there."""

    def damage(self, key: str) -> str:
        """What is wrong with an entry, in a few words; empty when it is what was put there."""

    def remove(self, key: str) -> bool:
        """Remove it, unless somebody uses it: False then."""


# --------------------------------------------------------------------------------------------------------------------
# recording


@runtime_checkable
class Sampler(Protocol):
    """Runs inside the telemetry process."""

    def read(self) -> Mapping[str, float | None]:
        """One sample: series name → value. An absent sensor is None or left out, never 0."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a sink did with a receipt."""

    state: Literal["delivered", "pending"]
    reference: str = ""
    """Where it is now, such as an MLflow run id."""
    reason: str = ""
    """Why it is pending."""


@runtime_checkable
class Sink(Protocol):
    """Forwards receipts. A failure is returned as `pending`, never raised: a sink cannot fail a point."""

    name: str

    def write(self, receipt: Path) -> Delivery:
        """Deliver the receipt in that folder; idempotent."""

    def close(self) -> None:
        """Finish the session (parent runs, reports)."""


__all__ = [
    "Backend",
    "BackendInfo",
    "BootContext",
    "BootError",
    "Cache",
    "CacheEntry",
    "Check",
    "CompiledModel",
    "DeadlineExceeded",
    "Delivery",
    "Endpoint",
    "Failure",
    "Floor",
    "InputSpec",
    "LaneInfo",
    "Peak",
    "PointFailure",
    "Probe",
    "Progress",
    "Provider",
    "ProviderInfo",
    "Record",
    "Resource",
    "Sampler",
    "SamplerSpec",
    "Sink",
    "SinkInfo",
    "Stack",
    "Trainer",
    "Unsupported",
    "Vocabulary",
]  # fmt: skip
