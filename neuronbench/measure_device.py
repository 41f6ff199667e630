"""Measuring a compiled model: timed loops in its workers, what they mean, and whether they can be believed.

Before the loops the model is asked for answers (are they finite, does padding leave them alone); the loops run inside
the workers while this process only waits; afterwards come the numbers, the gates and the table of all calls.

Gates, of severity `invalid` but for the last:

| id | fails when |
|---|---|
| `timer_escapes_device` | more than 5 % of the wall of a loop, last output on the host, was seen by no timer |
| `implausible` | a call was faster than the device can be, or the rate of all workers higher |
| `non_finite_output` | an answer has NaN or infinity in it |
| `mask_ignored` | answers for real tokens change with the tokens in the padding |
| `window_covered` | a worker did not call from the window's opening to its end |
| `cores_contended` | (provisional) copies on the host's cores had less than 90 % of them |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench import measure_items, stats
from neuronbench.definitions import metric
from neuronbench.epoch import clock_epoch
from neuronbench.model import Gate, Metric
from neuronbench.protocols import CompiledModel, Floor, PointFailure, Resource, SamplerSpec
from neuronbench.redaction import redact
from neuronbench.telemetry.request import TelemetryRequest

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.telemetry.recorder import Telemetry
    from neuronbench.worker.runs import Run

ESCAPE_LIMIT: Final = 0.05
PROBE_LIMIT: Final = 0.25
"""The same for loops of a few calls, where the loop's ends weigh more; a queue of calls in flight fills most of it."""
MASK_LIMIT: Final = {"float32": 1e-3, "float64": 1e-3}
MASK_LIMIT_SHORT: Final = 2e-2
"""For outputs of models with 16-bit arithmetic."""
SAMPLE_PERIOD_S: Final = 0.25
BUSY_SHARE: Final = 0.9
"""Share of its core that a copy on the host's own cores has to have had."""
PERCENTILES: Final = (0.5, 0.9, 0.99)
WORKER: Final = "worker"
"""Sampler of the workers' process trees."""
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


def or_logs(opened: OpenRecord, model: Resource, since: Mapping[Path, int], step: Callable[[], Any]) -> Any:
    """`step()`; when the model (or trainer) fails in it, what its workers said since becomes part of the receipt."""
    from neuronbench.failures import read_log

    try:
        return step()
    except PointFailure as error:
        for path in model.logs:
            text = read_log(path, start=since.get(path, 0))
            if path.name == error.failure.log or text.strip():
                (opened.folder / path.name).write_text(redact(text), encoding="utf-8")
        raise


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
# gates


def run_gates(run: Run, model: CompiledModel) -> list[Gate]:
    """What the loops themselves tell."""
    least_ms = float(run.durations_ms().min(initial=float("inf")))
    gates = [escape_gate(run), floor_gate(least_ms, model.floor)]
    if run.window_ns is not None:
        gates.append(_cover_gate(run))
    return gates


def escape_gate(run: Run) -> Gate:
    """The timers' sum against the wall of the loop up to the last output on the host; whole loop and short ones."""
    probe = run.probe_escape
    if run.escape <= ESCAPE_LIMIT and probe is not None and probe > PROBE_LIMIT:
        return escape_verdict(probe, PROBE_LIMIT, "loops of a few calls")
    return escape_verdict(run.escape, ESCAPE_LIMIT, "the loop")


def escape_verdict(share: float, limit: float, over: str) -> Gate:
    """The gate for a share of the wall that no timer saw."""
    passed = share <= limit
    why = f"{share:.0%} of the wall of {over} was seen by no timer: calls return before the device is done"
    return Gate(
        id="timer_escapes_device",
        passed=passed,
        observed=round(share, 6),
        limit=limit,
        unit="share",
        message="" if passed else why,
    )


def floor_gate(least_ms: float, floor: Floor) -> Gate:
    """No call is faster than launching it, or than its operations take at the peak of its cores."""
    limit_ms = 1e3 * floor.seconds
    if not limit_ms or least_ms == float("inf"):
        why = "no floor is known for this model" if not limit_ms else "no call ended inside the window"
        return Gate(id="implausible", passed=None, unit="ms", message=why)
    passed = least_ms >= limit_ms
    why = (
        f"a call took {least_ms:.4g} ms, none can take less than {limit_ms:.4g} ms "
        f"({floor.flops_per_call:.3g} operations; {floor.source or f'launch {floor.launch_us:g} µs'})"
    )
    return Gate(
        id="implausible",
        passed=passed,
        observed=round(least_ms, 6),
        limit=round(limit_ms, 6),
        unit="ms",
        message="" if passed else why,
    )


def _cover_gate(run: Run) -> Gate:
    start, end = run.span_ns
    late_ms = max((loop.begun_ns - start) / 1e6 for loop in run.loops)
    early_ms = max((end - loop.stopped_ns) / 1e6 for loop in run.loops)
    missing_ms = max(late_ms, early_ms, 0.0)
    why = f"a worker began {late_ms:.0f} ms after the window had opened" if late_ms > 0 else ""
    why = why or f"a worker's calls ended {early_ms:.0f} ms before the window closed"
    return Gate(
        id="window_covered",
        passed=missing_ms == 0,
        observed=round(missing_ms, 3),
        limit=0,
        unit="ms",
        message=why if missing_ms else "",
    )


def finite_gate(answers: Sequence[Mapping[str, Any]]) -> Gate:
    """No NaN and no infinity in any output: of the first answer, and of each loop's last."""
    import numpy as np

    wrong: dict[str, int] = {}
    for answer in answers:
        for name, values in answer.items():
            if np.issubdtype(values.dtype, np.inexact):
                wrong[name] = wrong.get(name, 0) + int((~np.isfinite(values)).sum())
    total = sum(wrong.values())
    each = ", ".join(f"{name} {count}" for name, count in wrong.items() if count)
    return Gate(
        id="non_finite_output",
        passed=total == 0,
        observed=total,
        limit=0,
        unit="values",
        message=f"NaN or infinity in {len(answers)} answers: {each} values" if total else "",
    )


def mask_gate(model: CompiledModel) -> Gate:
    """The answers for real tokens do not depend on what stands in the padding."""
    ask = getattr(model, "mask_error", None)
    found = ask() if callable(ask) else None
    if found is None:
        return Gate(id="mask_ignored", passed=None, severity="invalid", message="the model has no attention mask")
    limit = MASK_LIMIT.get(str(model.spec.settings.get("dtype", "float32")), MASK_LIMIT_SHORT)
    passed = found <= limit
    return Gate(
        id="mask_ignored",
        passed=passed,
        observed=found,
        limit=limit,
        unit="share",
        message=""
        if passed
        else f"other tokens in the padding change the answers by {found:.2g} of their largest value",
    )


# --------------------------------------------------------------------------------------------------------------------
# telemetry and tables


def default_samplers(model: Resource) -> list[SamplerSpec]:
    """The host, and the workers' process trees."""
    samplers = [SamplerSpec(name="host", target="neuronbench.telemetry.host:Host", period_s=SAMPLE_PERIOD_S)]
    if model.pids():
        samplers.append(
            SamplerSpec(
                name=WORKER,
                target="neuronbench.telemetry.process_tree:ProcessTree",
                options={"pids": list(model.pids())},
                period_s=SAMPLE_PERIOD_S,
            )
        )
    return samplers


def contention_gate(busy_pct: float | None, run: Run) -> Gate | None:
    """Copies that compute on a core of their own have to have it: what is missing, something else on the host took.

    None for copies of several cores, whose threads wait for each other.
    """
    if any(cores is None or len(cores) != 1 for cores in run.cores.values()):
        return None
    share = None if busy_pct is None else round(busy_pct / (100 * len(run.loops)), 4)
    passed = None if share is None else share >= BUSY_SHARE
    why = "the workers' CPU was not sampled inside the window"
    if share is not None:
        why = "" if passed else f"the copies had {share:.0%} of their cores: other processes took the rest; end them"
    return Gate(
        id="cores_contended", passed=passed, observed=share, limit=BUSY_SHARE, unit="share", severity="provisional",
        message=why,
    )  # fmt: skip


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


def record_workers(
    opened: OpenRecord,
    span_ns: tuple[int, int],
    sampled: Telemetry,
    *,
    execution_s: float | None = None,
    device_ns: tuple[int, int] | None = None,
) -> float | None:
    """CPU and memory of the workers' process trees within `span_ns`, whether they were sampled there, and what the
    accelerator's monitor saw: within `device_ns` where that is another span, `execution_s` as it takes it.

    Returns their mean CPU in % of one core; None without a sample.
    """
    from neuronbench.telemetry.accelerator import accelerator
    from neuronbench.telemetry.summary import telemetry_gate

    record = opened.record
    start, end = span_ns
    window = sampled.window(start, end)
    cpu, rss = f"{WORKER}/cpu_percent", f"{WORKER}/rss_bytes"
    peak = window.max(rss)
    none = "no sample of the workers' processes inside the window"
    found = [
        metric("worker_cpu", window.mean(cpu), stat="mean", n=window.n(cpu), note="" if window.n(cpu) else none),
        metric("worker_rss", None if peak is None else peak / (1 << 20), stat="max", n=window.n(rss),
               note="" if peak is not None else none),
    ]  # fmt: skip
    of_device, gates = accelerator(sampled, *(device_ns or span_ns), execution_s=execution_s)
    record.add(*(each for each in (*found, *of_device) if each.key not in record.metrics))
    record.gate(telemetry_gate(sampled, start, end), *gates)
    return window.mean(cpu)


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
