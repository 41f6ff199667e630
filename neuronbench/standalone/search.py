"""The highest rate under limits, on a running server, without pytest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import neuronbench
from neuronbench import measure_search
from neuronbench.engines.job import Job
from neuronbench.measure_search import Found, Search
from neuronbench.model import Json, Validity, jsonable, verdict_of
from neuronbench.protocols import PointFailure
from neuronbench.records import utc_now
from neuronbench.standalone.native import Extras, MeasureError, connect, environment_of, workload_of

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.protocols import Progress


@dataclass(frozen=True, kw_only=True)
class RateResult:
    """What a search on a running server found."""

    job: Job
    found: Found
    target: dict[str, Json]
    environment: dict[str, Json]
    started_at: str
    duration_s: float
    notes: Sequence[str] = ()

    @property
    def validity(self) -> Validity:
        """Worst verdict of the gates, as in a record."""
        return verdict_of(self.found.gates())

    def to_json(self) -> dict[str, Json]:
        found = self.found
        document: dict[str, Any] = {
            "schema_version": 1,
            "neuronbench": neuronbench.__version__,
            "validity": self.validity.value,
            "started_at": self.started_at,
            "duration_s": self.duration_s,
            "asked": self.job.to_json(),
            "target": self.target,
            "max_rate_under_slo_req_s": found.rate,
            "search": found.to_json(),
            "metric_records": {metric.key: metric.to_json() for metric in found.metrics()},
            "gates": found.gates(),
            "notes": list(self.notes),
            "environment": self.environment,
        }
        plain: dict[str, Json] = jsonable(document)
        return plain


def find_rate(
    job: Job,
    search: Search,
    settings: Settings,
    folder: Path,
    *,
    extras: Extras | None = None,
    spawn: Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> RateResult:
    """Search; the tables of loads and of telemetry go to `folder`. Raises `MeasureError` when there is no answer."""
    from neuronbench.load.chatfit import CannotFit
    from neuronbench.load.run import Timeouts
    from neuronbench.measure_search_gates import host_gates, samplers
    from neuronbench.processes import spawn as default_spawn
    from neuronbench.serving.vocabulary import REMEDY
    from neuronbench.telemetry.recorder import Recorder

    extras, spawn, say = extras or Extras(), spawn or default_spawn, progress or (lambda text: None)
    started, begun = utc_now(), time.monotonic()
    endpoint = connect(job, progress=say)
    try:
        workload = workload_of(job, extras, endpoint)
        recorder = Recorder.start(samplers(endpoint), folder, spawn)
        try:
            found = measure_search.find(
                search, endpoint, workload, api=job.api, folder=folder, spawn=spawn,
                progress=lambda text: say(recorder.live.after(text)), deadline_s=job.deadline_s, seed=job.seed,
                processes=extras.processes, ca_file=extras.ca_file,
                timeouts=Timeouts(
                    first_token_s=settings.deadlines.first_token, total_s=max(settings.deadlines.request, 1.0)
                ),
            )  # fmt: skip
        finally:
            sampled = recorder.stop()
    except PointFailure as error:
        raise MeasureError(error.failure.message, remedy=error.failure.remedy) from error
    except CannotFit as error:
        raise MeasureError(str(error), remedy=REMEDY) from error
    except (ValueError, OSError) as error:
        raise MeasureError(str(error), usage=True) from error
    found = replace(found, evidence=host_gates(found, sampled))
    measure_search.write(found, folder / measure_search.TABLE)
    return RateResult(
        job=job,
        found=found,
        target={"url": endpoint.base_url, "model": endpoint.model, "facts": dict(endpoint.facts)},
        environment=environment_of(settings),
        started_at=started,
        duration_s=time.monotonic() - begun,
        notes=[f"telemetry: {sampled.problem}"] if sampled.problem else [],
    )


def rows(found: Found) -> Sequence[Sequence[str]]:
    """Rows for a table: rate, verdict, requests, achieved, goodput, and each limit's counts and percentile."""

    def text(value: object) -> str:
        return "–" if not isinstance(value, (int, float)) else f"{value:.4g}"

    made = []
    for row in found.rows():
        limits = [
            f"{row['within'][name]} of {row['within'][name] + row['beyond'][name]}"
            f"  ({text(row['latencies_ms'].get(name))})"
            for name in found.search.slo
        ]
        cells = [text(row["rate"]), str(row["verdict"]), str(row["requests"]), text(row["achieved_rate"])]
        made.append([*cells, text(row["goodput"]), str(row["failures"]), *limits])
    return made


def columns(found: Found) -> Sequence[str]:
    """Headings of `rows`."""
    stat = f"p{100 * found.search.percentile:g}"
    limits = [f"{name} ≤ {limit:g} ms  ({stat} of the last load)" for name, limit in found.search.slo.items()]
    return ("req/s", "verdict", "requests", "achieved", "goodput", "failed", *limits)
