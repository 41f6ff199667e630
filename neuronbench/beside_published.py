"""What a finished record says of published figures and of random weights."""

from __future__ import annotations

from typing import Final

from neuronbench.catalog import published
from neuronbench.definitions import metric
from neuronbench.model import Metric, Provenance, Record

RANDOM: Final = "random weights"


def add(record: Record) -> list[Metric]:
    """Attach the published row with the point's parameters, if there is one; the ratios to it as metrics."""
    if record.kind != "point":
        return []
    weights = str(record.resource.facts.get("weights") or "") if record.resource else ""
    if weights.startswith("random"):
        seed = weights.partition(" ")[2].strip("()")
        record.notes.append(f"{RANDOM} ({seed}) on the true architecture: speed only, nothing of quality")
    found = published.match(record.point)
    if found is None:
        return []
    record.workload["published"] = found.to_json()
    why = _unlike(record, found)
    if why:
        record.notes.append(f"published {found.edition}: {why}")
    return _ratios(record, found, why)


def _unlike(record: Record, found: published.Published) -> str:
    """Why measured and published figures are not of the same thing; empty when they are."""
    here = record.environment.facts.get("backend.instance_type")
    if here != found.instance_type:
        return f"the figures are of {found.instance_type}, this is {here or record.point.backend}; not compared"
    if record.provenance is not Provenance.MEASURED:
        return f"the numbers here are {record.provenance.value}; not compared"
    here, there = _workers(record), round(found.implied_workers)
    if found.run_mode == "data_parallel" and here is not None and here != there:
        return f"{there} copies were busy there by throughput × P50 / batch, {here} here; not compared"
    return ""


def _workers(record: Record) -> int | None:
    """Model copies that were measured side by side."""
    return max((int(loop["workers"]) for loop in record.workload.get("loops", ())), default=None)


def _ratios(record: Record, found: published.Published, why: str) -> list[Metric]:
    tokens = found.throughput_of == "tokens"
    rate = "total_token_throughput_tok_s" if tokens else "throughput_items_s"
    latency = "latency_per_token" if found.latency_of == "token" else "latency"
    pairs = {
        "throughput": (rate, found.throughput),
        "latency_p50": (f"{latency}_p50_ms", found.latency_p50_ms),
        "latency_p99": (f"{latency}_p99_ms", found.latency_p99_ms),
    }
    made = []
    for stat, (key, figure) in pairs.items():
        measured = record.metrics.get(key)
        if measured is None:
            continue
        shown = f"{key} / {figure:g} ({found.edition}, {found.instance_type}, SDK {found.sdk_version})"
        ratio = None if why or measured.value is None else measured.value / figure
        note = why or shown
        made.append(metric("measured_over_published", ratio, stat=stat, n=measured.n, note=note))
    return made
