"""What a lane keeps as spans becomes traces: a bounded sample, linked to its run, at the recorded instants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import synthetic_receipts as synthetic
from sink_helpers import QUICK, Reader

from neuronbench.config import Settings
from neuronbench.model import Record
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink
from neuronbench.spans import FILE, TABLE, Span, traces, write


def query(trace: int, *, ms: int, failure: str = "") -> list[Span]:
    start = synthetic.MONO_NS + trace * 10**9
    end = start + ms * 10**6
    whole = Span(
        trace=trace, number=1, name="query", kind="CHAIN", start_ns=start, end_ns=end, failure=failure,
        details={"input": f"question {trace}", "output": "46", "found": ["a", "b"]},
    )  # fmt: skip
    half = start + (end - start) // 2
    return [
        whole,
        Span(trace=trace, number=2, parent=1, name="embed", kind="EMBEDDING", start_ns=start, end_ns=half),
        Span(trace=trace, number=3, parent=1, name="search", kind="RETRIEVER", start_ns=half, end_ns=end),
    ]


def put(store: ReceiptStore, made: Record, spans: list[Span], tmp_path: Path) -> Path:
    write(tmp_path / FILE, spans)
    path = synthetic.put(store, made, files={FILE: (tmp_path / FILE).read_bytes()})
    assert made.tables[TABLE] == FILE
    return path


def test_a_sample_of_spans_becomes_traces_of_the_run(
    settings: Settings, store: ReceiptStore, session: str, reader: Callable[..., Reader], tmp_path: Path
) -> None:
    made = synthetic.record(session)
    made.tables[TABLE] = FILE
    spans = [
        span
        for trace in range(20)
        for span in query(trace, ms=10 + trace, failure="http_500" if trace in (3, 5, 7, 9) else "")
    ]
    sink = MlflowSink(replace(settings, traces=9), patience=QUICK)
    receipt = put(store, made, spans, tmp_path)
    assert sink.write(receipt).state == "delivered"
    mlflow = reader(settings.mlflow_uri)
    run = mlflow.run(f"{session}/serving-closed_loop-c8--r1")
    found = {int(trace.info.client_request_id.rpartition("/")[2]): trace for trace in mlflow.traces(run)}
    assert run.data.tags["nb.traces"] == "9"
    assert Counter(trace.info.tags["nb.sample"] for trace in found.values()) == {"slowest": 3, "failed": 3, "random": 3}
    assert {19, 18, 17} <= found.keys()
    whole = found[19]
    assert whole.info.trace_metadata["mlflow.sourceRun"] == run.info.run_id
    assert (whole.info.request_preview, whole.info.response_preview) == ("question 19", "46")
    by_name = {span.name: span for span in whole.data.spans}
    offset = synthetic.UTC_NS - synthetic.MONO_NS
    assert by_name["query"].start_time_ns == synthetic.MONO_NS + 19 * 10**9 + offset
    assert by_name["search"].end_time_ns == by_name["query"].end_time_ns
    assert by_name["search"].parent_id == by_name["query"].span_id
    assert by_name["embed"].span_type == "EMBEDDING"
    assert by_name["query"].attributes["found"] == ["a", "b"]
    failed = next(trace for number, trace in found.items() if number in (3, 5, 7, 9))
    assert failed.info.state.value == "ERROR"
    assert failed.info.response_preview == "failed: http_500"


def test_spans_come_back_as_they_were_kept(tmp_path: Path) -> None:
    spans = [*query(0, ms=4), *query(1, ms=5, failure="x")]
    write(tmp_path / FILE, spans)
    assert traces(parquet.read_table(tmp_path / FILE)) == [spans[:3], spans[3:]]


@pytest.mark.parametrize(
    ("spans", "match"),
    [
        ([query(0, ms=1)[1]], "expected the whole first"),
        ([query(0, ms=1)[0], query(0, ms=1)[0]], "one span without a parent"),
    ],
)
def test_a_trace_without_its_whole_is_refused(tmp_path: Path, spans: list[Span], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        write(tmp_path / FILE, spans)
    assert not (tmp_path / FILE).exists()


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="an end that is not before its start"):
        Span(trace=0, number=1, name="query", start_ns=5, end_ns=4)
