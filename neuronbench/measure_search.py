"""The highest rate at which a served model keeps its limits: loads of Poisson arrivals, one rate after the other.

Each rate is measured until a test of MLPerf's early-stopping kind settles every limit (`stats.slo_test`) or the allowed
number of requests is used up; what is undecided counts as not met, and so does a rate at which the queue grows.

TTFT and E2E are judged from the instant at which a request was due: what the client wrote late counts against the rate,
so lateness can only make the answer too low, and it is marked where there was some. A load that the client spoiled
otherwise (it had no CPU, or did not arrive as planned) decides nothing: it is made again once, and if it is spoiled
again there is no answer.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.definitions import metric
from neuronbench.epoch import clock_epoch
from neuronbench.model import Failure, Gate, Json, Metric
from neuronbench.protocols import Endpoint, PointFailure, Progress

if TYPE_CHECKING:
    from neuronbench.load.reduce import Reduction
    from neuronbench.load.run import Timeouts
    from neuronbench.load.search import SearchResult
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.telemetry.request import TelemetryRequest

TABLE: Final = "search.parquet"
DUE: Final = {"ttft": "ttft_due", "e2e": "e2e_due"}
"""Latencies that are judged from when the request was due instead of from when it was written."""
LATE: Final = "send_lag"
OWN: Final = ("client_cpu", "clock_order", "achieved_rate", "arrivals", "window_complete")
"""Gates that say the client did what it was told; a load that fails one decides nothing."""
READING: Final = "client_lag"
"""Reading late spoils a load only where instants are not the kernel's."""
LEAST_SECONDS: Final = 2.0
"""A window is at least so long, however few requests are asked for."""
_SPREADS: Final = 1.645
"""Of the normal law, that leave one of twenty below."""
SEED_STEP: Final = 7919
"""Seeds of two loads differ by so much: no load meets prompts that one before it left in a cache."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is asked for."""

    slo: Mapping[str, float]
    """Limits per request in ms by metric id (`ttft`, `tpot`, `e2e`, ...)."""
    percentile: float = 0.99
    """Share of requests that has to be within each limit."""
    confidence: float = 0.99
    start: float = 1.0
    """Requests per second to begin with."""
    lowest: float = 0.05
    highest: float = 10_000.0
    tolerance: float = 0.1
    """The answer is known to a factor of 1 + this."""
    most_requests: int | None = None
    """Per rate; None: eight times the fewest that can settle a limit."""
    retries: int = 1
    """A load that the client spoiled is made again so often."""
    lead_s: float = 2.0
    """Of the same load, before the window of each rate opens."""

    def __post_init__(self) -> None:
        if not self.slo:
            raise ValueError("slo: expected at least one limit, such as {'ttft': 500}; found none")
        for name in ("percentile", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a share between 0 and 1, found {getattr(self, name)!r}")
        if not 0 < self.lowest <= self.start <= self.highest:
            raise ValueError(
                f"rates: expected 0 < lowest ≤ start ≤ highest, found {self.lowest}, {self.start}, {self.highest}"
            )
        if not self.tolerance > 0:
            raise ValueError(f"tolerance: expected a share above 0, found {self.tolerance!r}")

    @property
    def fewest(self) -> int:
        """Requests that each rate begins with: the fewest that can show a limit to be met, and some."""
        from neuronbench.load.search import requests_needed

        return requests_needed(self.percentile, self.confidence)

    def describe(self) -> dict[str, Json]:
        return {
            "slo_ms": dict(self.slo), "percentile": self.percentile, "confidence": self.confidence,
            "start": self.start, "lowest": self.lowest, "highest": self.highest, "tolerance": self.tolerance,
            "requests_per_rate_at_least": self.fewest,
            "requests_per_rate_at_most": self.most_requests or 8 * self.fewest,
        }  # fmt: skip


@dataclass(kw_only=True)
class Load:
    """One load of the search."""

    rate: float
    """Asked for, requests per second."""
    requests: int
    """Scheduled in the window."""
    seconds: float | None
    achieved: float | None
    goodput: float | None
    within: Mapping[str, int]
    beyond: Mapping[str, int]
    failures: int
    growing: bool = False
    """The number in flight grew over the window: the server did not keep up."""
    late: bool = False
    """Requests were written late (gate `send_lag`): with the limits judged from the due instant it errs low."""
    spoiled: Sequence[str] = ()
    """Gates of the client that failed; such a load decided nothing."""
    latencies: Mapping[str, float | None] = field(default_factory=dict)
    """The percentile of each limited latency, ms."""
    window: Mapping[str, Any] = field(default_factory=dict)
    """Of the reduction: its edges, the client's CPU and the tokens of the whole load."""
    lives: float | None = None
    """How many typical requests the window lasts, one after the other."""
    failed: Sequence[Gate] = ()
    """Gates that failed."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found."""

    search: Search
    result: SearchResult
    loads: Sequence[Load]
    evidence: Sequence[Gate] = ()
    """What was seen of the host and the server meanwhile (`measure_search_gates.host_gates`)."""

    @property
    def rate(self) -> float | None:
        """Highest rate at which all limits were shown to be met; None when there was none."""
        return self.result.rate

    def metrics(self) -> list[Metric]:
        """`max_rate_under_slo` with the bracket as its bounds, and the goodput there."""
        result, words = self.result, ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in self.search.slo.items())
        asked = sum(step.requests for step in result.steps)
        said = f"{words} for {100 * self.search.percentile:g} % of requests, shown at {self.search.confidence:.0%}"
        if result.missed_at is None and result.rate is not None:
            said += "; the highest rate that was tried: the limit of the server lies above"
        verdicts = {step.rate: step.verdict for step in result.steps}
        if result.missed_at is not None and verdicts[result.missed_at] != "missed":
            words_at = {"growing": "the queue grew", "undecided": "the requests allowed did not decide it"}
            said += f"; at {result.missed_at:.4g} req/s {words_at[verdicts[result.missed_at]]}"
        if any(load.late and load.rate == result.missed_at for load in self.loads):
            said += f"; at {result.missed_at:.4g} req/s the client sent late, which counted against it"
        best = [load.goodput for load in self.loads if load.rate == result.rate and not load.spoiled]
        return [
            metric(
                "max_rate_under_slo", result.rate, n=asked, low=result.rate, high=result.missed_at,
                note=said if result.rate is not None else f"{result.message} ({said})",
            ),
            metric("goodput", best[-1] if best else None, n=asked, note=f"at the rate that was found: {words}"),
        ]  # fmt: skip

    def gates(self) -> list[Gate]:
        """What the answer stands on; see `measure_search_gates`."""
        from neuronbench.measure_search_gates import search_gates

        return [*search_gates(self), *self.evidence]

    def rows(self) -> list[dict[str, Json]]:
        """A row per rate, in the order of the search."""
        found = []
        for step in self.result.steps:
            loads = [load for load in self.loads if load.rate == step.rate and not load.spoiled]
            last = loads[-1] if loads else None
            found.append(
                {
                    "rate": step.rate,
                    "verdict": step.verdict,
                    "requests": step.requests,
                    "achieved_rate": last.achieved if last else None,
                    "goodput": last.goodput if last else None,
                    "failures": sum(load.failures for load in loads),
                    "within": dict(step.counts.within),
                    "beyond": dict(step.counts.beyond),
                    "latencies_ms": dict(last.latencies) if last else {},
                }
            )
        return found

    def to_json(self) -> dict[str, Json]:
        return {
            **self.search.describe(), "rate": self.result.rate, "missed_at": self.result.missed_at,
            "message": self.result.message, "steps": self.rows(),
        }  # fmt: skip


def find(
    search: Search,
    endpoint: Endpoint,
    workload: Any,
    *,
    api: str,
    folder: Path,
    spawn: Callable[..., Any],
    progress: Progress,
    deadline_s: float,
    timeouts: Timeouts,
    seed: int = 0,
    processes: int = 1,
    ca_file: Path | None = None,
) -> Found:
    """Search; scratch files go to `folder` and away again. `deadline_s` is of one load.

    Raises `PointFailure` when a load has no result (server gone, deadline) or the client spoiled it again and again.
    """
    from neuronbench.load.arrivals import poisson
    from neuronbench.load.plan import make_plan
    from neuronbench.load.run import drive, reduce_run
    from neuronbench.load.search import Counts, highest_rate

    loads: list[Load] = []

    def once(rate: float, requests: int) -> Load:
        scratch = folder / f".search-{len(loads)}"
        seconds = max(expected(requests) / rate, LEAST_SECONDS)
        plan = make_plan(
            scratch / "plan", arrivals=poisson(rate, duration_s=seconds, lead_s=search.lead_s), workload=workload,
            api=api, base_url=endpoint.base_url, model=endpoint.model, vocabulary=endpoint.vocabulary,
            api_key=endpoint.api_key, seed=seed + SEED_STEP * len(loads), warmup=None,
        )  # fmt: skip
        driven = drive(
            plan, base_url=endpoint.base_url, out=scratch / "out", spawn=spawn,
            progress=lambda text: progress(f"{rate:.4g} req/s: {text}"), deadline_s=deadline_s, timeouts=timeouts,
            api_key=endpoint.api_key, processes=processes, ca_file=ca_file,
        )  # fmt: skip
        limits = {DUE.get(name, name): limit for name, limit in search.slo.items()}
        reduced = reduce_run(plan, scratch / "out", table=scratch / "requests.parquet", slo=limits, drive=driven)
        shutil.rmtree(scratch, ignore_errors=True)
        if driven.status != "ok":
            text = f"the load of {rate:.4g} req/s has no result: {driven.status}: {driven.message}"
            raise PointFailure(
                Failure(kind=f"search_{driven.status}", phase="window", message=text, causal_line=driven.message)
            )
        load = _load(rate, reduced, search)
        loads.append(load)
        return load

    def probe(rate: float, requests: int) -> Counts:
        for _ in range(1 + search.retries):
            load = once(rate, requests)
            if not load.spoiled:
                return Counts(within=load.within, beyond=load.beyond, growing=load.growing)
            progress(f"{rate:.4g} req/s: spoiled by the client ({', '.join(load.spoiled)}), again")
        text = f"at {rate:.4g} req/s the client itself spoiled the load: {', '.join(loads[-1].spoiled)}"
        remedy = "let nothing else run on this host, or take more --processes; a rate that nobody can send is not found"
        raise PointFailure(
            Failure(kind="client_spoiled", phase="window", message=text, causal_line=text, remedy=remedy)
        )

    result = highest_rate(
        probe,
        start=search.start,
        lowest=search.lowest,
        highest=search.highest,
        percentile=search.percentile,
        confidence=search.confidence,
        tolerance=search.tolerance,
        most_requests=search.most_requests,
        progress=progress,
    )
    return Found(search=search, result=result, loads=loads)


def expected(requests: int) -> float:
    """Mean number of arrivals of a window that is to bring `requests`: nineteen times in twenty it does.

    A window of just so many on average brings fewer every other time, and of a dozen it may bring half.
    """
    return requests + _SPREADS * math.sqrt(requests) + _SPREADS**2 / 2


def _load(rate: float, reduced: Reduction, search: Search) -> Load:
    values = {found.key: found.value for found in reduced.metrics}
    counts = {name: reduced.slo.get(DUE.get(name, name), (0, 0)) for name in search.slo}
    stat = f"p{100 * search.percentile:g}"
    typical_ms, seconds = values.get("e2e_p50_ms"), reduced.window.get("seconds")
    return Load(
        rate=rate,
        requests=int(reduced.window.get("in_window") or 0),
        seconds=seconds,
        achieved=values.get("achieved_rate_req_s"),
        goodput=values.get("goodput_req_s"),
        within={name: pair[0] for name, pair in counts.items()},
        beyond={name: pair[1] for name, pair in counts.items()},
        failures=sum(reduced.failures.values()),
        growing=any(gate.id == "steady_state" and gate.passed is False for gate in reduced.gates),
        late=any(gate.id == LATE and gate.passed is False for gate in reduced.gates),
        spoiled=spoiled(reduced.gates, kernel_stamped=bool(reduced.window.get("kernel_stamped"))),
        latencies={name: values.get(f"{DUE.get(name, name)}_{stat}_ms") for name in search.slo},
        window=reduced.window,
        lives=1e3 * seconds / typical_ms if seconds and typical_ms else None,
        failed=[gate for gate in reduced.gates if gate.passed is False],
    )


def spoiled(gates: Sequence[Gate], *, kernel_stamped: bool) -> list[str]:
    """Ids of the gates by which the client itself spoiled a load; `kernel_stamped`: its instants are the kernel's."""
    own = OWN if kernel_stamped else (*OWN, READING)
    return [gate.id for gate in gates if gate.id in own and gate.passed is False]


def search_rate(
    session: Session,
    opened: OpenRecord,
    endpoint: Endpoint,
    workload: Any,
    search: Search,
    *,
    telemetry: TelemetryRequest,
    api: str,
    processes: int,
) -> Found:
    """Search and record; see `Measure.search_rate`."""
    from neuronbench.load.run import Timeouts
    from neuronbench.measure_search_gates import host_gates, samplers
    from neuronbench.measure_serving import seed_of
    from neuronbench.telemetry.recorder import Recorder

    record, settings = opened.record, session.settings
    deadlines = settings.deadlines

    record.workload.update(kind="slo_search", api=api, search=search.describe(), epoch=clock_epoch())
    asked = [*telemetry.samplers, *session.plugins.telemetry_samplers(record.point, endpoint)]
    recorder = Recorder.start([*samplers(endpoint), *asked], opened.folder, session.spawn)

    def say(text: str) -> None:
        session.progress(f"{record.point.id}: {recorder.live.after(text)}")

    try:
        found: Found = session.plugins.measuring(
            record.point, endpoint, record,
            lambda: find(
                search, endpoint, workload, api=api, folder=opened.folder, spawn=session.spawn, progress=say,
                deadline_s=deadlines.point, seed=seed_of(record), processes=processes,
                timeouts=Timeouts(first_token_s=deadlines.first_token, total_s=deadlines.request),
            ),
        )  # fmt: skip
    finally:
        sampled = telemetry.result = recorder.stop()
        if sampled.table is not None:
            record.tables["telemetry"] = sampled.table.name
        if sampled.problem:
            record.notes.append(f"telemetry: {sampled.problem}")
    found = replace(found, evidence=host_gates(found, sampled))
    record.workload["search"] = found.to_json()
    record.add(*found.metrics())
    record.gate(*found.gates())
    write(found, opened.folder / TABLE)
    record.tables["search"] = TABLE
    return found


def write(found: Found, path: Path) -> None:
    """Every load as a row of a Parquet table, spoiled ones too."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    rows: list[dict[str, Any]] = []
    for number, load in enumerate(found.loads, 1):
        row: dict[str, Any] = {
            "load": number, "rate_req_s": load.rate, "requests": load.requests, "window_s": load.seconds,
            "achieved_req_s": load.achieved, "goodput_req_s": load.goodput, "failures": load.failures,
            "growing": load.growing, "late": load.late, "spoiled": ", ".join(load.spoiled),
        }  # fmt: skip
        for name in found.search.slo:
            row |= {f"{name}_within": load.within[name], f"{name}_beyond": load.beyond[name]}
        rows.append(row)
    parquet.write_table(arrow.Table.from_pylist(rows), path, compression="zstd")
