"""One measured window against an endpoint: plan, samplers, driver, reduction, in this order.

Everything that costs time on the host happens before the driver starts or after it has ended: the plan's bodies are
encoded before, nothing in this process runs while the window is open but a wait on the driver's pipe, and receipts,
tables and MLflow come afterwards.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuronbench.audit import OUTPUTS_DEADLINE_S, outputs, unchanged_gate
from neuronbench.epoch import clock_epoch
from neuronbench.load.apis import APIS
from neuronbench.model import Failure, Gate, Metric, Record, fingerprint
from neuronbench.protocols import DeadlineExceeded, Endpoint, PointFailure, SamplerSpec
from neuronbench.telemetry.request import TelemetryRequest
from neuronbench.witness import SeenWindow, Witness

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.load.reduce import Reduction
    from neuronbench.load.run import Drive
    from neuronbench.load.workload import Warmup
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.telemetry.recorder import Telemetry

TELEMETRY_PERIOD_S = 0.5
SCRAPE_PERIOD_S = 1.0


@dataclass(kw_only=True)
class Served:
    """What `measure.serve` found."""

    metrics: Mapping[str, Metric]
    gates: Sequence[Gate]
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed requests by class."""
    table: Path | None = None

    def __getitem__(self, key: str) -> float | None:
        """Value of a metric, such as `ttft_p99_ms`."""
        return self.metrics[key].value


def serve(
    session: Session,
    opened: OpenRecord,
    endpoint: Endpoint,
    arrivals: Any,
    workload: Any,
    *,
    telemetry: TelemetryRequest,
    api: str,
    slo: Mapping[str, float],
    warmup: Warmup | None = None,
    processes: int = 1,
) -> Served:
    """Measure and record; see `Measure.serve`."""
    from neuronbench.load.plan import make_plan
    from neuronbench.load.run import Timeouts, drive, reduce_run
    from neuronbench.telemetry.recorder import Recorder

    settings, record = session.settings, opened.record
    if "requests" in record.tables:
        raise RuntimeError(
            f"{record.point.id}: measure.serve was called before in this point, and a record holds one window: "
            "make the loads an axis of a grid or of parametrize"
        )
    if not endpoint.alive():
        raise PointFailure(_endpoint_failure(endpoint, "window", "the server was gone before the point began"))
    scratch = opened.folder / ".load"
    session.progress(f"{record.point.id}: preparing requests")
    plan = make_plan(
        scratch / "plan",
        arrivals=arrivals,
        workload=workload,
        api=api,
        base_url=endpoint.base_url,
        model=endpoint.model,
        vocabulary=endpoint.vocabulary,
        api_key=endpoint.api_key,
        seed=seed_of(record),
        warmup=warmup,
    )
    record.workload.update(plan.describe(), epoch=clock_epoch(), slo=dict(slo), engine="native")

    patience_s = min(settings.deadlines.first_token, OUTPUTS_DEADLINE_S)
    before = outputs(endpoint, deadline_s=patience_s) if APIS[api].generates else None
    samplers = [*default_samplers(endpoint), *telemetry.samplers]
    samplers += session.plugins.telemetry_samplers(record.point, endpoint)
    samplers += endpoint.samplers() if isinstance(endpoint, Witness) else []
    recorder = Recorder.start(samplers, opened.folder, session.spawn)
    try:
        driven: Drive = session.plugins.measuring(
            record.point,
            endpoint,
            record,
            lambda: drive(
                plan,
                base_url=endpoint.base_url,
                out=scratch / "out",
                spawn=session.spawn,
                progress=lambda text: session.progress(f"{record.point.id}: {recorder.live.after(text)}"),
                deadline_s=settings.deadlines.point,
                timeouts=Timeouts(first_token_s=settings.deadlines.first_token, total_s=settings.deadlines.request),
                api_key=endpoint.api_key,
                processes=processes,
            ),
        )
    except KeyboardInterrupt:
        # What was measured until now is kept; the record says that the window was not seen to its end.
        with contextlib.suppress(Exception):
            partial = reduce_run(plan, scratch / "out", table=opened.folder / "requests.parquet", slo=slo)
            _record(opened, endpoint, partial, recorder.stop(), settings)
        _discard(scratch)
        raise
    finally:
        sampled = telemetry.result = recorder.stop()
    reduction = reduce_run(plan, scratch / "out", table=opened.folder / "requests.parquet", slo=slo, drive=driven)
    _record(opened, endpoint, reduction, sampled, settings)
    _discard(scratch)
    failure = _failure(session, endpoint, driven)
    if before is not None and failure is None:
        record.gate(unchanged_gate(before, outputs(endpoint, deadline_s=patience_s)))
    if failure is not None:
        raise DeadlineExceeded(failure) if failure.kind.endswith("timeout") else PointFailure(failure)
    return Served(
        metrics={metric.key: metric for metric in reduction.metrics},
        gates=list(reduction.gates),
        failures=dict(reduction.failures),
        table=reduction.table,
    )


def seed_of(record: Record) -> int:
    """Seed of the prompts: the same for the same axes and repeat on every backend, in every session.

    It differs between the points and repeats that one server sees, so that no point meets prompts that an earlier one
    left in a prefix cache.
    """
    point = record.point
    return int(
        fingerprint({"axes": {axis: point.params[axis] for axis in point.axes}, "repeat": record.repeat})[:8], 16
    )


def default_samplers(endpoint: Endpoint) -> list[SamplerSpec]:
    """The server's process tree, its own counters, and the host."""
    samplers = [
        SamplerSpec(
            name="host",
            target="neuronbench.telemetry.host:Host",
            period_s=TELEMETRY_PERIOD_S,
            live={"cpu_percent": "host CPU"},
        )
    ]
    if endpoint.pids():
        samplers.append(
            SamplerSpec(
                name="server",
                target="neuronbench.telemetry.process_tree:ProcessTree",
                options={"pids": list(endpoint.pids())},
                period_s=TELEMETRY_PERIOD_S,
                live={"cpu_percent": "server CPU", "rss_bytes": ""},
            )
        )
    if endpoint.metrics_url:
        samplers.append(
            SamplerSpec(
                name="metrics",
                target="neuronbench.telemetry.prometheus:Prometheus",
                options={"url": endpoint.metrics_url, "prefixes": ["vllm:", "vllm_neuron:"]},
                period_s=SCRAPE_PERIOD_S,
                live={"vllm:num_requests_waiting": "waiting", "vllm:kv_cache_usage_perc": "KV cache"},
            )
        )
    return samplers


def _record(opened: OpenRecord, endpoint: Endpoint, reduction: Any, sampled: Telemetry, settings: Settings) -> None:
    from neuronbench.calibration import client_error

    record = opened.record
    record.add(*reduction.metrics)
    record.gate(*reduction.gates)
    record.workload["window"] = dict(reduction.window)
    record.workload["failures"] = dict(reduction.failures)
    if reduction.slo:
        record.workload["slo_tests"] = slo_tests(reduction, SLO_PERCENTILE)
    record.tables["requests"] = "requests.parquet"
    if sampled.table is not None:
        record.tables["telemetry"] = sampled.table.name
    if sampled.problem:
        record.notes.append(f"telemetry: {sampled.problem}")
    metrics, gates = server_evidence(reduction.window, sampled)
    record.add(*metrics)
    record.gate(*gates)
    _testimony(opened, endpoint, reduction, sampled)
    served = endpoint.facts.get("model")
    if isinstance(served, Mapping) and served.get("note"):
        record.notes.append(f"weights: {served['note']}")
        if served.get("source") == "packaged" and not str(served.get("reference", "")).startswith("packaged:"):
            record.gate(
                Gate(
                    id="weights_as_asked",
                    passed=False,
                    severity="provisional",
                    observed=served.get("source"),
                    message=f"{served.get('reference')} was not to be had, and {served['note']} stood in for it",
                )
            )
    record.workload["client_error"], gate = client_error(settings, record.metrics, reduction.window)
    record.gate(gate)


def _testimony(opened: OpenRecord, endpoint: Endpoint, reduction: Reduction, sampled: Telemetry) -> None:
    """What the server itself has to say of the window, where it is one that has."""
    if not isinstance(endpoint, Witness):
        return
    record = opened.record
    seen = SeenWindow(
        folder=opened.folder, requests=reduction.table, window=reduction.window, workload=record.workload,
        telemetry=sampled,
    )  # fmt: skip
    try:
        said = endpoint.testify(seen)
    except Exception as error:  # of a plugin: the window was measured all the same
        text = f"{type(error).__name__}: {error}"
        record.gate(Gate(id="testimony", passed=False, severity="provisional", message=text, observed="raised"))
        return
    record.add(*said.metrics)
    record.gate(*said.gates)
    record.notes += said.notes
    record.tables.update(said.tables)
    if said.facts:
        record.workload["server"] = dict(said.facts)


SLO_PERCENTILE = 0.99


def slo_tests(reduction: Reduction, percentile: float) -> dict[str, dict[str, Any]]:
    """By limit of an SLO: whether it was shown to be kept by that share of requests, by MLPerf's early-stopping rule.

    `verdict` is `met`, `missed` or `undecided`, at 99 % confidence; `more`: how many more requests within the limit,
    and none beyond it, would settle an undecided one. Failures are beyond every limit.
    """
    from neuronbench import stats

    limits = reduction.limits
    found = {}
    for name, (within, beyond) in reduction.slo.items():
        test = stats.slo_test(within, beyond, percentile)
        found[name] = {
            "limit_ms": limits[name], "percentile": percentile, "confidence": stats.SLO_CONFIDENCE,
            "within": within, "beyond": beyond, "verdict": test.verdict, "more": test.more,
        }  # fmt: skip
    return found


def server_evidence(window: Mapping[str, Any], sampled: Telemetry) -> tuple[list[Metric], list[Gate]]:
    """What the server's side says of a window: its processes, its counters, and whether they agree with the client's.

    `window` is that of a `Reduction`.
    """
    from neuronbench.load.gates import token_conservation
    from neuronbench.telemetry.accelerator import accelerator
    from neuronbench.telemetry.summary import server_metrics, serving_counters, telemetry_gate, token_totals

    counted = token_totals(sampled)
    gates = [
        host_contention(window, sampled),
        token_conservation(window, prompt_tokens=counted.prompt_tokens, generation_tokens=counted.generation_tokens),
    ]
    start_ns, end_ns = window.get("start_ns"), window.get("end_ns")
    if start_ns is None or end_ns is None:
        return [], gates
    metrics = [*server_metrics(sampled, start_ns, end_ns), *serving_counters(sampled, start_ns, end_ns)]
    of_device, judged = accelerator(sampled, start_ns, end_ns)
    return [*metrics, *of_device], [*gates, telemetry_gate(sampled, start_ns, end_ns), *judged]


CONTENTION_LIMIT_PCT = 25.0
"""What processes that do not belong to the measurement may use of the host meanwhile; 100 % is one core."""


def host_contention(window: Mapping[str, Any], sampled: Telemetry, own: str = "server/cpu_percent") -> Gate:
    """Whether the machine did other work while the window was open: the server had less of it then than it seems.

    CPU of the whole host without that of the measured processes (series `own`), of the load driver and of telemetry;
    steal counts in.
    """
    limit, unit = CONTENTION_LIMIT_PCT, "%"
    start_ns, end_ns = window.get("start_ns"), window.get("end_ns")
    if start_ns is None or end_ns is None:
        return Gate(
            id="host_contended", passed=None, limit=limit, unit=unit, severity="provisional", message="no window"
        )
    seen = sampled.window(start_ns, end_ns)
    host, server = seen.mean("host/cpu_percent"), seen.mean(own)
    if host is None or server is None:
        why = f"CPU of the host or of the {own.partition('/')[0]}'s processes was not sampled"
        return Gate(id="host_contended", passed=None, limit=limit, unit=unit, severity="provisional", message=why)
    client = float(window.get("client_cpu_pct") or 0.0)
    others = max(host * (os.cpu_count() or 1) - server - client, 0.0)
    return Gate(
        id="host_contended",
        passed=others <= limit,
        observed=round(others, 1),
        limit=limit,
        unit=unit,
        severity="provisional",
        message="CPU used by other processes while the window was open (100 % is one core): end them and measure again",
    )


def _failure(session: Session, endpoint: Endpoint, driven: Drive) -> Failure | None:
    """Why there is no result; None when the driver ended as planned."""
    if driven.status == "ok":
        return None
    if driven.status == "server_gone" or not endpoint.alive():
        return _endpoint_failure(endpoint, "window", driven.message)
    if driven.status == "all_failed":
        return Failure(
            kind="all_requests_failed",
            phase="warmup",
            message=driven.message,
            causal_line=driven.message,
            remedy="the answers' own words are in requests.parquet (column `error`); see also the server's log",
        )
    if driven.status == "timeout":
        return Failure(
            kind="point_timeout",
            phase="window",
            message=driven.message or f"the load did not end within {session.settings.deadlines.point:g} s",
            remedy="raise it with --nb-deadline point=SECONDS, or send fewer or shorter requests",
        )
    return Failure(
        kind=f"driver_{driven.status}",
        phase="window",
        message=driven.message or "the load driver ended early",
        causal_line=driven.message,
        remedy="what was recorded until then is in requests.parquet; the driver's log is in the receipt",
    )


def _endpoint_failure(endpoint: Endpoint, phase: str, message: str) -> Failure:
    """What the server itself says about its end; it may take a moment to be seen as ended."""
    deadline = time.monotonic() + 5.0
    while endpoint.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    found = endpoint.diagnose(phase)
    if found is not None:
        return found
    return Failure(
        kind="server_gone",
        phase=phase,
        message=message or "the server stopped answering",
        causal_line=message,
        remedy="look at the end of the server's log",
    )


def _discard(scratch: Path) -> None:
    """The spill is in the tables now; the driver's log stays."""
    import shutil

    for log in sorted(scratch.rglob("*.log")):
        if log.stat().st_size:
            log.replace(scratch.parent / log.name)
    shutil.rmtree(scratch, ignore_errors=True)
