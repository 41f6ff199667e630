"""What a finished record says of published figures and of random weights.

A ratio is formed on the same type of instance, with the same kind of load, and between figures of one definition. Where
that does not hold the published figure stands in the record all the same, with the reason why there is no ratio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from neuronbench.catalog import published
from neuronbench.catalog.published import Published
from neuronbench.definitions import metric
from neuronbench.model import Json, Metric, Provenance, Record

RANDOM: Final = "random weights"
WHOLE_RUN: Final = "over the whole run, ramp and drain included; ours is over a window of steady load"
_UNITS: Final = {"items": "items/s", "sequences": "seq/s"}
"""Of a rate; tokens otherwise."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A published figure beside what was measured."""

    stat: str
    """`throughput`, `latency_p50`, `ttft_p99`, ..."""
    published: float
    unit: str
    key: str
    """The metric here that has its definition; empty where none has."""
    per: float = 1.0
    """That metric is divided by this: tokens of a sequence, where sequences are counted there."""
    why: str = ""
    """Why there is no ratio."""


def add(record: Record) -> list[Metric]:
    """Attach the published row with the point's parameters, if there is one; the ratios to it as metrics."""
    if record.kind != "point":
        return []
    weights = str(record.resource.facts.get("weights") or "") if record.resource else ""
    if weights.startswith("random"):
        seed = weights.partition(" ")[2].strip("()")
        record.notes.append(f"{RANDOM} ({seed}) on the true architecture: speed only, nothing of quality")
    found = published.match(record.point, _known(record))
    if found is None:
        return []
    why = _unlike(record, found)
    made, told = [], []
    for pair in _pairs(record, found):
        ratio, reason = _ratio(record, pair, why)
        told.append({**asdict(pair), "ratio": ratio, "why": reason})
        measured = record.metrics.get(pair.key)
        if measured is not None:
            of = f"{pair.key}{f' / {pair.per:g}' if pair.per != 1 else ''} / {pair.published:g}"
            shown = reason or f"{of} ({found.edition}, {found.instance_type}, SDK {found.sdk_version or 'not stated'})"
            made.append(metric("measured_over_published", ratio, stat=pair.stat, n=measured.n, note=shown))
    record.workload["published"] = {**published.described(found), "compared": told}
    record.notes += _notes(found, told, why)
    return made


def _known(record: Record) -> dict[str, Json]:
    """What the run and its resource say of parameters that the point may leave open."""
    made: dict[str, Json] = {"instance_type": record.environment.facts.get("backend.instance_type")}
    for told in (record.resource.facts, record.resource.spec) if record.resource else ():
        made |= {name: told[name] for name in _SETTINGS if told.get(name) is not None}
    runs = record.workload.get("training")
    if runs:
        job, shards = runs[0].get("job") or {}, list((runs[0].get("shards") or {}).values())
        if shards and job.get("batch_size") and job.get("accumulation"):  # ranks of one shard share its sequences
            made["global_batch_size"] = job["batch_size"] * job["accumulation"] * shards[0][1]
    return made


_SETTINGS: Final = ("tensor_parallel_size", "tp_degree", "weight_dtype", "quantization", "dtype")


def _ratio(record: Record, pair: Compared, why: str) -> tuple[float | None, str]:
    measured = record.metrics.get(pair.key)
    if why or pair.why:
        return None, why or pair.why
    if measured is None or measured.value is None:
        return None, "not measured here" if measured is None else f"no value here: {measured.note}"
    return measured.value / pair.per / pair.published, ""


# --------------------------------------------------------------------------------------------------------------------
# which of its figures has which definition of ours


def _pairs(record: Record, found: Published) -> Iterator[Compared]:
    odd = {finding.id: finding.text for finding in published.findings(found)}
    if found.throughput is not None:
        yield _rate(record, found, odd)
    names = {"latency": "latency_per_token" if found.latency_of == "token" else "latency"}
    for name in ("latency", "ttft", "tpot"):
        low, high = getattr(found, f"{name}_p50_ms"), getattr(found, f"{name}_p99_ms")
        why = "P50 is above P99 there" if low is not None and high is not None and low > high else ""
        if name == "ttft" and "median_hides_waits" in odd:
            why = odd["median_hides_waits"]
        for stat, figure in (("p50", low), ("p99", high)):
            if figure is not None:
                key = f"{names.get(name, name)}_{stat}_ms"
                yield Compared(stat=f"{name}_{stat}", published=figure, unit="ms", key=key, why=why)
    for theirs, ours in (("time_to_first_token_ms", "ttft"), ("ttft_ms", "ttft"), ("tpot_ms", "tpot"),
                         ("inter_token_latency_ms", "tpot")):  # fmt: skip
        value = found.own.get(theirs)
        if isinstance(value, float):
            why = "whether it is a mean or a median is not said"
            yield Compared(stat=ours, published=value, unit="ms", key=f"{ours}_p50_ms", why=why)


def _rate(record: Record, found: Published, odd: dict[str, str]) -> Compared:
    """Its throughput: of what, over which time, and whether its own figures bear it out."""
    of, figure = found.throughput_of, found.throughput or 0.0
    key, per, why = {
        "items": "throughput_items_s",
        "tokens": "total_token_throughput_tok_s",
        "sequences": "train_throughput_padded_tok_s",
    }.get(of, "output_throughput_tok_s"), 1.0, ""  # fmt: skip
    if of == "sequences":
        per = float(found.sequence_length or 1)
        if found.sequence_length is None:
            why = "the table does not say how long a sequence is"
        elif found.nodes > 1 and "/" in found.instance_type:
            why = f"{found.nodes} nodes of {found.instance_type}: which is not said, and their networks differ"
    elif of == "unstated":
        why = "the source does not say which tokens its throughput counts"
    elif of == "output_tokens":
        why = odd.get("throughput_not_reconciled", "") if not found.tool else f"by {found.tool} {WHOLE_RUN}"
    unit = _UNITS.get(of, "tok/s")
    return Compared(stat="throughput", published=figure, unit=unit, key=key, per=per, why=why)


# --------------------------------------------------------------------------------------------------------------------
# whether the two are of the same thing


def _unlike(record: Record, found: Published) -> str:
    """Why measured and published figures are not of the same thing; empty when they are."""
    here = record.environment.facts.get("backend.instance_type")
    if here not in found.instance_type.split("/"):
        return f"the figures are of {found.instance_type}, this is {here or record.point.backend}; not compared"
    if found.instance_basis != "stated":
        return f"the source does not name the instance type ({found.instance_basis}); not compared"
    if record.provenance is not Provenance.MEASURED:
        return f"the numbers here are {record.provenance.value}; not compared"
    workers, there = _workers(record), found.implied_workers
    if found.run_mode == "data_parallel" and there is not None and workers is not None and workers != round(there):
        return f"{round(there)} copies were busy there by throughput × P50 / batch, {workers} here; not compared"
    return _served_alike(record, found)


def _served_alike(record: Record, found: Published) -> str:
    """Of served models: what both sides must say, and say alike, beside what made the row a match."""
    if record.point.get("concurrency") is None:
        return ""
    settings = _known(record) | {name: value for name, value in record.point.params.items() if value is not None}
    unsaid = [name for name in ("input_tokens", "output_tokens") if getattr(found, name) is None]
    if unsaid:
        return f"the source does not say {' and '.join(unsaid).replace('_', ' ')} of its requests; not compared"
    degree = published.tensor_degree(settings)
    if found.tp_degree is not None and degree != found.tp_degree:
        told = "not said" if degree is None else degree
        return f"spread over {found.tp_degree} cores there (tp_degree), {told} here; not compared"
    stored = settings.get("weight_dtype") or settings.get("quantization") or settings.get("dtype")
    there = found.weight_dtype or found.dtype
    if there and stored and there != stored:
        return f"weights are stored as {there} there, as {stored} here; not compared"
    return ""


def _workers(record: Record) -> int | None:
    """Model copies that were measured side by side."""
    return max((int(loop["workers"]) for loop in record.workload.get("loops", ())), default=None)


# --------------------------------------------------------------------------------------------------------------------
# in words


def _notes(found: Published, told: list[dict[str, Json]], why: str) -> list[str]:
    """What people read in MLflow and in the terminal: the figures, the ratios, why there are none, what is odd."""
    where = f"{found.instance_type}, SDK {found.sdk_version or 'not stated'}, {found.as_of}"
    figures = ", ".join(f"{each['stat']} {each['published']:g} {each['unit']}" for each in told)
    ratios = ", ".join(f"{each['stat']} {each['ratio']:.3f}" for each in told if each["ratio"] is not None)
    lines = [f"published {found.name} ({where}): {figures}" + (f"; measured / published: {ratios}" if ratios else "")]
    reasons: dict[str, list[str]] = {}
    for each in told:
        if each["why"] and each["why"] not in (why, "not measured here"):
            reasons.setdefault(each["why"], []).append(each["stat"])
    if why:
        lines.append(f"published {found.edition}: {why}")
    lines += [f"published {found.edition}: no ratio of {', '.join(stats)}: {text}" for text, stats in reasons.items()]
    lines += [f"published {found.edition}: {finding.text} ({finding.id})" for finding in published.findings(found)]
    return lines
