"""From the drivers' records to metrics, gates and `requests.parquet`. Nothing here ran while the clock did."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuronbench.definitions import metric
from neuronbench.load import nodes, records
from neuronbench.load.apis import APIS
from neuronbench.load.derive import derive
from neuronbench.load.gates import client_gates, uneven
from neuronbench.load.pool import Pool, max_metric, percentile_metric
from neuronbench.load.table import RequestTable
from neuronbench.load.tally import LATENCIES, Tally
from neuronbench.load.window import Edges, read_edges
from neuronbench.model import Gate, Json, Metric, closest

if TYPE_CHECKING:
    from neuronbench.load.plan import Plan
    from neuronbench.load.run import Drive


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What a drive amounts to."""

    metrics: list[Metric]
    gates: list[Gate]
    failures: dict[str, int]
    """Requests scheduled in the window that failed, by class."""
    window: dict[str, Json]
    """Edges, length, how many requests it holds, how the run went."""
    table: Path
    """`requests.parquet`."""
    slo: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Requests of the window within and beyond each limit; a failure is beyond all of them."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The limits themselves, ms."""
    examples: list[dict[str, Json]] = field(default_factory=list)
    """A few failures of each class in the server's own words."""

    def __getitem__(self, key: str) -> float | None:
        """Value of a metric by its key, such as `ttft_p50_ms`."""
        for found in self.metrics:
            if found.key == key:
                return found.value
        keys = [found.key for found in self.metrics]
        raise KeyError(f"no metric {key!r}{closest(key, keys)}; there are: {', '.join(keys)}")

    def gate(self, id: str) -> Gate:
        for found in self.gates:
            if found.id == id:
                return found
        raise KeyError(f"no gate {id!r}; there are: {', '.join(gate.id for gate in self.gates)}")


def reduce(plan: Plan, out: Path, *, drive: Drive | None, table: Path, slo: Mapping[str, float]) -> Reduction:
    """Reduce the spill in `out`; see `neuronbench.load.run.reduce_run`.

    A run that was cut off is reduced up to the last instant that was noted; its gate `window_complete` fails. One whose
    window never opened has no metrics, but its table all the same.
    """
    for name in slo:
        if name not in LATENCIES:
            raise ValueError(
                f"slo: expected limits for {', '.join(LATENCIES)}, found {name!r}{closest(name, LATENCIES)}"
            )
    edges = read_edges(out)
    opened, closed = edges.opened, edges.end
    asked = {name: plan.column(name) for name in ("input_tokens", "output_tokens", "session")}
    tally = None
    if opened is not None and closed is not None:
        tally = Tally(opened, closed, slo, asked, bool(plan.info["exact_output"]))
    counts = {"requests": 0, "warmup": 0, "in_window": 0}
    by_node = nodes.of(drive)
    table.parent.mkdir(parents=True, exist_ok=True)
    errors = {(failure["worker"], failure["seq"]): failure["text"] for failure in edges.failures}
    with RequestTable(table, opened or edges.ramped or edges.started or 0, asked, errors) as writer:
        for worker in records.read(out):
            for batch in worker.batches():
                derived = derive(batch, opened, closed)
                writer.write(batch, derived)
                counts["requests"] += len(batch.rows)
                counts["warmup"] += int(derived.warmup.sum())
                counts["in_window"] += int(derived.in_window.sum())
                if tally is not None:
                    tally.add(batch, derived)
                if by_node is not None:
                    by_node.add(batch, derived)
    lags = Pool()
    lags.add(records.read_lags(out, edges.lag_slices) / 1e6)
    wrapped = max((int(worker.get("wrapped", 0)) for worker in drive.workers), default=0) if drive else 0
    gates = client_gates(plan, drive, edges, tally, lags, wrapped)
    metrics, window = _metrics(plan, tally, edges, lags), _window(edges, drive, counts, tally)
    if by_node is not None:
        seconds = tally.seconds if tally is not None else None
        gates += by_node.gates(plan, seconds, next((gate for gate in gates if gate.id == "send_lag"), None))
        metrics = by_node.noted(metrics, seconds)
        here = [edges.cpu_of.get(w, 0.0) for node in by_node.nodes if node.same_host for w in node.workers]
        window |= {"nodes": by_node.facts(edges), "client_cpu_pct": round(100 * sum(here), 2)}
    return Reduction(
        metrics=metrics,
        gates=gates,
        failures=dict(tally.failures) if tally else {},
        window=window,
        slo={name: (tally.within[name], tally.scheduled - tally.within[name]) for name in slo} if tally else {},
        limits=dict(slo),
        table=table,
        examples=edges.failures,
    )


def _metrics(plan: Plan, tally: Tally | None, edges: Edges, lags: Pool) -> list[Metric]:
    if tally is None:
        return []
    api = APIS[plan.api]
    found = tally.metrics(streaming=api.streaming, generates=api.generates, unbounded=_unbounded(plan))
    found += [percentile_metric("client_lag", lags, p, independent=False) for p in (0.5, 0.99)]
    found.append(max_metric("client_lag", lags))
    cpu = None if edges.cpu_total is None else 100 * edges.cpu_total
    found.append(metric("client_cpu", cpu, n=0 if cpu is None else 1, note="" if cpu is not None else "not noted"))
    return found


def _unbounded(plan: Plan) -> str:
    """Why rates have no bounds from parts of the window; empty when they may have."""
    return uneven(plan) or ("the turns of a session depend on each other" if plan.info.get("sessions") else "")


def _window(edges: Edges, drive: Drive | None, counts: Mapping[str, int], tally: Tally | None) -> dict[str, Json]:
    opened, closed = edges.opened, edges.end
    utc = None
    if edges.opened_utc_ns is not None:
        moment = datetime.datetime.fromtimestamp(edges.opened_utc_ns / 1e9, tz=datetime.UTC)
        utc = moment.isoformat(timespec="microseconds")
    window: dict[str, Any] = {
        "start_ns": opened,
        "end_ns": closed,
        "seconds": None if opened is None or closed is None else (closed - opened) / 1e9,
        "start_utc": utc,
        "partial": edges.opened is None or edges.closed is None or (drive is not None and drive.status != "ok"),
        "client_cpu_pct": None if edges.cpu_total is None else round(100 * edges.cpu_total, 2),
        **counts,
    }
    if tally is not None:
        window["kernel_stamped"] = tally.kernel_stamped
        window["totals"] = {
            "prompt_tokens": tally.prompted,
            "generation_tokens": tally.generated,
            "uncounted_requests": tally.uncounted,
        }
    if drive is not None:
        window |= {
            "status": drive.status,
            "message": drive.message,
            "processes": len(drive.workers),
            "coalesce_ms": drive.coalesce_ms,
            "driver_rss_bytes": max((int(w["max_rss_bytes"]) for w in drive.workers), default=None),
        }
    return window
