"""From a receipt of the study to a result: what all forms have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from neuronbench import stats
from neuronbench.definitions import metric
from neuronbench.engines.base import number
from neuronbench.importers.base import Imported, instant, plain, text, whole
from neuronbench.importers.study.files import CSV, Place, Samples, read_samples, sibling
from neuronbench.model import Failure, Gate, Json, Metric, RecordKind
from neuronbench.telemetry.summary import telemetry_gate

LIMIT_FIGURES: Final = 400
"""Figures of one receipt that are kept under their own names: the longest has some sixty."""


def result(
    place: Place,
    data: Mapping[str, Any],
    *,
    lane: str,
    params: Mapping[str, Json | None],
    metrics: Sequence[Metric] = (),
    own: Mapping[str, Json] | None = None,
    gates: Sequence[Gate] = (),
    error: Failure | None = None,
    not_run: str = "",
    notes: Sequence[str] = (),
    record: RecordKind = "point",
    samples: Samples | None = None,
    beside: Sequence[Any] = (),
    facts: Mapping[str, Json] | None = None,
) -> Imported:
    """One result. All numbers of `data` are kept under their own names, with `own` in addition to them."""
    figures = dict(list(figures_of(data))[:LIMIT_FIGURES]) | dict(own or {})
    files = list(beside)
    if samples is not None:
        figures |= telemetry_figures(samples)
        table = sibling(place.path, CSV)
        files += [table] if table is not None else []
    return Imported(
        source=place.path,
        name=place.name,
        lane=lane,
        params={key: value for key, value in params.items() if value is not None},
        metrics=list(metrics),
        backend=place.box,
        own=figures,
        gates=list(gates),
        error=error,
        not_run=not_run,
        measured_at=instant(data.get("captured") or data.get("date")),
        facts={**environment(data), **(facts or {})},
        notes=[text(note, 500) for note in notes if note],
        record=record,
        beside=files,
        telemetry=samples.telemetry if samples is not None else None,
    )


def figures_of(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Json]]:
    """Numbers, flags and short words of an object with their dotted names; lists by their length only."""
    for key, value in data.items():
        name = f"{prefix}{text(key, 80)}"
        if isinstance(value, Mapping) and depth < 4:
            yield from figures_of(value, f"{name}.", depth + 1)
        elif isinstance(value, list):
            yield f"{name}.length", len(value)
        else:
            kept = plain(value)
            if kept is not None:
                yield name, kept


def environment(data: Mapping[str, Any]) -> dict[str, Json]:
    """Versions and compiler flags as facts, by the names that comparisons know."""
    facts: dict[str, Json] = {}
    versions, config = data.get("versions"), data.get("config")
    if isinstance(versions, Mapping):
        facts |= {f"stack.{text(name, 80)}": text(value) for name, value in versions.items() if isinstance(value, str)}
    if isinstance(config, Mapping):
        flags, kind = config.get("neuron_cc_flags"), config.get("instance_type")
        cores = whole(config.get("world_size") or config.get("tensor_parallel_size"))
        if cores is not None:
            facts["backend.cores"] = cores
        if isinstance(flags, str):
            facts["env.NEURON_CC_FLAGS"] = text(flags, 500)
        if isinstance(kind, str):
            facts["backend.instance_type"] = text(kind)
    return facts


def samples_of(place: Place) -> Samples | None:
    """The telemetry beside a receipt."""
    table = sibling(place.path, CSV)
    return None if table is None else read_samples(table)


def telemetry_figures(samples: Samples) -> dict[str, Json]:
    """What the study makes of a telemetry table, under names of its own."""
    found = {
        "samples": len(samples.times_s),
        "period_s": samples.period_s,
        "busy_window_util_pct": samples.busy_pct(),
        "samples_at_90_pct": samples.busy_samples(),
        "peak_device_mem_mib": samples.highest("mem_used_mib"),
        "peak_host_mem_mib": samples.highest("host_mem_used_mib"),
    }
    return {f"telemetry.{name}": value for name, value in found.items() if value is not None}


def telemetry_gates(samples: Samples | None) -> list[Gate]:
    """Whether there was any telemetry; nothing where the lane had none."""
    if samples is None:
        return []
    if not samples.cores or not any(samples.telemetry.get(f"study/{core}").values for core in samples.cores):
        message = "no sample of the utilisation has a value"
        gate = Gate(id="telemetry", passed=False, observed=0, limit=3, unit="samples", severity="provisional")
        return [Gate(**{**vars(gate), "message": message})]
    return [telemetry_gate(samples.telemetry, *samples.span_ns)]


def number_of(data: Mapping[str, Any], key: str) -> float | None:
    return number(data.get(key))


def null(why: str, *ids: str, stat: str = "") -> list[Metric]:
    """Metrics that the receipt has nothing of our definition for."""
    return [metric(id_, None, stat=stat, note=why) for id_ in ids]


def enough(found: Sequence[Metric]) -> list[Metric]:
    """The metrics, with percentiles of too few observations as null and the number that they need."""
    made = []
    for one in found:
        share = _PERCENTILES.get(one.stat.removeprefix("ok_"))
        if share is None or one.value is None or one.n >= stats.needed(share):
            made.append(one)
            continue
        note = f"{one.stat.removeprefix('ok_')} needs {stats.needed(share)} observations, found {one.n}"
        made.append(metric(one.id, None, stat=one.stat, n=one.n, note=note))
    return made


def few_gate(n: int, what: str, share: float = 0.99) -> Gate:
    """Whether there are observations enough for the highest percentile that the study prints."""
    needs = stats.needed(share)
    why = (
        f"p{100 * share:g} needs {needs} requests, found {n}: null (theirs is the largest of them, or between the two)"
    )
    return Gate(
        id="samples",
        passed=n >= needs,
        observed=n,
        limit=needs,
        unit="requests",
        severity="info",
        message=why if n < needs else what,
    )


_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def as_figures(data: Mapping[str, Any], *names: str) -> dict[str, Json | None]:
    """Those values of `data` that can be parameters, by their names."""
    return {name: plain(data.get(name)) for name in names}
