"""The sample of requests, and the spans that are made of recorded instants."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import synthetic_receipts as synthetic

from neuronbench.report.requests import requests_of
from neuronbench.sinks.mlflow import traces


def counts(samples: list[traces.Sample]) -> Counter[str]:
    return Counter(sample.why for sample in samples)


def test_the_sample_has_the_slowest_the_failed_and_others() -> None:
    requests = requests_of(synthetic.requests(300, failed=40))
    samples = traces.choose(requests, 30, seed="x")
    assert counts(samples) == {"slowest": 10, "failed": 10, "random": 10}
    assert len({sample.row for sample in samples}) == 30
    slowest = {sample.row for sample in samples if sample.why == "slowest"}
    eligible = np.where(requests.counted & requests.ok, requests.e2e_ms, -1.0)
    assert slowest == set(np.argsort(-eligible)[:10].tolist())
    assert all(not requests.ok[sample.row] for sample in samples if sample.why == "failed")
    assert all(requests.counted[sample.row] for sample in samples)  # none of the warm-up
    assert traces.choose(requests, 30, seed="x") == samples
    assert traces.choose(requests, 30, seed="y") != samples


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("failed", [0, 1, 19])
def test_the_sample_is_bounded_and_full(limit: int, failed: int) -> None:
    requests = requests_of(synthetic.requests(24, failed=failed))
    samples = traces.choose(requests, limit, seed="x")
    assert len(samples) == min(limit, int(requests.counted.sum()))
    assert len({sample.row for sample in samples}) == len(samples)


def row_of(number: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = synthetic.requests(60, failed=2).slice(number, 1).to_pylist()[0]
    return {**row, **changes}


def make(row: dict[str, Any]) -> Any:
    offset = synthetic.UTC_NS - synthetic.MONO_NS
    return traces._Trace(synthetic.record("s"), traces.Sample(row=3, why="random"), row, offset, icl=row["icl_ms"])


def test_spans_are_the_recorded_instants_in_utc(quiet: None) -> None:
    row = row_of(20)
    spans = {span.name: span for span in make(row).spans()}
    offset = synthetic.UTC_NS - synthetic.MONO_NS
    assert set(spans) == {"request", "queued", "prefill", "decode"}
    edges = {
        "request": ("scheduled_ns", "end_ns"),
        "queued": ("scheduled_ns", "sent_ns"),
        "prefill": ("sent_ns", "first_output_ns"),
        "decode": ("first_output_ns", "last_output_ns"),
    }
    for name, (start, end) in edges.items():
        assert (spans[name].start_time_ns, spans[name].end_time_ns) == (row[start] + offset, row[end] + offset)
        assert (spans[name].parent_id is None) == (name == "request")
    assert spans["decode"].attributes["chunks"] == 32
    assert spans["request"].attributes["ttft_ms"] == pytest.approx(row["ttft_ms"])


def test_a_request_that_never_answered_ends_in_its_prefill(quiet: None) -> None:
    failed = next(n for n in range(60) if not row_of(n)["ok"])
    trace = make(row_of(failed))
    spans = {span.name: span for span in trace.spans()}
    assert set(spans) == {"request", "queued", "prefill"}
    assert spans["prefill"].end_time_ns == spans["request"].end_time_ns
    assert spans["prefill"].status.status_code.value == "ERROR"
    assert "no first token" in spans["request"].status.description
    assert trace.info("1", "run", fingerprint="f", clock="c").state.value == "ERROR"


def test_instants_that_are_missing_make_no_spans(quiet: None) -> None:
    nothing = row_of(20, scheduled_ns=None, first_output_ns=None, last_output_ns=None, end_ns=None)
    spans = {span.name: span for span in make(nothing).spans()}
    assert set(spans) == {"request", "prefill"}
    assert spans["request"].end_time_ns == spans["request"].start_time_ns
    assert {span.name for span in make(row_of(20, scheduled_ns=None, sent_ns=None)).spans()} == {"request", "decode"}


def test_without_an_epoch_the_clock_is_aligned_and_says_so() -> None:
    record, requests = synthetic.record("s"), requests_of(synthetic.requests(10))
    assert traces.wall_offset_ns(record, requests) == (synthetic.UTC_NS - synthetic.MONO_NS, "recorded")
    del record.workload["epoch"]
    record.ended_at = "2026-11-30T01:24:45+00:00"
    offset, clock = traces.wall_offset_ns(record, requests)
    last = requests.origin_ns + int(np.nanmax(requests.end_s) * 1e9)
    assert last + offset == 1_796_001_885 * 10**9
    assert "aligned" in clock
