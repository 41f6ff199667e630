"""What pytest-benchmark timed, as metrics and gates of a record.

Its rounds are calls (or means over the iterations of a round), all of them kept in `rounds.parquet`. On the worker's
clock they are calls of a compiled model and get the gates of one, with telemetry from before the first of them to after
the last; on any other timer they are the time of a Python function.

Between two single calls the copy waits for the next, so how busy it was over the window says nothing of whether it had
its core: that is the CPU it had within its calls, by the worker's own count.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronbench import stats
from neuronbench.definitions import metric
from neuronbench.epoch import clock_epoch
from neuronbench.measure_device import PERCENTILES
from neuronbench.measure_gates import (
    ESCAPE_LIMIT,
    contention_verdict,
    escape_verdict,
    finite_gate,
    floor_gate,
    mask_gate,
)
from neuronbench.measure_workers import default_samplers, record_workers
from neuronbench.model import Gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.telemetry.recorder import Recorder, Telemetry
    from neuronbench.telemetry.request import TelemetryRequest

TABLE: Final = "rounds.parquet"


@dataclass(frozen=True, kw_only=True)
class Span:
    """One stretch between two readings of the timer in which the model was called."""

    start_ns: int
    end_ns: int
    duration_ns: int
    """Of the calls, by the worker's clock."""
    cpu_ns: int
    """What the worker had of the CPU during them."""


class Watch:
    """Called at each reading of pytest-benchmark's timer: samples from the first one on, and notes when calls ran.

    Where the rounds begin only the timer's readings tell, for calls that calibrate and warm up come before them.
    """

    def __init__(
        self, session: Session, opened: OpenRecord, model: Any, telemetry: TelemetryRequest | None = None
    ) -> None:
        self.model = model
        self._session, self._opened, self._asked = session, opened, telemetry
        self._recorder: Recorder | None = None
        self._spans: list[Span] = []
        self._read_ns = 0
        self._calls = model.single_calls()

    def __call__(self) -> None:
        """Note an instant. The first starts telemetry, which costs no round: the timer stands still meanwhile."""
        if self._recorder is None:
            self._start()
        now, calls = time.monotonic_ns(), self.model.single_calls()
        if calls.count > self._calls.count:
            self._spans.append(
                Span(
                    start_ns=self._read_ns, end_ns=now, duration_ns=calls.duration_ns - self._calls.duration_ns,
                    cpu_ns=calls.cpu_ns - self._calls.cpu_ns,
                )
            )  # fmt: skip
        self._read_ns, self._calls = now, calls

    def _start(self) -> None:
        from neuronbench.telemetry.recorder import Recorder

        point = self._opened.record.point
        self._session.progress(f"{point.id}: rounds of {self.model.spec.id}")
        samplers = [*default_samplers(self.model), *(self._asked.samplers if self._asked is not None else ())]
        samplers += self._session.plugins.telemetry_samplers(point, self.model)
        folder = self._opened.folder / ".rounds"  # a loop of our own in the same point has telemetry of its own
        folder.mkdir(exist_ok=True)
        self._recorder = Recorder.start(samplers, folder, self._session.spawn)

    def stop(self) -> None:
        """End telemetry, if it was started; what it wrote is in the record's folder then."""
        if self._recorder is None:
            return
        sampled = self._recorder.stop()
        if self._asked is not None and self._asked.result is None:
            self._asked.result = sampled
        folder = self._opened.folder
        for path in sorted((folder / ".rounds").iterdir()):
            target = folder / path.name
            if target.exists():
                target = folder / f"{path.stem}-rounds{path.suffix}"
            path.replace(target)
            if path == sampled.table:
                sampled.table = target
        shutil.rmtree(folder / ".rounds")

    def sampled(self) -> Telemetry | None:
        """What telemetry saw; None when no round was timed."""
        return None if self._recorder is None else self._recorder.stop()

    def rounds(self, count: int) -> Sequence[Span]:
        """The last `count` stretches: nothing is timed after the rounds."""
        return self._spans[-count:]


def record(opened: OpenRecord, rounds: Any, watch: Watch | None) -> None:
    """Add what `rounds` (pytest-benchmark's `benchmark.stats`) has; `watch` when its timer is the worker's clock.

    A record that has the same metrics already, from a loop of our own, keeps them.
    """
    import numpy as np

    in_order = np.asarray(rounds.stats.data, dtype=float)
    durations = np.sort(in_order) * 1e3
    iterations = int(rounds.iterations)
    id = "call_time" if watch is None else "latency"
    said = "timed by pytest-benchmark" + (f", rounds of {iterations} iterations" if iterations > 1 else "")
    metrics = []
    for p in PERCENTILES:
        found = stats.quantile(durations, p)
        confidence = stats.CONFIDENCE if found.low is not None or found.high is not None else None
        metrics.append(
            metric(id, found.value, stat=f"p{100 * p:g}", n=found.n, low=found.low, high=found.high,
                   confidence=confidence, note="; ".join(part for part in (said, found.note) if part))
        )  # fmt: skip
    metrics.append(metric(id, float(durations.mean()), stat="mean", n=len(durations), note=said))
    target = opened.record
    target.add(*(each for each in metrics if each.key not in target.metrics))
    timer = rounds.options.get("timer")
    target.workload["pytest_benchmark"] = {
        "rounds": len(durations),
        "iterations": iterations,
        "timer": getattr(timer, "__name__", str(timer)),
        "group": rounds.group,
    }
    _write_rounds(opened, in_order)
    if watch is not None:
        target.gate(*_gates(float(durations[0]), watch.model))
        _evidence(opened, watch, len(durations))


def _evidence(opened: OpenRecord, watch: Watch, count: int) -> None:
    """What else happened on the host while the rounds ran, as a loop's record has it."""
    target, model = opened.record, watch.model
    spans, sampled = watch.rounds(count), watch.sampled()
    if not spans or sampled is None:
        why = "no round called the model, so nothing says what the host did meanwhile: benchmark(compiled_model.call)"
        target.gate(Gate(id="telemetry", passed=False, severity="provisional", message=why))
        return
    start_ns, end_ns = spans[0].start_ns, spans[-1].end_ns
    cores = model.cores_of(0)
    target.workload["pytest_benchmark"] |= {
        "window": {"start_ns": start_ns, "end_ns": end_ns},
        "cores": None if cores is None else list(cores),
        "epoch": clock_epoch(),
    }
    if sampled.table is not None:
        name = "telemetry" if "telemetry" not in target.tables else "telemetry-rounds"
        target.tables[name] = sampled.table.name
    if sampled.problem:
        target.notes.append(f"telemetry: {sampled.problem}")
    record_workers(opened, (start_ns, end_ns), sampled)
    if getattr(model, "host_bound", False) and cores is not None and len(cores) == 1:
        called_ns = sum(span.duration_ns for span in spans)
        target.gate(contention_verdict(sum(span.cpu_ns for span in spans) / called_ns if called_ns else None))


def _write_rounds(opened: OpenRecord, seconds: Any) -> None:
    """Every round in the order they ran: the time of a call in ns, of several iterations their mean."""
    import numpy as np
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    columns = {"round": np.arange(len(seconds), dtype="int64"), "duration_ns": seconds * 1e9}
    parquet.write_table(arrow.table(columns), opened.folder / TABLE, compression="zstd")
    opened.record.tables["rounds"] = TABLE


def _gates(least_ms: float, model: Any) -> list[Gate]:
    """Those of a loop, as far as single calls have them."""
    gates = [
        floor_gate(least_ms, model.floor),
        finite_gate([model.last_outputs()]),
        mask_gate(model),
    ]
    escaped = model.single_calls_escape()
    if escaped is not None:
        gates.append(escape_verdict(escaped, ESCAPE_LIMIT, "single calls"))
    return gates
