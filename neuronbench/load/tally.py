"""What is added up over the batches of a run, and the metrics that come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronbench import stats
from neuronbench.definitions import metric
from neuronbench.load.derive import Derived, owners
from neuronbench.load.outcomes import Kind, failure_name
from neuronbench.load.pool import Pool, max_metric, mean_metric, percentile_metric
from neuronbench.load.records import Batch
from neuronbench.load.series import LEAST_PARTS, BinnedSeries, joined, parts
from neuronbench.model import Metric

LATENCIES: Final = ("ttft", "ttft_due", "ttfat", "tpot", "e2e", "e2e_due", "max_stall")
_FULL: Final = ("ttft", "tpot", "e2e")
"""Reported with every statistic; the others with two."""
LIVES_PER_BATCH: Final = 2
MOST_BATCHES: Final = 20
"""Batches for the bounds of a rate: each as long as this many typical requests, or longer."""
_ORDER_SLACK_NS: Final = 50_000
"""Instants of two sources (process and kernel) may cross by this much."""


class Tally:
    """Sums over requests. Latencies: requests scheduled in the window. Throughput: what happened inside it."""

    def __init__(
        self, opened: int, closed: int, slo: Mapping[str, float], asked: Mapping[str, npt.NDArray[Any]], exact: bool
    ):
        self.opened, self.closed, self.slo, self.asked, self.exact = opened, closed, slo, asked, exact
        self.seconds = (closed - opened) / 1e9
        self.pools = {name: Pool() for name in (*LATENCIES, "icl", "send_lag", "tokens_per_chunk", "input", "output")}
        self.failures: Counter[str] = Counter()
        self.scheduled = self.ok = self.good = 0
        self.within: Counter[str] = Counter()
        """Requests of the window within each limit; all others are beyond it."""
        self.series = BinnedSeries(opened, closed)
        self.generated = self.prompted = self.uncounted = 0
        """Tokens of the whole run by the server's usage, warm-up included, and requests it gave none for."""
        self.last_scheduled = self.last_followed = 0
        self.warmups = self.warmups_failed = 0
        self.tokens_inside = 0.0
        self.tokens_unknown = 0
        """Successful requests with chunks inside the window whose tokens nobody counted."""
        self.failed_chunks = 0
        """Chunks inside the window of requests that failed without a count: their tokens are in no figure."""
        self.ended_inside = self.written_inside = 0
        self.busy_ns = 0.0
        self.all_single = True
        self.reasoned = False
        self.wrong_input = self.unknown_input = self.wrong_output = self.unknown_output = 0
        self.disorder = self.unclassified = self.hidden = 0
        self.stamped = self.received = 0

    @property
    def kernel_stamped(self) -> bool:
        """Whether every answer of the window carries the kernel's receive stamps."""
        return self.received > 0 and self.stamped == self.received

    def add(self, batch: Batch, d: Derived) -> None:
        rows = batch.rows
        inside = d.in_window
        kind = rows["kind"]
        self.warmups += int(d.warmup.sum())
        self.warmups_failed += int((d.warmup & d.failed).sum())
        self.scheduled += int(inside.sum())
        self.ok += int((inside & (kind == int(Kind.OK))).sum())
        failed = inside & d.failed
        for pair, count in zip(*np.unique(rows[failed][["kind", "status"]], return_counts=True), strict=True):
            self.failures[failure_name(int(pair["kind"]), int(pair["status"]))] += int(count)
        self.unclassified += int((inside & ((kind == int(Kind.OPEN)) | (kind == int(Kind.ABANDONED)))).sum())
        infinite = int(failed.sum())
        successes = inside & d.ok
        for name in LATENCIES:
            self.pools[name].add(getattr(d, name)[successes])
            self.pools[name].infinite += infinite
        self.series.add_lives(rows["s"][successes], d.e2e[successes])
        self.pools["send_lag"].add(d.send_lag[inside])
        self.pools["tokens_per_chunk"].add(d.tokens_per_chunk[successes])
        counted = rows["n_in"][successes].astype(np.float64)
        self.pools["input"].add(counted[counted >= 0])
        counted = rows["n_out"][successes].astype(np.float64)
        self.pools["output"].add(counted[counted >= 0])
        whole = inside & (kind == int(Kind.OK))
        self.pools["icl"].add(d.gaps[np.repeat(whole, d.gap_counts)])
        self.all_single &= bool(d.single[whole].all())
        self.reasoned |= bool((whole & (rows["c"] != rows["f"])).any())
        self._lengths(rows, whole)
        self._order(rows, whole)
        self._events(batch, d)
        self._totals(rows, inside)
        if self.slo:
            self.good += int(self.meets(rows, d, whole).sum())

    def _lengths(self, rows: Any, whole: Any) -> None:
        wanted = self.asked["input_tokens"][rows["body"]]
        self.unknown_input += int((whole & (rows["n_in"] < 0)).sum())
        self.wrong_input += int((whole & (wanted >= 0) & (rows["n_in"] >= 0) & (rows["n_in"] != wanted)).sum())
        self.unknown_output += int((whole & (rows["n_out"] < 0)).sum())
        self.hidden += int((whole & (rows["n_out"] > rows["chunks"])).sum())

    def _order(self, rows: Any, whole: Any) -> None:
        previous = rows["s"]
        wrong = np.zeros(len(rows), dtype=bool)
        for name in ("w", "r", "f", "l", "e"):
            present = rows[name] != 0
            wrong |= whole & present & (rows[name] < previous - _ORDER_SLACK_NS)
            previous = np.where(present, rows[name], previous)
        self.disorder += int(wrong.sum())
        answered = whole & (rows["r"] != 0)
        self.received += int(answered.sum())
        self.stamped += int((answered & ((rows["flags"] & 1) != 0)).sum())

    def _events(self, batch: Batch, d: Derived) -> None:
        """What happened inside the window, whoever was scheduled when."""
        rows = batch.rows
        load = ~d.warmup
        now = (rows["e"] >= self.opened) & (rows["e"] < self.closed)
        completed = load & now & (rows["kind"] == int(Kind.OK))
        self.ended_inside += int(completed.sum())
        self.series.add_ends(rows["e"][completed])
        self.written_inside += int((load & (rows["w"] >= self.opened) & (rows["w"] < self.closed)).sum())
        sent = load & (rows["w"] != 0)
        end = np.where(rows["e"] != 0, rows["e"], self.closed)
        overlap = np.minimum(end, self.closed) - np.maximum(rows["w"], self.opened)
        self.busy_ns += float(np.maximum(overlap, 0)[sent].sum(dtype=np.float64))
        owner = owners(batch.counts)
        emitted = (batch.times >= self.opened) & (batch.times < self.closed) & load[owner]
        counted = emitted & d.weight_known[owner]
        self.tokens_inside += float(d.weights[counted].sum())
        self.series.add_tokens(batch.times[counted], d.weights[counted])
        self.series.add_intervals(rows["w"][sent], end[sent])
        unknown = np.unique(owner[emitted & ~counted])
        uncounted_ok = d.ok[unknown] & (rows["kind"][unknown] == int(Kind.OK))
        self.tokens_unknown += int(uncounted_ok.sum())
        self.failed_chunks += int((emitted & ~counted).sum()) if not uncounted_ok.any() else 0

    def _totals(self, rows: Any, inside: Any) -> None:
        counted = rows["n_in"] >= 0
        sent = rows["w"] != 0
        self.generated += int(rows["n_out"][rows["n_out"] >= 0].sum(dtype=np.int64))
        self.prompted += int(rows["n_in"][counted].sum(dtype=np.int64))
        self.uncounted += int((sent & ~counted & (rows["status"] != 0)).sum())
        self.last_scheduled = max(self.last_scheduled, int(rows["s"].max(initial=0)))
        self.last_followed = max(self.last_followed, int(rows["e"][inside].max(initial=0)))

    def meets(self, rows: Any, d: Derived, whole: Any) -> Any:
        """Which requests met every limit. An undefined TPOT meets none, unless one token was asked for."""
        good = d.in_window & whole
        one = self.asked["output_tokens"][rows["body"]] == 1
        for name, limit in self.slo.items():
            values = getattr(d, name)
            met = values <= limit  # NaN compares false
            if name in ("tpot", "max_stall"):
                met |= one & np.isnan(values)
            self.within[name] += int((d.in_window & whole & met).sum())
            good &= met
        return good

    # -------------------------------------------------------------------------------------------------------- metrics

    def metrics(self, *, streaming: bool, generates: bool, unbounded: str = "") -> list[Metric]:
        """All of them. `unbounded`: why rates can have no bounds from parts of the window, if so."""
        found: list[Metric] = []
        for name in LATENCIES if streaming else ("e2e", "e2e_due"):
            if name == "ttfat" and not self.reasoned:
                continue
            pool = self.pools[name]
            if name in _FULL:
                found += [percentile_metric(name, pool, p) for p in (0.5, 0.9, 0.99)]
                found += [percentile_metric(name, pool, p, ok=True) for p in (0.5, 0.99)]
                found += [mean_metric(name, pool), mean_metric(name, pool, ok=True), max_metric(name, pool)]
            else:
                found += [percentile_metric(name, pool, p) for p in (0.5, 0.99)]
        if streaming:
            found += self._between()
        found += self._rates(generates, unbounded)
        return found

    def _between(self) -> list[Metric]:
        icl = self.pools["icl"]
        found = [percentile_metric("icl", icl, p, independent=False) for p in (0.5, 0.9, 0.99)]
        found += [mean_metric("icl", icl), mean_metric("tokens_per_chunk", self.pools["tokens_per_chunk"])]
        for p in (0.5, 0.99):
            if self.all_single:
                found.append(percentile_metric("itl", icl, p, independent=False))
            else:
                note = "not every chunk carried exactly one token; see icl and tokens_per_chunk"
                found.append(metric("itl", None, stat=f"p{100 * p:g}", note=note))
        return found

    def _rates(self, generates: bool, unbounded: str) -> list[Metric]:
        seconds = self.seconds
        found = []
        if generates:
            note = ""
            value: float | None = self.tokens_inside / seconds
            if self.tokens_unknown:
                value, note = None, f"the server gave no token count for {self.tokens_unknown} successful requests"
            elif self.failed_chunks:
                note = f"without the tokens of {self.failed_chunks} chunks of requests that failed: nobody counted them"
            found.append(self._rate("output_throughput", value, self.series.tokens, note, unbounded))
            found.append(mean_metric("output_tokens", self.pools["output"]))
        found += [
            mean_metric("input_tokens", self.pools["input"]),
            self._rate(
                "request_throughput", self.ended_inside / seconds, self.series.ended, "successful requests", unbounded
            ),
            metric("achieved_rate", self.written_inside / seconds, n=self.written_inside),
            metric("in_flight", self.busy_ns / 1e9 / seconds, n=self.written_inside),
            metric(
                "error_rate",
                sum(self.failures.values()) / self.scheduled if self.scheduled else None,
                n=self.scheduled,
                note="" if self.scheduled else "no request was scheduled in the window",
            ),
        ]
        if self.slo:
            limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in self.slo.items())
            share = self.good / self.scheduled if self.scheduled else None
            found += [
                metric("goodput", self.good / seconds, n=self.scheduled, note=limits),
                metric("attainment", share, n=self.scheduled, note=limits),
            ]
        lag = self.pools["send_lag"]
        found += [percentile_metric("send_lag", lag, p) for p in (0.5, 0.99)] + [max_metric("send_lag", lag)]
        return found

    def _rate(self, id: str, value: float | None, series: npt.NDArray[Any], note: str, unbounded: str) -> Metric:
        """A rate over the window, with bounds by batch means where the window has enough requests one after the other.

        Its `n` is the number of batches; 1 where there are no bounds.
        """
        if value is None:
            return metric(id, None, note=note)
        lives = self.series.lives()
        count = parts((lives or 0.0) / LIVES_PER_BATCH, MOST_BATCHES)
        if not unbounded and lives is None:
            unbounded = "no request succeeded"
        elif not unbounded and count is None:
            unbounded = f"the window lasts {lives:.1f} typical requests, {LEAST_PARTS * LIVES_PER_BATCH} needed"
        if unbounded or count is None:
            return metric(id, value, n=1, note="; ".join(filter(None, (note, f"no bounds: {unbounded}"))))
        batches = joined(series, count) * len(series) / self.seconds
        low, high = stats.mean_interval(batches)
        one = 1 / self.seconds  # what is counted in whole ones is known to one of them at best
        return metric(
            id,
            value,
            n=count,
            low=max(min(low, value - one), 0.0),
            high=max(high, value + one),
            confidence=stats.CONFIDENCE,
            note="; ".join(filter(None, (note, f"bounds from {count} batch means"))),
        )
