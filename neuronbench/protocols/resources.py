"""What is leased: a live thing of some kind, and what benchmarks may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from neuronbench.model import Failure, Json, Metric, ResourceSpec

if TYPE_CHECKING:
    from neuronbench.training.job import TrainJob


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Ids of ordinary tokens, from which prompts of an exact length are drawn without any tokenizer."""

    size: int
    special_ids: tuple[int, ...] = ()
    max_model_len: int | None = None


@runtime_checkable
class Resource(Protocol):
    """A live, leased thing.

    Optional, and not part of the protocol: `point_ends(record, into, *, failed)` is called when the point, or the part
    of it, that leased the thing has ended, and its record is still open; `into` is the folder of the receipt. One that
    was profiled leaves there what was captured. What it raises fails the point.
    """

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

        `merged`: adapters become part of the weights, so that a server needs nothing else. Not merged, the adapter
        alone is written, with `base_model.json` where it is known of which weights it is.
        """
