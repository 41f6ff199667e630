"""Measuring a compiled model: timed loops in its workers, and what they mean.

Before the loops the model is asked for answers (are they finite, does padding leave them alone); the loops run inside
the workers while this process only waits; afterwards come the numbers, the gates (`measure_gates`) and the table of all
calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronbench import measure_items, stats
from neuronbench.definitions import metric
from neuronbench.epoch import clock_epoch
from neuronbench.measure_gates import contention_gate, finite_gate, mask_gate, run_gates
from neuronbench.measure_workers import default_samplers, or_logs, record_workers
from neuronbench.model import Gate, Metric
from neuronbench.protocols import CompiledModel
from neuronbench.telemetry.request import TelemetryRequest

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.telemetry.recorder import Telemetry
    from neuronbench.worker.runs import Run

PERCENTILES: Final = (0.5, 0.9, 0.99)
TABLE: Final = "calls.parquet"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What a measurement found."""

    metrics: Mapping[str, Metric]
    gates: Sequence[Gate]
    run: Run

    def __getitem__(self, key: str) -> float | None:
        """Value of a metric, such as `latency_p50_ms`."""
        return self.metrics[key].value


def latency(
    session: Session,
    opened: OpenRecord,
    model: CompiledModel,
    *,
    calls: int,
    warmup: int,
    telemetry: TelemetryRequest,
) -> Timed:
    """Time single calls and record; see `Measure.latency`."""
    said = f"{calls} calls of {model.spec.id}"
    return _measure(session, opened, model, telemetry, said, lambda: model.latency(calls=calls, warmup=warmup), _timed)


def throughput(
    session: Session,
    opened: OpenRecord,
    model: CompiledModel,
    *,
    seconds: float,
    workers: int | None,
    warmup: int,
    telemetry: TelemetryRequest,
) -> Timed:
    """Let copies of the model run against the clock and record; see `Measure.throughput`."""
    team = getattr(model, "team", None)
    if callable(team):  # copies are loaded before telemetry begins, so that their processes are sampled from the start
        session.progress(f"{opened.record.point.id}: loading model copies")
        or_logs(opened, model, {}, lambda: team(workers))
    said = f"{seconds:g} s of {model.spec.id}"
    return _measure(
        session, opened, model, telemetry, said,
        lambda: model.throughput(seconds=seconds, workers=workers, warmup=warmup), _windowed,
    )  # fmt: skip


def _measure(
    session: Session,
    opened: OpenRecord,
    model: CompiledModel,
    telemetry: TelemetryRequest,
    what: str,
    loop: Callable[[], Run],
    reduce: Callable[[Run, CompiledModel], list[Metric]],
) -> Timed:
    from neuronbench.telemetry.recorder import Recorder

    record = opened.record
    logged = {path: path.stat().st_size for path in model.logs if path.is_file()}
    session.progress(f"{record.point.id}: {what}")
    answers = or_logs(opened, model, logged, lambda: [model.outputs()])
    gates = [or_logs(opened, model, logged, lambda: mask_gate(model))]
    samplers = [*default_samplers(model), *telemetry.samplers]
    samplers += session.plugins.telemetry_samplers(record.point, model)
    recorder = Recorder.start(samplers, opened.folder, session.spawn)
    try:
        with recorder.live.each_second(session.progress, f"{record.point.id}: {what}"):
            run: Run = or_logs(
                opened, model, logged, lambda: session.plugins.measuring(record.point, model, record, loop)
            )
    finally:
        sampled = telemetry.result = recorder.stop()
    last = getattr(model, "last_outputs", None)
    if callable(last):
        answers += or_logs(opened, model, logged, lambda: [last(loop.worker) for loop in run.loops])
    metrics = reduce(run, model)
    metrics += measure_items.derived(run, model, metrics)
    # The metrics of a second measurement in the same record are left out, for a result is never overwritten.
    metrics = [each for each in metrics if each.key not in record.metrics]
    gates += [finite_gate(answers), *run_gates(run, model)]
    record.add(*metrics)
    record.gate(*gates)
    record.workload.setdefault("loops", []).append(describe(run, model))
    _write_calls(opened, run)
    _record_telemetry(opened, run, model, sampled)
    return Timed(metrics={each.key: each for each in metrics}, gates=gates, run=run)


# --------------------------------------------------------------------------------------------------------------------
# numbers


def _timed(run: Run, model: CompiledModel) -> list[Metric]:
    return [*latency_metrics(run), _wall_latency(run)]


def _windowed(run: Run, model: CompiledModel) -> list[Metric]:
    start, end = run.span_ns
    finished = sum(int(run.inside(loop).sum()) for loop in run.loops)
    shown = f"batch {run.batch_size} × {len(run.loops)} workers, window {(end - start) / 1e9:g} s"
    rate = run.rate() if finished else None
    none = "no call ended inside the window: make it longer"
    return [
        metric("throughput", rate, n=finished, note=shown if finished else none),
        metric("throughput_wall", run.wall_rate(), n=run.calls),
        *latency_metrics(run),
    ]


def latency_metrics(run: Run) -> list[Metric]:
    """Percentiles with bounds, and the mean, of the calls that ended inside the window."""
    durations = run.durations_ms()
    metrics = []
    for p in PERCENTILES:
        found = stats.quantile(durations, p)
        bounded = found.low is not None or found.high is not None
        metrics.append(
            metric(
                "latency", found.value, stat=f"p{100 * p:g}", n=found.n, low=found.low, high=found.high,
                confidence=stats.CONFIDENCE if bounded else None, note=found.note,
            )
        )  # fmt: skip
    mean = float(durations.mean()) if len(durations) else None
    return [*metrics, metric("latency", mean, stat="mean", n=len(durations))]


def _wall_latency(run: Run) -> Metric:
    wall_ns = sum(loop.wall_ns - loop.bookkeeping_ns for loop in run.loops)
    return metric("latency_wall", wall_ns / run.calls / 1e6, n=run.calls, note="last output on the host")


def describe(run: Run, model: CompiledModel) -> dict[str, Any]:
    """Identity of the load, for the record."""
    start, end = run.span_ns
    return {
        "workers": len(run.loops),
        "batch_size": run.batch_size,
        "inputs": run.batch_digest,
        "warmup_calls": run.warmup,
        "calls": run.calls,
        "window": {"start_ns": start, "end_ns": end},
        "cores": {str(worker): None if cores is None else list(cores) for worker, cores in run.cores.items()},
        "garbage_collector": "off while timing",
        "bookkeeping_ns_per_call": round(sum(x.bookkeeping_ns for x in run.loops) / max(run.calls, 1), 1),
        "barrier_ms": [round((x.ended_ns - x.stopped_ns) / 1e6, 4) for x in run.loops],
        "transfer_ms": [round(x.transfer_ns / 1e6, 4) for x in run.loops],
        "epoch": clock_epoch(),
    }


def agreement(opened: OpenRecord, model: CompiledModel, inputs: Mapping[str, Any] | None = None) -> float:
    """Largest difference from the fp32 reference, recorded; see `Measure.agreement`."""
    import numpy as np

    answers, wanted = model.outputs(inputs), model.reference(inputs)
    if answers.keys() != wanted.keys():
        raise ValueError(f"the model answers {', '.join(answers)}, its reference {', '.join(wanted)}")
    errors, scales, count = {}, {}, 0
    for name, reference in wanted.items():
        exact = np.asarray(reference, dtype="f8")
        errors[name] = float(np.abs(np.asarray(answers[name], dtype="f8") - exact).max(initial=0.0))
        scales[name] = float(np.abs(exact).max(initial=0.0))
        count += exact.size
    record = opened.record
    record.gate(finite_gate([answers]))
    finite = all(np.isfinite(error) for error in errors.values())
    worst = max(errors.values()) if finite else float("inf")
    note = "against the same weights in fp32, not compiled" if finite else "an answer is not finite"
    record.add(metric("max_abs_err", worst if finite else None, n=count, note=note))
    record.workload["agreement"] = {
        name: {"max_abs_err": error if np.isfinite(error) else None, "largest_reference": scales[name]}
        for name, error in errors.items()
    }
    return worst


# --------------------------------------------------------------------------------------------------------------------
# telemetry and the table of calls


def _record_telemetry(opened: OpenRecord, run: Run, model: CompiledModel, sampled: Telemetry) -> None:
    record = opened.record
    if sampled.table is not None:
        record.tables["telemetry"] = sampled.table.name
    if sampled.problem:
        record.notes.append(f"telemetry: {sampled.problem}")
    cpu = record_workers(opened, run.span_ns, sampled)
    contended = contention_gate(cpu, run) if getattr(model, "host_bound", False) else None
    if contended is not None:
        record.gate(contended)


def _write_calls(opened: OpenRecord, run: Run) -> None:
    """Every call: worker, instant of its end, duration, whether it ended inside the window."""
    import numpy as np
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    name = TABLE if "calls" not in opened.record.tables else f"calls-{time.monotonic_ns()}.parquet"
    columns = {
        "worker": np.concatenate([np.full(len(x.durations_ns), x.worker, dtype="int16") for x in run.loops]),
        "end_ns": np.concatenate([np.asarray(x.ends_ns, dtype="int64") for x in run.loops]),
        "duration_ns": np.concatenate([np.asarray(x.durations_ns, dtype="int64") for x in run.loops]),
        "in_window": np.concatenate([run.inside(x) for x in run.loops]),
    }
    parquet.write_table(arrow.table(columns), opened.folder / name, compression="zstd")
    opened.record.tables["calls" if name == TABLE else name.removesuffix(".parquet")] = name
