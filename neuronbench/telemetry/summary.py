"""Metrics of a server from telemetry: its processes, its own counters, and whether there was telemetry at all.

Counters are those of vLLM, in the names of its versions. What a server does not report is None with a note, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from neuronbench.definitions import metric
from neuronbench.model import Gate, Metric
from neuronbench.telemetry.names import METRICS, OWN, SERVER
from neuronbench.telemetry.table import Delta, Telemetry

_MIB: Final = 1 << 20

# Metric names without labels, newest first; a counter may also carry `_total`.
_QUEUE: Final = ("vllm:request_queue_time_seconds",)
_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_HITS: Final = ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits")
_QUERIES: Final = ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
_DRAFTS: Final = ("vllm:spec_decode_num_drafts",)
_DRAFTED: Final = ("vllm:spec_decode_num_draft_tokens",)
_ACCEPTED: Final = ("vllm:spec_decode_num_accepted_tokens",)
_ACCEPTED_AT: Final = ("vllm:spec_decode_num_accepted_tokens_per_pos",)
_PROMPT: Final = ("vllm:prompt_tokens",)
_GENERATION: Final = ("vllm:generation_tokens",)
_PREEMPTIONS: Final = ("vllm:num_preemptions",)

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def server_metrics(telemetry: Telemetry, start_ns: int, end_ns: int) -> list[Metric]:
    """CPU and memory of the server's process tree in a window."""
    window = telemetry.window(start_ns, end_ns)
    cpu, rss = f"{SERVER}/cpu_percent", f"{SERVER}/rss_bytes"
    peak = window.max(rss)
    why = "no sample of the server's processes inside the window"
    if telemetry.since(SERVER) is None:
        why = "the server's processes were not sampled (a server on another machine, or telemetry failed)"
    return [
        metric("server_cpu", value, stat=stat, n=window.n(cpu), note="" if value is not None else why)
        for stat, value in (("mean", window.mean(cpu)), ("p95", window.p95(cpu)))
    ] + [
        metric(
            "server_rss",
            None if peak is None else peak / _MIB,
            stat="max",
            n=window.n(rss),
            note="" if peak is not None else why,
        )
    ]


def serving_counters(telemetry: Telemetry, start_ns: int, end_ns: int) -> list[Metric]:
    """What the server's own counters say of a window.

    `queue_time` (mean), `kv_usage` (mean), `prefix_hit_rate`; `acceptance_rate`, the same per draft position (stat
    `pos0`, ...: accepted at that position / drafts) and `accepted_per_step` only for a server that reports speculative
    decoding. All engines of a server are taken together.
    """
    counters = _Counters(telemetry, start_ns, end_ns)
    waited_s, left = counters.delta(_QUEUE, "_sum"), counters.delta(_QUEUE, "_count")
    metrics = [
        counters.ratio("queue_time", waited_s, left, stat="mean", scale=1e3, of="request left the queue"),
        counters.mean("kv_usage", _KV_USAGE),
        counters.ratio("prefix_hit_rate", counters.delta(_HITS), counters.delta(_QUERIES), of="token was looked up"),
    ]
    if counters.has(_DRAFTS):
        drafts, accepted = counters.delta(_DRAFTS), counters.delta(_ACCEPTED)
        metrics.append(counters.ratio("acceptance_rate", accepted, counters.delta(_DRAFTED), of="token was drafted"))
        metrics.append(counters.ratio("accepted_per_step", accepted, drafts, of="draft was verified"))
        for position in counters.positions():
            delta = counters.delta(_ACCEPTED_AT, labels={"position": position})
            stat = f"pos{position}"
            metrics.append(counters.ratio("acceptance_rate", delta, drafts, stat=stat, of="draft was verified"))
    return metrics


@dataclass(frozen=True, kw_only=True)
class TokenTotals:
    """The server's own count over the whole recording, warm-up and drain included: for token conservation."""

    prompt_tokens: int | None
    generation_tokens: int | None
    preemptions: int | None
    notes: tuple[str, ...] = ()
    """Why a count is None."""


def token_totals(telemetry: Telemetry) -> TokenTotals:
    """Tokens the server counted between the first and the last sample of the recording."""
    counters = _Counters(telemetry)
    values: dict[str, int | None] = {}
    notes = []
    for name, names in (("prompt_tokens", _PROMPT), ("generation_tokens", _GENERATION), ("preemptions", _PREEMPTIONS)):
        delta = counters.delta(names)
        values[name] = None if delta.value is None else round(delta.value)
        if delta.value is None:
            notes.append(f"{name}: {delta.note}")
    return TokenTotals(**values, notes=tuple(notes))


def telemetry_gate(telemetry: Telemetry, start_ns: int, end_ns: int, min_samples: int = 3) -> Gate:
    """Without telemetry inside the window there is no headline: a failure makes the record provisional.

    Observed is the smallest number of samples inside the window over the samplers that ever gave a value: one that
    stopped (a process killed, an endpoint that hangs) counts, one for something the server does not have does not.
    """
    counts: dict[str, int] = {}
    for name in telemetry.series():
        sampler = name.partition("/")[0]
        if sampler != OWN:
            counts[sampler] = max(counts.get(sampler, 0), telemetry.window(start_ns, end_ns).n(name))
    observed = min(counts.values(), default=0)
    passed = observed >= min_samples
    message = ""
    if not passed:
        each = ", ".join(f"{sampler} {count}" for sampler, count in sorted(counts.items())) or "no sampler gave any"
        message = f"samples inside the window: {each}" + (f"; {telemetry.problem}" if telemetry.problem else "")
    return Gate(
        id="telemetry",
        passed=passed,
        observed=observed,
        limit=min_samples,
        unit="samples",
        severity="provisional",
        message=message,
    )


class _Counters:
    """The server's series by the name of the metric: labels (engines) are summed over."""

    def __init__(self, telemetry: Telemetry, start_ns: int | None = None, end_ns: int | None = None) -> None:
        self.telemetry, self.start_ns, self.end_ns = telemetry, start_ns, end_ns
        self.by_name: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
        for series in telemetry.series():
            sampler, _, name = series.partition("/")
            if sampler == METRICS:
                name, _, labels = name.partition("{")
                self.by_name.setdefault(name, []).append((series, dict(_LABEL.findall(labels))))

    def find(self, names: tuple[str, ...], suffix: str = "") -> list[tuple[str, Mapping[str, str]]]:
        for name in names:
            for spelling in (f"{name}{suffix}", f"{name}{suffix}_total"):
                if spelling in self.by_name:
                    return self.by_name[spelling]
        return []

    def has(self, names: tuple[str, ...]) -> bool:
        return bool(self.find(names))

    def positions(self) -> list[str]:
        found = {labels.get("position", "") for _, labels in self.find(_ACCEPTED_AT)}
        return sorted((position for position in found if position.isdecimal()), key=int)

    def delta(self, names: tuple[str, ...], suffix: str = "", labels: Mapping[str, str] | None = None) -> Delta:
        total: float = 0.0
        found = [
            series
            for series, given in self.find(names, suffix)
            if labels is None or all(given.get(key) == value for key, value in labels.items())
        ]
        if not found:
            return Delta(value=None, note=f"the server does not report {names[0]}{suffix}")
        for series in found:
            if self.start_ns is None or self.end_ns is None:
                one = self.telemetry.first_last_delta(series)
            else:
                one = self.telemetry.counter_delta(series, self.start_ns, self.end_ns)
            if one.value is None:
                return Delta(value=None, note=f"{series.partition('/')[2]}: {one.note}")
            total += one.value
        return Delta(value=total, start_off_ns=one.start_off_ns, end_off_ns=one.end_off_ns)

    def ratio(self, id: str, top: Delta, bottom: Delta, *, of: str, stat: str = "", scale: float = 1.0) -> Metric:
        """top / bottom of the window; n is the denominator."""
        if top.value is None or bottom.value is None:
            return metric(id, None, stat=stat, note=top.note or bottom.note)
        if bottom.value <= 0:
            return metric(id, None, stat=stat, note=f"no {of} inside the window")
        edges = f"counters read {_instant(bottom.start_off_ns, 'start')} and {_instant(bottom.end_off_ns, 'end')}"
        return metric(id, scale * top.value / bottom.value, stat=stat, n=round(bottom.value), note=edges)

    def mean(self, id: str, names: tuple[str, ...]) -> Metric:
        """Mean of a gauge over the window's samples, and over engines."""
        assert self.start_ns is not None
        assert self.end_ns is not None
        found = self.find(names)
        if not found:
            return metric(id, None, stat="mean", note=f"the server does not report {names[0]}")
        window = self.telemetry.window(self.start_ns, self.end_ns)
        values = [value for series, _ in found for value in window.values(series)]
        if not values:
            return metric(id, None, stat="mean", note="no sample of it inside the window")
        return metric(id, sum(values) / len(values), stat="mean", n=len(values))


def _instant(off_ns: int, edge: str) -> str:
    return f"{abs(off_ns) / 1e9:.2f} s {'before' if off_ns < 0 else 'after'} its {edge}"
