"""guidellm 0.1's report, which optimum-neuron's published runs are of: single requests instead of statistics.

Its clock starts before the request is sent by the client library; `decode_times` are the gaps between chunks. It counts
tokens with a tokenizer of its own, so that a time per output token has none of our definitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronbench.definitions import metric
from neuronbench.engines.base import WHOLE_RUN, Column, Reading, mapped, number
from neuronbench.importers.base import mapping, text
from neuronbench.model import Json
from neuronbench.stats import needed, percentile


def is_first(data: Mapping[str, Any]) -> bool:
    """Whether a report is of that version: its benchmarks hold benchmarks."""
    found = data.get("benchmarks")
    return isinstance(found, list) and bool(found) and isinstance(found[0], Mapping) and "benchmarks" in found[0]


def benchmarks(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Each of its runs: one user, a rate, or as much as it takes."""
    return [mapping(each, "a benchmark") for outer in data["benchmarks"] for each in outer["benchmarks"]]


def parse(benchmark: Mapping[str, Any]) -> Reading:
    """What the requests of one run say."""
    results = [mapping(each, "a result") for each in benchmark["results"]]
    errors = list(benchmark.get("errors") or ())
    first = _sorted([number(each.get("first_token_time")) for each in results])
    times = [mapping(each.get("decode_times") or {}, "decode_times").get("data") or () for each in results]
    gaps = _sorted([number(gap) for each in times for gap in each])
    columns = [
        Column(id="ttft", values=_stats(first), n=len(first), note="on the wall clock, around the client library"),
        Column(id="icl", values=_stats(gaps), n=len(gaps), note="called decode times there: gaps between chunks"),
    ]
    absent = {
        "tpot": "tokens are counted with the tool's own tokenizer",
        "e2e": "to the end of the body",
        "output_throughput": WHOLE_RUN,
        "request_throughput": WHOLE_RUN,
    }
    lengths = []
    for id_, theirs in (("input_tokens", "prompt_token_count"), ("output_tokens", "output_token_count")):
        counts = [count for each in results if (count := number(each.get(theirs))) is not None]
        mean = sum(counts) / len(counts) if counts else None
        lengths.append(metric(id_, mean, stat="mean", n=len(counts), note="by the tool's own tokenizer"))
    return Reading(
        metrics=mapped(columns, failed=len(errors), succeeded=len(results), absent=absent, extra=lengths),
        own=_own(results),
        succeeded=len(results),
        failed=len(errors),
        errors=[text(mapping(each, "an error").get("message") or each, 300) for each in errors[:5]],
    )


def _sorted(values: Sequence[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)


def _stats(seconds: Sequence[float]) -> dict[str, float | None]:
    """In milliseconds, percentiles by nearest rank; None where there are too few requests for one."""
    ranks = {f"p{100 * p:g}": percentile(seconds, p) if len(seconds) >= needed(p) else None for p in (0.5, 0.9, 0.99)}
    made = {**ranks, "mean": sum(seconds) / len(seconds), "max": seconds[-1]} if seconds else {}
    return {name: None if value is None else 1e3 * value for name, value in made.items()}


def _own(results: Sequence[Mapping[str, Any]]) -> dict[str, Json]:
    """Over the whole run, as its own table has them."""
    starts = _sorted([number(each.get("start_time")) for each in results])
    ends = _sorted([number(each.get("end_time")) for each in results])
    wall = ends[-1] - starts[0] if starts and ends else 0.0
    tokens = sum(number(each.get("output_token_count")) or 0.0 for each in results)
    if wall <= 0:
        return {}
    return {"requests_per_second": len(results) / wall, "output_token_throughput": tokens / wall}
