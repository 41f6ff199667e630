"""What stands around a measurement in workers: samplers of their processes, what those saw, last words if it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from neuronbench.definitions import metric
from neuronbench.protocols import PointFailure, Resource, SamplerSpec
from neuronbench.redaction import redact

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.telemetry.recorder import Telemetry

T = TypeVar("T")

WORKER: Final = "worker"
"""Sampler of the workers' process trees."""
SAMPLE_PERIOD_S: Final = 0.25


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


def or_logs(opened: OpenRecord, model: Resource, since: Mapping[Path, int], step: Callable[[], T]) -> T:
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
