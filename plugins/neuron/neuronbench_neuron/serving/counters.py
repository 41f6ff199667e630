"""The server's own series (`vllm:*`, `vllm_neuron:*`) out of the telemetry of a window, by bucket.

What a server does not report, or was not seen to report on both sides of the window, is None: never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from neuronbench.telemetry.names import METRICS
from neuronbench.telemetry.table import Telemetry
from neuronbench_neuron.serving.buckets import named

SEQS: Final = "vllm_neuron:num_seqs_padding"
TOKENS: Final = "vllm_neuron:num_batched_tokens_padding"
EXECUTIONS: Final = "vllm_neuron:neff_execution_count"
COMPILED: Final = "vllm_neuron:compilation_time_seconds"
RUNNING: Final = "vllm:num_requests_running"
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What a histogram of padding says of a window: by bucket, how many steps ran in it and what was padded."""

    steps: Mapping[int, float] = field(default_factory=dict)
    """Edge → steps."""
    padded: float = 0.0
    """Tokens, or sequences, that were padding."""

    @property
    def computed(self) -> float:
        """Tokens, or sequences, that were computed."""
        return sum(edge * count for edge, count in self.steps.items())

    @property
    def useful(self) -> float:
        return self.computed - self.padded


class Counters:
    """Deltas of a window's counters; of the whole recording where no window is given."""

    def __init__(self, telemetry: Telemetry, start_ns: int | None = None, end_ns: int | None = None) -> None:
        self._telemetry, self._start, self._end = telemetry, start_ns, end_ns

    def series(self, name: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Series of a metric (with or without `_total`) and their labels."""
        for series in self._telemetry.series():
            sampler, _, rest = series.partition("/")
            found, _, labels = rest.partition("{")
            if sampler == METRICS and found in (name, f"{name}_total"):
                yield series, dict(_LABEL.findall(labels))

    def delta(self, name: str, bucket: str | None = None) -> float | None:
        """How far a counter went, over all its labels; None where that is not known."""
        found = [
            series for series, labels in self.series(name) if bucket is None or labels.get("bucket_name") == bucket
        ]
        deltas = [self._delta(series) for series in found]
        return None if not deltas or None in deltas else sum(value for value in deltas if value is not None)

    def _delta(self, series: str) -> float | None:
        """Of one series. One that appears in the middle of a recording began at 0: its bucket was not used before."""
        found = self._telemetry.get(series)
        if self._start is None or self._end is None:
            delta = self._telemetry.first_last_delta(series)
        else:
            delta = self._telemetry.counter_delta(series, self._start, self._end)
        if delta.value is not None or not found.mono_ns:
            return delta.value
        since = self._telemetry.since(METRICS)
        appeared = since is not None and found.mono_ns[0] > since
        rising = all(later >= earlier for earlier, later in zip(found.values, found.values[1:], strict=False))
        if not (appeared and rising):
            return None
        end = found.mono_ns[-1] if self._end is None else self._end
        start = since if self._start is None else self._start
        if start is None or found.mono_ns[0] <= start:
            return None
        before = [value for at, value in zip(found.mono_ns, found.values, strict=True) if at <= end]
        return before[-1] if before else 0.0

    def names(self) -> list[str]:
        """Names of buckets that any of the server's series carries."""
        told = {
            labels["bucket_name"]
            for name in (SEQS + "_count", TOKENS + "_count", EXECUTIONS, COMPILED)
            for _, labels in self.series(name)
            if labels.get("bucket_name")
        }
        return sorted(told)

    def padding(self, name: str, phase: str) -> Padding | None:
        """What histogram `name` says of the buckets of a phase; None where it says nothing, or not all."""
        steps: dict[int, float] = {}
        padded = 0.0
        for bucket in sorted({labels.get("bucket_name", "") for _, labels in self.series(f"{name}_count")}):
            told = named(bucket)
            if told is None or told[0] != phase:
                continue
            count, total = self.delta(f"{name}_count", bucket), self.delta(f"{name}_sum", bucket)
            if count is None or total is None:
                return None
            steps[told[1]] = steps.get(told[1], 0.0) + count
            padded += total
        found = Padding(steps=steps, padded=padded)
        return found if found.computed > 0 and 0 <= found.padded <= found.computed else None

    def compiled(self) -> list[str] | None:
        """Buckets whose time of compiling appeared or changed in the window; None where the server does not tell it.

        Up to the first sample after the window's end: what happened since the one before may have been inside.
        """
        if self._start is None or self._end is None:
            return None
        known, changed = False, []
        scrapes = sorted({at for series, _ in self.series(COMPILED) for at in self._telemetry.get(series).mono_ns})
        until = next((at for at in scrapes if at >= self._end), self._end)
        since = self._telemetry.since(METRICS)
        seen_before = since is not None and since <= self._start
        for series, labels in self.series(COMPILED):
            known = True
            found = self._telemetry.get(series)
            inside = [v for at, v in zip(found.mono_ns, found.values, strict=True) if self._start < at <= until]
            before = [v for at, v in zip(found.mono_ns, found.values, strict=True) if at <= self._start]
            if inside and ((before and inside[-1] != before[-1]) or (not before and seen_before)):
                changed.append(labels.get("bucket_name", "?"))
        return sorted(changed) if known else None

    def running(self) -> list[float]:
        """Samples of the requests that run, of all engines together, inside the window."""
        if self._start is None or self._end is None:
            return []
        window = self._telemetry.window(self._start, self._end)
        columns = [window.values(series) for series, _ in self.series(RUNNING)]
        return [sum(row) for row in zip(*columns, strict=False)] if columns else []
