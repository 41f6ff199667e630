"""A compiled model held by workers: satisfies `neuronbench.protocols.CompiledModel` for any backend.

The first worker is started by whoever boots it. Further copies, one per core, are started when a throughput run asks
for them, and stay. The reference model lives in a worker of its own for as long as one answer takes, so that what is
measured never shares memory or threads with it.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Failure, Json, Metric, ResourceSpec
from neuronbench.protocols import Floor, InputSpec
from neuronbench.worker import batches
from neuronbench.worker.client import Launch, Reply, Worker
from neuronbench.worker.copies import Plan, start_copies, start_copy
from neuronbench.worker.runs import Run, timed, windowed

if TYPE_CHECKING:
    from neuronbench.worker.batches import Arrays

COMMON_HANDLERS: Final = Path(__file__).parent / "handlers"
"""Handlers that fit any stack."""
LEAD_S: Final = 0.5
"""From the last worker's readiness to the start of the calls: a worker collects its garbage meanwhile."""
RAMP_S: Final = 0.25
"""From the start of the calls to the opening of the window."""
ESCAPE_DOUBT: Final = 0.25
"""Share of a short loop's wall that no timer saw, from which on calls are counted out to a worker: a device that takes
calls without doing them would go on for hours."""
AT_ONCE: Final = 16
"""Copies that are started at the same time: what they import comes from one disk and one host's memory."""
CAPACITY: Final = 20_000_000
"""Room for as many calls is made beforehand at most."""
SLACK_S: Final = 60.0
"""What a loop may take beyond what it should, before its worker counts as hung."""


@dataclass(frozen=True, kw_only=True)
class Called:
    """One call."""

    duration_ns: int
    """By the worker's clock, device finished."""
    fetch: Callable[[], Arrays]

    @property
    def outputs(self) -> Arrays:
        """What it answered, brought over when asked for; only until the next call."""
        return self.fetch()


@dataclass(frozen=True, kw_only=True)
class SingleCalls:
    """All single calls of a model up to now."""

    count: int
    duration_ns: int
    cpu_ns: int
    """CPU time that the copy's process had during them, over all its threads."""


class WorkerModel:
    """A compiled model in workers. Made by `load`."""

    def __init__(
        self,
        spec: ResourceSpec,
        plan: Plan,
        first: Worker,
        loaded: Mapping[str, Json],
        *,
        batch_size: int,
        floor: Floor,
        max_workers: int,
        facts: Mapping[str, Json],
        boot_metrics: Sequence[Metric],
    ) -> None:
        self.spec, self.facts, self.boot_metrics = spec, facts, boot_metrics
        self.batch_size, self.floor, self.max_workers = batch_size, floor, max_workers
        self.inputs: Sequence[InputSpec] = [
            InputSpec(**{**entry, "shape": tuple(entry["shape"])}) for entry in loaded["inputs"]
        ]
        self.host_bound = False
        """Whether a call keeps the host's cores of its copy busy throughout, because they are the device."""
        self.clock: Callable[[int], None] = lambda duration_ns: None
        """Told the duration of each single call; pytest-benchmark's timer listens here."""
        self.reference_source: Mapping[str, Json] = {}
        """Where the last answers of the reference were from: `cache`, `key`, `made_at`, `notes`; empty if not kept."""
        self._plan = plan
        self._workers: list[Worker] = [first]
        self._bound: dict[int, str] = {}
        self._batch: Arrays = self.batch()
        self._mask_asked = False
        self._mask_found: float | None = None
        self._calls = self._called_ns = self._late_ns = self._cpu_ns = 0

    # -- resource -----------------------------------------------------------------------------------------------------

    @property
    def logs(self) -> Sequence[Path]:
        return [worker.log for worker in self._workers]

    def alive(self) -> bool:
        return all(worker.alive() for worker in self._workers)

    def pids(self) -> Sequence[int]:
        return [worker.pid for worker in self._workers if worker.alive()]

    def diagnose(self, phase: str) -> Failure | None:
        for worker in self._workers:
            found = worker.diagnose(phase)
            if found is not None:
                return found
        return None

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._plan.release)
            for path in self._plan.trash:
                stack.callback(shutil.rmtree, path, ignore_errors=True)
            for worker in self._workers:
                stack.callback(worker.stop)

    def cores_of(self, index: int) -> Sequence[int] | None:
        """Cores that copy `index` has to itself: of the host it is pinned to, unless the model says otherwise."""
        return self._plan.launch(index).cores

    # -- inputs and outputs -------------------------------------------------------------------------------------------

    def batch(self, seed: int = 0, lengths: Sequence[int] | None = None) -> Arrays:
        """Seeded inputs by name, the same on every backend; `lengths` leaves the rest of each row as padding."""
        return batches.make(self.inputs, seed, lengths)

    def use(self, batch: Mapping[str, Any]) -> None:
        """Make `batch` the inputs of the calls from now on."""
        self._batch = self._checked(batch)

    def outputs(self, inputs: Mapping[str, Any] | None = None) -> Arrays:
        """The compiled model's answers by name, for `inputs` or the batch in use; what is in use stays in use."""
        given = self._batch if inputs is None else self._checked(inputs)
        reply = self._ask(0, "outputs", inputs=given)
        return _arrays(reply)

    def last_outputs(self, worker: int = 0) -> Arrays:
        """What the last call of a copy answered: a loop's last, for one."""
        return _arrays(self._ask(worker, "fetch"))

    def reference(self, inputs: Mapping[str, Any] | None = None) -> Arrays:
        """The answers of the uncompiled model in fp32 on the host: same inputs, same names."""
        return self.references([self._batch if inputs is None else inputs])[0]

    def references(self, inputs: Sequence[Mapping[str, Any]]) -> list[Arrays]:
        """The same for several batches, by one worker; or as they were kept. `reference_source` says which."""
        given = [self._checked(each) for each in inputs]
        kept = self._plan.references
        if kept is None:
            self.reference_source = {}
            return self._computed(given)
        found, self.reference_source = kept.obtain(
            given, lambda: self._computed(given), deadline_s=self._plan.load_deadline_s
        )
        return found

    def _computed(self, inputs: Sequence[Arrays]) -> list[Arrays]:
        given = [batches.to_tensors(each) for each in inputs]
        with self._beside(self._plan.reference, "reference") as worker:
            return [
                _arrays(
                    worker.call(
                        "reference",
                        self._plan.reference_arguments,
                        inputs=each,
                        deadline_s=self._plan.load_deadline_s,
                    )
                )
                for each in given
            ]

    def aside(
        self, module: str, verb: str, arguments: Mapping[str, Json], *, handlers: Path = COMMON_HANDLERS
    ) -> Reply:
        """Ask another handler, in a worker of its own in the same stack: `text` of the common ones, for a tokenizer."""
        launch = replace(self._plan.reference, handlers=handlers, module=module, arguments={})
        with self._beside(launch, module) as worker:
            return worker.call(verb, arguments, deadline_s=self._plan.load_deadline_s)

    @contextlib.contextmanager
    def _beside(self, launch: Launch, name: str) -> Iterator[Worker]:
        """A worker that ends with the block, so that what is measured never shares memory or threads with it."""
        plan = self._plan
        worker = Worker.start(
            launch, name=f"{plan.name}-{name}", folder=plan.folder, spawn=plan.spawn,
            deadline_s=plan.load_deadline_s, phase="window",
        )  # fmt: skip
        try:
            yield worker
        finally:
            worker.stop()

    def mask_error(self) -> float | None:
        """How much the answers for real tokens change when the padding holds other tokens, relative to their size.

        A model that minds its attention mask gives 0 but for rounding. None when it has no mask, or no padding fits.
        Asked once of a live model.
        """
        if not self._mask_asked:
            self._mask_found, self._mask_asked = self._mask_error(), True
        return self._mask_found

    def _mask_error(self) -> float | None:
        import numpy as np

        mask = next((spec for spec in self.inputs if spec.kind == "attention_mask"), None)
        if mask is None or len(mask.shape) != 2 or mask.shape[1] < 2:
            return None
        rows, width = mask.shape
        lengths = [max(1, width // 2 - row % (width // 2)) for row in range(rows)]
        batch = self.batch(1, lengths)
        changed = batches.other_padding(self.inputs, batch, lengths)
        if changed is None:
            return None
        valid = batch[mask.name].astype(bool)
        worst = 0.0
        one, other = self.outputs(batch), self.outputs(changed)
        for name, answer in one.items():
            if not np.issubdtype(answer.dtype, np.floating):
                continue
            per_token = answer.ndim >= 2 and answer.shape[:2] == mask.shape
            first, second = (answer[valid], other[name][valid]) if per_token else (answer, other[name])
            if not (np.isfinite(first).all() and np.isfinite(second).all()):
                continue  # another gate's business
            scale = float(np.abs(first).max(initial=0.0)) or 1.0
            worst = max(worst, float(np.abs(first.astype("f8") - second.astype("f8")).max(initial=0.0)) / scale)
        return worst

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, batch: Mapping[str, Any] | None = None) -> Called:
        """One call with `batch`, or again with the one in use. The way to the worker is not in its duration."""
        if batch is not None:
            self.use(batch)
        self._bind(0)
        reply = self._ask(0, "call")
        duration_ns = int(reply.value["duration_ns"])
        self._calls += 1
        self._called_ns += duration_ns
        self._late_ns += int(reply.value["late_ns"])
        self._cpu_ns += int(reply.value["cpu_ns"])
        number = self._calls
        self.clock(duration_ns)

        def fetch() -> Arrays:
            if number != self._calls:
                raise RuntimeError("the outputs of a call can be had until the next call; that one was made already")
            return _arrays(self._ask(0, "fetch"))

        return Called(duration_ns=duration_ns, fetch=fetch)

    def single_calls(self) -> SingleCalls:
        """Totals of all single calls so far: two of them tell what was between."""
        return SingleCalls(count=self._calls, duration_ns=self._called_ns, cpu_ns=self._cpu_ns)

    def single_calls_escape(self) -> float | None:
        """Share of the time of all single calls so far that passed after they had returned; None without any."""
        total = self._called_ns + self._late_ns
        return self._late_ns / total if total else None

    def latency(self, *, calls: int, warmup: int = 10) -> Run:
        """`calls` calls one after the other on one copy, after `warmup` untimed ones."""
        if calls < 1:
            raise ValueError(f"calls: expected 1 or more, found {calls}")
        self._bind(0)
        reply = self._ask(0, "run_latency", {"calls": calls, "warmup": warmup})
        loop = timed(0, reply.value, reply.tensors["durations_ns"].numpy())
        return self._run([loop], warmup=warmup)

    def throughput(self, *, seconds: float, workers: int | None = None, warmup: int = 3) -> Run:
        """`workers` copies (by default all that fit) call without pauses; the window opens once all of them do."""
        if seconds <= 0:
            raise ValueError(f"seconds: expected more than 0, found {seconds}")
        count = self.team(workers)
        for index in range(count):
            self._bind(index)
            self._workers[index].begin("warm", {"calls": warmup})
        warm = [self._finish(index, self._plan.call_deadline_s).value for index in range(count)]
        slowest_ns = max(int(facts["call_ns"]) for facts in warm)
        go_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
        open_ns = go_ns + max(round(RAMP_S * 1e9), 2 * slowest_ns)
        close_ns = open_ns + round(seconds * 1e9)
        for index, facts in enumerate(warm):
            expected = (close_ns - go_ns) // int(facts["call_ns"])
            honest = facts["probe_escape_ppm"] < 1e6 * ESCAPE_DOUBT
            window = {
                "go_ns": go_ns,
                "close_ns": close_ns,
                "capacity": min(1000 + 2 * expected, CAPACITY),
                "limit": 100 * (expected + 1000) if honest else expected + 10,
            }
            self._workers[index].begin("run_throughput", window)
        loops = []
        for index, facts in enumerate(warm):
            left_s = max(close_ns - time.monotonic_ns(), 0) / 1e9
            # What was taken without being done may take as long again.
            reply = self._finish(index, left_s + seconds + SLACK_S + 10 * slowest_ns / 1e9)
            stamps = reply.tensors["stamps_ns"].numpy()
            loops.append(windowed(index, {**reply.value, **facts}, stamps))
        return replace(self._run(loops, warmup=warmup), window_ns=(open_ns, close_ns))

    def team(self, workers: int | None = None) -> int:
        """Have `workers` copies loaded (all that fit, by default); returns how many that is."""
        count = self.max_workers if workers is None else workers
        if not 1 <= count <= self.max_workers:
            raise ValueError(f"workers: expected 1 to {self.max_workers} (model copies that fit), found {count}")
        while len(self._workers) < count:
            first = len(self._workers)
            self._workers += start_copies(self._plan, range(first, min(first + AT_ONCE, count)))
        return count

    # -- parts --------------------------------------------------------------------------------------------------------

    def _run(self, loops: Sequence[Any], *, warmup: int) -> Run:
        return Run(
            loops=loops,
            batch_size=self.batch_size,
            batch_digest=batches.digest(self._batch),
            warmup=warmup,
            cores={loop.worker: self.cores_of(loop.worker) for loop in loops},
        )

    def _checked(self, batch: Mapping[str, Any]) -> Arrays:
        wanted = {spec.name: spec for spec in self.inputs}
        if batch.keys() != wanted.keys():
            raise ValueError(f"inputs: expected {', '.join(wanted)}; found {', '.join(batch)}")
        for name, array in batch.items():
            if array.shape != wanted[name].shape or str(array.dtype) != wanted[name].dtype:
                raise ValueError(
                    f"input {name!r}: compiled for {wanted[name].dtype} {list(wanted[name].shape)}, "
                    f"found {array.dtype} {list(array.shape)}"
                )
        return batch

    def _bind(self, index: int) -> None:
        digest = batches.digest(self._batch)
        if self._bound.get(index) != digest:
            self._ask(index, "bind", inputs=self._batch)
            self._bound[index] = digest

    def _ask(
        self, index: int, verb: str, arguments: Mapping[str, Json] | None = None, inputs: Arrays | None = None
    ) -> Reply:
        tensors = None if inputs is None else batches.to_tensors(inputs)
        self._workers[index].begin(verb, arguments, inputs=tensors)
        return self._finish(index, self._plan.call_deadline_s)

    def _finish(self, index: int, deadline_s: float) -> Reply:
        return self._workers[index].finish(deadline_s=deadline_s)


def _arrays(reply: Reply) -> Arrays:
    return {name: tensor.numpy() for name, tensor in reply.tensors.items()}


__all__ = ["COMMON_HANDLERS", "Called", "Plan", "SingleCalls", "WorkerModel", "start_copy"]
