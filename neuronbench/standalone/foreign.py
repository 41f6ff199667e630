"""One load on a running server with another measuring tool."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuronbench.engines import EngineError, Job, find, run
from neuronbench.model import Gate, Metric, Provenance
from neuronbench.records import utc_now
from neuronbench.standalone.native import MeasureError, connect, environment_of
from neuronbench.standalone.result import Result

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.protocols import Progress


def measure_with(
    engine: str,
    where: str,
    job: Job,
    settings: Settings,
    folder: Path,
    *,
    spawn: Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure with the tool `engine` in the environment `where`; its raw output is kept in `folder/raw`.

    The result is marked as imported: none of our checks looks at another tool's requests. Raises `MeasureError`.
    """
    from neuronbench.processes import spawn as default_spawn

    spawn, say = spawn or default_spawn, progress or (lambda text: None)
    started, begun = utc_now(), time.monotonic()
    try:
        found = find(
            engine, where, spawn=spawn, cache=settings.cache_dir, candidates=_stacks(engine, settings), progress=say
        )
    except EngineError as error:
        raise MeasureError(str(error), remedy=error.remedy, usage=error.usage) from error
    endpoint = connect(job, progress=say)
    job = replace(job, url=endpoint.base_url, model=endpoint.model, tokenizer=job.tokenizer and job.tokenizer.resolve())
    if job.tokenizer is not None and job.tokenizer.is_file():
        job = replace(job, tokenizer=job.tokenizer.parent)
    try:
        reading, argv = run(found, job, folder / "raw", spawn=spawn, progress=say)
    except EngineError as error:
        raise MeasureError(str(error), remedy=error.remedy, usage=error.usage) from error
    return Result(
        job=job,
        engine={"name": engine, "version": found.version, "python": str(found.python), "argv": list(argv)},
        status="ok" if reading.succeeded else "all_failed",
        message="" if reading.succeeded else "; ".join(reading.errors) or "no request succeeded",
        provenance=Provenance.IMPORTED,
        metrics=list(reading.metrics),
        gates=[_marked(engine, found.version), *_lengths(job, reading.metrics)],
        scheduled=reading.succeeded + reading.failed,
        failures={"unclassified": reading.failed} if reading.failed else {},
        examples=[{"failure": None, "status": None, "text": text} for text in reading.errors],
        target={"url": endpoint.base_url, "model": endpoint.model, "facts": dict(endpoint.facts)},
        environment=environment_of(settings),
        own_metrics=dict(reading.own),
        notes=list(reading.notes),
        started_at=started,
        duration_s=time.monotonic() - begun,
    )


def _stacks(engine: str, settings: Settings) -> list[Path]:
    """Where vLLM is, its own tool is too."""
    if engine != "vllm":
        return []
    from neuronbench.stacks import PROJECT_STACK, interpreter

    places = [settings.stacks.get("serving") or settings.stacks.get("any"), str(settings.root / PROJECT_STACK)]
    return [python for place in places if place and (python := interpreter(Path(place)))]


def _marked(engine: str, version: str) -> Gate:
    return Gate(
        id="engine",
        passed=None,
        severity="info",
        message=f"measured by {engine} {version}: what that client adds, and whether its load was the one asked for, "
        "is not known; its figures are for comparison",
    )


def _lengths(job: Job, metrics: Any) -> list[Gate]:
    """Whether prompts and answers had the lengths asked for, where the tool tells their mean by usage."""
    gates = []
    means: dict[str, Metric] = {one.id: one for one in metrics if one.stat == "mean"}
    for gate, id_, asked in (
        ("input_length", "input_tokens", job.input_tokens),
        ("output_length", "output_tokens", job.output_tokens),
    ):
        found = means.get(id_)
        if found is not None and found.value is not None:
            gates.append(
                Gate(
                    id=gate,
                    passed=abs(found.value - asked) < 0.5 / max(found.n, 1),
                    observed=found.value,
                    limit=asked,
                    unit="tokens",
                    severity="provisional",
                    message="mean over the requests against the length asked for",
                )
            )
    return gates
