"""What came of one load, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import neuronbench
from neuronbench.engines.job import Job
from neuronbench.model import Gate, Json, Metric, Provenance, Validity, jsonable, unit_slug, verdict_of

SCHEMA_VERSION = 1

_STATS = ("p50", "p90", "p99", "mean", "max")


@dataclass(kw_only=True)
class Result:
    """Everything that is known of one load."""

    job: Job
    engine: Mapping[str, Json]
    """`name`, `version`; of another engine also how it was run."""
    status: str
    """`ok`, or what became of it."""
    message: str = ""
    provenance: Provenance = Provenance.MEASURED
    metrics: Sequence[Metric] = ()
    gates: Sequence[Gate] = ()
    scheduled: int | None = None
    """Requests of the window."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed requests by class."""
    slo_tests: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """By limit: how many requests kept it, and what that shows (see `measure_serving.slo_tests`)."""
    examples: Sequence[Mapping[str, Json]] = ()
    client_error: Mapping[str, Json] = field(default_factory=dict)
    workload: Mapping[str, Json] = field(default_factory=dict)
    window: Mapping[str, Json] = field(default_factory=dict)
    target: Mapping[str, Json] = field(default_factory=dict)
    environment: Mapping[str, Json] = field(default_factory=dict)
    own_metrics: Mapping[str, Json] = field(default_factory=dict)
    """Another engine's figures under its own names, those of other definitions among them."""
    files: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    started_at: str = ""
    duration_s: float | None = None

    @property
    def measured(self) -> bool:
        """Whether there is a result at all."""
        return self.status == "ok" and any(metric.value is not None for metric in self.metrics)

    @property
    def validity(self) -> Validity:
        """Worst verdict of the gates, as in a record."""
        return verdict_of(self.gates)

    def to_json(self) -> dict[str, Json]:
        document: dict[str, Json] = {
            "schema_version": SCHEMA_VERSION,
            "neuronbench": neuronbench.__version__,
            "engine": dict(self.engine),
            "provenance": self.provenance.value,
            "status": self.status,
            "message": self.message,
            "validity": self.validity.value,
            "started_at": self.started_at,
            "duration_s": self.duration_s,
            "asked": self.job.to_json(),
            "target": dict(self.target),
            "metrics": nested(self.metrics),
            "requests": {
                "scheduled": self.scheduled,
                "failed": sum(self.failures.values()),
                "failures": dict(self.failures),
            },
            "slo_tests": {name: dict(test) for name, test in self.slo_tests.items()},
            "failure_examples": list(self.examples),
            "gates": list(self.gates),
            "client_error": dict(self.client_error),
            "window": dict(self.window),
            "workload": dict(self.workload),
            "environment": dict(self.environment),
            "metric_records": {metric.key: metric.to_json() for metric in self.metrics},
            "own_metrics": dict(self.own_metrics),
            "files": list(self.files),
            "notes": list(self.notes),
        }
        plain: dict[str, Json] = jsonable(document)
        return plain


def nested(metrics: Sequence[Metric]) -> dict[str, Json]:
    """`{"ttft_ms": {"p50": 51.2, "mean": 52.0, "n": 640, "definition": "ttft@1"}, "achieved_rate_req_s": 9.98}`.

    A metric with statistics is a mapping, a single number is itself. Missing is null; `metric_records` says why.
    """
    single: dict[str, Json] = {}
    grouped: dict[str, dict[str, Json]] = {}
    for metric in metrics:
        name = "_".join(part for part in (metric.id, unit_slug(metric.unit)) if part)
        if not metric.stat:
            single[name] = metric.value
            continue
        group = grouped.setdefault(name, {"n": 0, "definition": metric.definition})
        group[metric.stat] = metric.value
        if not metric.stat.startswith("ok_"):
            group["n"] = max(group["n"], metric.n)
    for name in single.keys() & grouped.keys():
        grouped[name]["value"] = single.pop(name)
    for group in grouped.values():
        if not group["n"]:
            group["n"] = max((m.n for m in metrics if m.definition == group["definition"]), default=0)
    return {**grouped, **single}


def latency_rows(metrics: Sequence[Metric]) -> list[tuple[str, ...]]:
    """Rows of name, p50, p90, p99, mean, max, n: of the metrics that have a median."""
    from neuronbench.report.tables import SHORT, number

    by_key = {(metric.id, metric.stat): metric for metric in metrics}
    rows = []
    for metric in metrics:
        if metric.stat != "p50":
            continue
        cells = [number(by_key.get((metric.id, stat))) for stat in _STATS]
        name = SHORT.get(metric.id, metric.id.replace("_", " ").replace("ttft", "TTFT").replace("e2e", "E2E"))
        rows.append((f"{name} {metric.unit}", *cells, str(metric.n)))
    return rows


def single_rows(metrics: Sequence[Metric]) -> list[tuple[str, str, str]]:
    """Rows of name, value with unit, remark: of the metrics that are one number or a mean without a median."""
    from neuronbench.report.tables import number

    with_median = {metric.id for metric in metrics if metric.stat == "p50"}
    rows = []
    for metric in metrics:
        if metric.id in with_median or metric.stat.startswith("ok_"):
            continue
        name = " ".join(part for part in (metric.id.replace("_", " "), metric.stat) if part)
        value = number(metric)
        unit = "" if metric.unit == "share" or metric.value is None else f" {metric.unit}"
        bounds = "" if None in (metric.low, metric.high) else f"{metric.low:.4g} to {metric.high:.4g}"
        rows.append((name, value + unit, "; ".join(filter(None, (bounds, metric.note)))))
    return rows


def slo_rows(tests: Mapping[str, Mapping[str, Json]]) -> list[tuple[str, ...]]:
    """Rows of limit, counts, share, verdict, and what an undecided one needs."""
    rows: list[tuple[str, ...]] = []
    for name, test in tests.items():
        total = test["within"] + test["beyond"]
        share = f"{test['within'] / total:.2%}" if total else "–"
        asked = f"{name} ≤ {test['limit_ms']:g} ms for {100 * test['percentile']:g} %"
        more = "" if test["verdict"] != "undecided" else f"{test['more']} more within it would show it"
        rows.append((asked, f"{test['within']} of {total}", share, str(test["verdict"]), more))
    return rows


def node_rows(window: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """Rows of the nodes that a load came from: its share, how late it was, how its clock was told; none for one host.

    The offset is what was added to the node's clock; how far the clocks may be apart stands beside it, in ms.
    """

    def ms(value: Json, sign: str = "") -> str:
        return "–" if value is None else f"{value / 1e6:{sign}.3f}"

    rows: list[tuple[str, ...]] = []
    for node in window.get("nodes", ()):
        lag, clock = node["send_lag_ms"], node["clock"]
        rows.append(
            (
                str(node["name"]), str(node["requests"]), str(node["failed"]), _lag(lag["p50"]), _lag(lag["p99"]),
                "–" if node["cpu_pct"] is None else f"{node['cpu_pct']:.0f}", ms(clock["offset_ns"], "+"),
                ms(clock["bound_ns"]), ms(clock["drift_ns"], "+"), "LOST" if node["lost"] else "",
            )
        )  # fmt: skip
    return rows


def _lag(value: Json) -> str:
    return "–" if value is None else f"{value:.2f}"


def gate_rows(gates: Sequence[Gate], *, everything: bool = False) -> list[tuple[str, ...]]:
    """Rows of verdict, gate, observed, limit, message; those that passed only with `everything`."""
    rows: list[tuple[str, ...]] = []
    for gate in gates:
        if gate.passed and not everything:
            continue
        verdict = {
            True: "ok",
            None: "unknown",
            False: gate.severity.upper() if gate.severity == "invalid" else "failed",
        }
        rows.append((verdict[gate.passed], gate.id, _value(gate.observed), _value(gate.limit), gate.message))
    return rows


def _value(value: Json) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
