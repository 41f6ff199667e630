"""One load on a running server with neuronbench's own client."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import neuronbench
from neuronbench.audit import audit, outputs, unchanged_gate
from neuronbench.engines.job import Job
from neuronbench.epoch import clock_epoch
from neuronbench.model import FrozenMap, Json, ResourceSpec
from neuronbench.protocols import BootError, PointFailure
from neuronbench.records import utc_now
from neuronbench.standalone.result import Result

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.load.arrivals import Arrivals, Trace
    from neuronbench.load.plan import Plan
    from neuronbench.load.workload import Workload
    from neuronbench.protocols import Progress
    from neuronbench.serving.server import OpenAIServer
    from neuronbench.telemetry.recorder import Telemetry

PROOF_TIMEOUT_S: Final = 60.0


class MeasureError(Exception):
    """There is no result, and why. `remedy` says what to do; `usage` that what was asked for cannot be."""

    def __init__(self, message: str, *, remedy: str = "", usage: bool = False) -> None:
        super().__init__(message)
        self.remedy, self.usage = remedy, usage


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What only the native client can be told."""

    slo: Mapping[str, float] = field(default_factory=dict)
    """Limits per request in ms by metric id."""
    percentile: float = 0.99
    """Share of the requests that has to keep each limit."""
    processes: int = 1
    dataset: Path | None = None
    """Prompts from a file instead of synthetic ones."""
    dataset_format: str = "jsonl"
    ca_file: Path | None = None
    audit: bool = False
    """Look whether the server earns its numbers, after the load."""
    arrivals: Arrivals | None = None
    """Instead of what the job says: bursts, ramps, steps, traces, sessions."""
    workload: Workload | Trace | None = None
    """Instead of prompts and answers of the job's lengths."""


def connect(job: Job, *, progress: Progress) -> OpenAIServer:
    """The server, verified with one generation. Raises `MeasureError`."""
    from neuronbench.serving import external

    given: dict[str, Json] = {"url": job.url, "model": job.model or None}
    if job.tokenizer is not None:
        given["tokenizer"] = str(job.tokenizer)
    spec = ResourceSpec(kind="endpoint", backend="", provider="external", settings=FrozenMap(given), cores=0)
    try:
        return external.connect(
            spec, deadline_s=min(job.deadline_s, 300.0), progress=progress, api_key=job.api_key, unlisted=True
        )
    except BootError as error:
        remedy = error.failure.remedy
        if error.failure.kind == "endpoint_auth":
            remedy = "Name the environment variable that holds the key with --api-key-env."
        raise MeasureError(error.failure.message, remedy=remedy) from error
    except ValueError as error:
        raise MeasureError(str(error), usage=True) from error


def measure(
    job: Job,
    settings: Settings,
    folder: Path,
    *,
    extras: Extras | None = None,
    spawn: Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure; tables and logs go to `folder`, which must be there. Raises `MeasureError` when nothing was measured.

    A run that was cut short (server gone, deadline) is a result of another status than `ok`, with what was seen.
    """
    from neuronbench.load.run import Timeouts, drive, reduce_run
    from neuronbench.measure_serving import default_samplers, slo_tests
    from neuronbench.processes import spawn as default_spawn
    from neuronbench.telemetry.recorder import Recorder

    extras, spawn, say = extras or Extras(), spawn or default_spawn, progress or (lambda text: None)
    started, begun = utc_now(), time.monotonic()
    endpoint = connect(job, progress=say)
    scratch = folder / ".load"
    say("preparing requests")
    plan = _plan(job, extras, endpoint, scratch / "plan")
    say("a few answers to compare with those after the load")
    before = outputs(endpoint)
    recorder = Recorder.start(default_samplers(endpoint), folder, spawn)
    try:
        driven = drive(
            plan,
            base_url=endpoint.base_url,
            out=scratch / "out",
            spawn=spawn,
            progress=lambda text: say(recorder.live.after(text)),
            deadline_s=job.deadline_s,
            timeouts=Timeouts(
                first_token_s=settings.deadlines.first_token, total_s=max(settings.deadlines.request, 1.0)
            ),
            api_key=job.api_key,
            processes=extras.processes,
            ca_file=extras.ca_file,
        )
    except ValueError as error:
        raise MeasureError(str(error), usage=True) from error
    except PointFailure as error:  # of a crew's nodes
        raise MeasureError(error.failure.message, remedy=error.failure.remedy) from error
    finally:
        sampled = recorder.stop()
    say("reducing")
    try:
        reduction = reduce_run(plan, scratch / "out", table=folder / "requests.parquet", slo=extras.slo, drive=driven)
    except ValueError as error:
        raise MeasureError(str(error), usage=True) from error
    result = Result(
        job=job,
        engine={"name": "native", "version": neuronbench.__version__},
        status=driven.status,
        message=driven.message,
        metrics=list(reduction.metrics),
        gates=list(reduction.gates),
        scheduled=int(reduction.window.get("in_window") or 0),
        failures=reduction.failures,
        examples=reduction.examples,
        workload={
            **plan.describe(),
            "epoch": clock_epoch(),
            "slo": dict(extras.slo),
            "special": extras.arrivals is not None,
        },
        slo_tests=slo_tests(reduction, extras.percentile),
        window=reduction.window,
        target={"url": endpoint.base_url, "model": endpoint.model, "facts": dict(endpoint.facts)},
        environment=environment_of(settings),
        started_at=started,
    )
    _server_side(result, sampled, settings)
    if driven.status == "ok":
        result.gates = [*result.gates, unchanged_gate(before, outputs(endpoint))]
    if extras.audit and driven.status == "ok":
        found = audit(endpoint, deadline_s=job.deadline_s, progress=say)
        result.gates = [*result.gates, *found.gates]
        result.workload = {**result.workload, "audit": dict(found.facts)}
    _discard(scratch)
    result.duration_s = time.monotonic() - begun
    return result


def _plan(job: Job, extras: Extras, endpoint: OpenAIServer, folder: Path) -> Plan:
    from neuronbench.load.arrivals import closed_loop, constant, poisson
    from neuronbench.load.chatfit import CannotFit
    from neuronbench.load.plan import make_plan
    from neuronbench.load.workload import Warmup
    from neuronbench.serving.vocabulary import REMEDY, NoVocabulary

    try:
        arrivals: Arrivals
        if extras.arrivals is not None:
            arrivals = extras.arrivals
        elif job.concurrency is not None:
            arrivals = closed_loop(job.concurrency, duration_s=job.duration_s, requests=job.requests)
        else:
            assert job.rate is not None
            assert job.seconds is not None
            law = constant if job.arrivals == "constant" else poisson
            arrivals = law(job.rate, duration_s=job.seconds)
        workload = workload_of(job, extras, endpoint)
        return make_plan(
            folder,
            arrivals=arrivals,
            workload=workload,
            api=job.api,
            model=endpoint.model,
            vocabulary=endpoint.vocabulary,
            warmup=None if job.warmup is None else Warmup(requests=job.warmup),
            seed=job.seed,
            base_url=endpoint.base_url,
            api_key=job.api_key,
        )
    except NoVocabulary as error:
        raise MeasureError(f"prompts of an exact length cannot be made: {error}", remedy=REMEDY) from error
    except CannotFit as error:
        raise MeasureError(str(error), remedy=REMEDY) from error
    except (ValueError, OSError) as error:
        raise MeasureError(str(error), usage=True) from error


def workload_of(job: Job, extras: Extras, endpoint: OpenAIServer) -> Workload | Trace:
    """What is sent. Raises `NoVocabulary` where prompts of a length cannot be made, `ValueError` for bad files."""
    from neuronbench.load.workload import dataset, synthetic
    from neuronbench.serving.vocabulary import NoVocabulary, prove

    if extras.workload is None and extras.dataset is not None:
        chosen: Any = extras.dataset_format
        return dataset(extras.dataset, format=chosen, output_tokens=job.output_tokens, seed=job.seed)
    if job.api == "completions":
        if endpoint.vocabulary is None:
            raise NoVocabulary(f"the server's vocabulary is {endpoint.facts.get('vocabulary', 'unknown')}")
        prove(
            endpoint.base_url, endpoint.model, endpoint.vocabulary,
            timeout_s=PROOF_TIMEOUT_S, api_key=job.api_key,
        )  # fmt: skip
    return extras.workload or synthetic(input_tokens=job.input_tokens, output_tokens=job.output_tokens)


def _server_side(result: Result, sampled: Telemetry, settings: Settings) -> None:
    """What telemetry and calibration add: the server's own counters, and what the client may have added itself."""
    from neuronbench.calibration import client_error
    from neuronbench.measure_serving import server_evidence

    metrics, gates = server_evidence(result.window, sampled)
    result.metrics = [*result.metrics, *metrics]
    if sampled.problem:
        result.notes.append(f"telemetry: {sampled.problem}")
    result.client_error, gate = client_error(settings, {metric.key: metric for metric in result.metrics}, result.window)
    result.gates = [*result.gates, *gates, gate]


def environment_of(settings: Settings) -> dict[str, Json]:
    """Facts of this host and of neuronbench; the server's host may be another."""
    from neuronbench import environment

    facts = {**environment.host_facts(), **environment.harness_facts(), **environment.git_facts(settings.root)}
    return {name: environment.redact(value) if isinstance(value, str) else value for name, value in facts.items()}


def _discard(scratch: Path) -> None:
    """The spill is in the tables now; the driver's log stays where it says something."""
    for log in sorted(scratch.rglob("*.log")):
        if log.stat().st_size:
            log.replace(scratch.parent / log.name)
    shutil.rmtree(scratch, ignore_errors=True)
