"""A bounded sample of what a lane kept as spans, as MLflow traces: the slowest, the failed, and some at random.

As with traces of requests, spans are stored in bulk and ids come from the receipt: a second time changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronbench import spans
from neuronbench.model import Json, Record
from neuronbench.receipts import Receipt
from neuronbench.sinks.mlflow.mapping import times
from neuronbench.sinks.mlflow.traces import Sample, pick, request_id

if TYPE_CHECKING:
    import pyarrow
    from mlflow.entities import Span, TraceInfo

PREVIEW: Final = 500


def table_of(receipt: Receipt) -> pyarrow.Table | None:
    """The receipt's spans; None where its lane kept none."""
    return receipt.table(spans.TABLE) if spans.TABLE in receipt.record.tables else None


def write(
    uri: str, experiment: str, run_id: str, record: Record, table: pyarrow.Table, *, fingerprint: str, limit: int
) -> int:
    """Store the sample as traces of `run_id`; returns how many. Call it with MLflow opened through the gateway."""
    from mlflow.tracing.client import TracingClient

    found = spans.traces(table)
    bad = [row for row, trace in enumerate(found) if trace[0].failure]
    good = [row for row, trace in enumerate(found) if not trace[0].failure]
    slow_first = sorted(good, key=lambda row: found[row][0].start_ns - found[row][0].end_ns)
    samples = pick(bad, slow_first, limit, seed=record.receipt_id) if limit > 0 else []
    if not samples:
        return 0
    offset_ns = _offset_ns(record, found)
    client: Any = TracingClient(uri)
    stored: list[Span] = []
    for sample in samples:
        trace = found[sample.row]
        id = (
            "tr-"
            + hashlib.blake2b(f"{record.receipt_id}\0spans\0{trace[0].trace}".encode(), digest_size=16).hexdigest()
        )
        client.start_trace(_info(id, trace[0], record, sample, experiment, run_id, fingerprint, offset_ns))
        stored += [_span(id, span, offset_ns) for span in trace]
    client.log_spans(experiment, stored)
    return len(samples)


def _offset_ns(record: Record, found: Sequence[Sequence[spans.Span]]) -> int:
    """What to add to a monotonic instant to get UTC; without an epoch the last span ends with the record."""
    epoch: Json = record.workload.get("epoch")
    if isinstance(epoch, dict) and isinstance(epoch.get("mono_ns"), int) and isinstance(epoch.get("utc_ns"), int):
        return int(epoch["utc_ns"]) - int(epoch["mono_ns"])
    return times(record)[1] * 1_000_000 - max(span.end_ns for trace in found for span in trace)


def _info(
    id: str, whole: spans.Span, record: Record, sample: Sample, experiment: str, run_id: str, fingerprint: str,
    offset_ns: int,
) -> TraceInfo:  # fmt: skip
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    return TraceInfo(
        trace_id=id,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=(whole.start_ns + offset_ns) // 1_000_000,
        execution_duration=(whole.end_ns - whole.start_ns) // 1_000_000,
        state=TraceState.ERROR if whole.failure else TraceState.OK,
        request_preview=_text(whole.details.get("input", f"{whole.name} {whole.trace}"))[:PREVIEW],
        response_preview=_text(f"failed: {whole.failure}" if whole.failure else whole.details.get("output", ""))[
            :PREVIEW
        ],
        client_request_id=request_id(f"{record.receipt_id}/{whole.name}/{whole.trace}"),
        trace_metadata={"mlflow.sourceRun": run_id, "mlflow.trace_schema.version": "3"},
        tags={
            "mlflow.traceName": f"{whole.name} {whole.trace}",
            "nb.session": record.session,
            "nb.receipt": record.receipt_id,
            "nb.point": fingerprint,
            "nb.sample": sample.why,
        },
    )


def _span(id: str, span: spans.Span, offset_ns: int) -> Span:
    from mlflow.entities import Span

    attributes: dict[str, Json] = {"mlflow.traceRequestId": id, "mlflow.spanType": span.kind}
    for name, value in span.details.items():
        attributes[{"input": "mlflow.spanInputs", "output": "mlflow.spanOutputs"}.get(name, name)] = value
    return Span.from_dict(
        {
            "trace_id": id,
            "span_id": f"{span.number:016x}",
            "parent_span_id": f"{span.parent:016x}" if span.parent else None,
            "name": span.name,
            "start_time_unix_nano": span.start_ns + offset_ns,
            "end_time_unix_nano": span.end_ns + offset_ns,
            "status": {
                "code": "STATUS_CODE_ERROR" if span.failure else "STATUS_CODE_OK",
                "message": span.failure[:PREVIEW],
            },
            "attributes": {key: json.dumps(value) for key, value in attributes.items()},
            "events": [],
        }
    )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
