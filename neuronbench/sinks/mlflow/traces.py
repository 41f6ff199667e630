"""A bounded sample of requests as MLflow traces, written from recorded times after the window.

Spans are built here and stored in bulk: the tracing SDK's asynchronous queue drops what it cannot hold. Ids come from
the receipt, so that writing a second time changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuronbench.model import Json, Record
from neuronbench.report.requests import Requests, requests_of
from neuronbench.sinks.mlflow.mapping import times

if TYPE_CHECKING:
    import pyarrow
    from mlflow.entities import Span, TraceInfo

REQUEST_ID_LIMIT: Final = 50
DETAILS: Final = (
    "request_id", "http_status", "failure", "error", "input_tokens", "output_tokens", "chunks", "ttft_ms", "tpot_ms",
    "e2e_ms", "client_lag_ms", "scheduled_ns", "sent_ns", "first_output_ns", "last_output_ns", "end_ns",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A row of the table and why it was taken: `slowest`, `failed` or `random`."""

    row: int
    why: str


def choose(requests: Requests, limit: int, *, seed: str) -> list[Sample]:
    """At most `limit` of the counted requests: a third each of the slowest, the failed, and the others at random.

    What one kind does not fill goes to the next; the choice is the same for the same `seed`.
    """
    counted = requests.counted if requests.counted.any() else np.ones(requests.rows, dtype=np.bool_)
    begun = counted & (np.isfinite(requests.sent_s) | np.isfinite(requests.scheduled_s))
    bad = [int(row) for row in np.flatnonzero(begun & ~requests.ok)]
    good = np.flatnonzero(begun & requests.ok)
    slow_first = [int(row) for row in good[np.argsort(-np.nan_to_num(requests.e2e_ms[good], nan=-1.0), kind="stable")]]
    return pick(bad, slow_first, limit, seed=seed)


def pick(bad: Sequence[int], slow_first: Sequence[int], limit: int, *, seed: str) -> list[Sample]:
    """At most `limit` rows: a third each of the slowest, of the `bad`, and of the others at random."""
    chance = random.Random(seed)
    share = max(1, limit // 3)
    failed = sorted(chance.sample(bad, min(len(bad), share)))
    slowest = slow_first[: min(share, limit - len(failed))]
    rest = slow_first[len(slowest) :]
    others = sorted(chance.sample(rest, max(0, min(len(rest), limit - len(failed) - len(slowest)))))
    spare = limit - len(failed) - len(slowest) - len(others)
    more = sorted(set(bad) - set(failed))[: max(0, spare)]
    return [
        *(Sample(row=row, why="slowest") for row in slowest),
        *(Sample(row=row, why="failed") for row in sorted(failed + more)),
        *(Sample(row=row, why="random") for row in others),
    ][:limit]


def write(
    uri: str, experiment: str, run_id: str, record: Record, table: pyarrow.Table, *, fingerprint: str, limit: int
) -> int:
    """Store the sample as traces of `run_id`; returns how many. Call it with MLflow opened through the gateway."""
    from mlflow.tracing.client import TracingClient

    requests = requests_of(table)
    samples = choose(requests, limit, seed=record.receipt_id) if limit > 0 else []
    if not samples:
        return 0
    offset_ns, clock = wall_offset_ns(record, requests)
    names = [name for name in DETAILS if name in table.column_names]
    taken = table.select(names).take([sample.row for sample in samples]).to_pylist()
    client: Any = TracingClient(uri)
    spans: list[Span] = []
    for sample, row in zip(samples, taken, strict=True):
        trace = _Trace(record, sample, row, offset_ns, icl=_gaps(requests, sample.row))
        client.start_trace(trace.info(experiment, run_id, fingerprint=fingerprint, clock=clock))
        spans += trace.spans()
    client.log_spans(experiment, spans)
    return len(samples)


def wall_offset_ns(record: Record, requests: Requests) -> tuple[int, str]:
    """What to add to a monotonic instant to get UTC, and how that is known."""
    epoch: Json = record.workload.get("epoch")
    if isinstance(epoch, dict) and isinstance(epoch.get("mono_ns"), int) and isinstance(epoch.get("utc_ns"), int):
        return epoch["utc_ns"] - epoch["mono_ns"], "recorded"
    ends = np.concatenate((requests.end_s, requests.last_s, requests.sent_s))
    ends = ends[np.isfinite(ends)]
    last_ns = requests.origin_ns + (int(ends.max() * 1e9) if ends.size else 0)
    return times(record)[1] * 1_000_000 - last_ns, "aligned to the end of the record, for want of an epoch"


def forget_server_version() -> None:
    """Let MLflow's client ask for the server's version again.

    It asks once, for 3 s at most, and keeps what came of it: after one lost answer of a busy server it would refuse to
    store spans for as long as this process lives.
    """
    from mlflow.store.tracking.rest_store import RestStore

    forget = getattr(RestStore._get_server_version, "cache_clear", None)
    if forget is not None:
        forget()


def request_id(text: str) -> str:
    """Cut in front to what MLflow's column holds: SQLite takes more, PostgreSQL would refuse the whole trace."""
    if len(text) <= REQUEST_ID_LIMIT:
        return text
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest() + "-" + text[9 - REQUEST_ID_LIMIT :]


def _gaps(requests: Requests, row: int) -> Sequence[float]:
    if not requests.icl_start.size:
        return ()
    return [float(gap) for gap in requests.icl_ms[requests.icl_start[row] : requests.icl_start[row + 1]]]


class _Trace:
    """One request: the root span, and what it waited for and was served in."""

    def __init__(
        self, record: Record, sample: Sample, row: dict[str, Json], offset_ns: int, icl: Sequence[float]
    ) -> None:
        self.record, self.sample, self.row, self.icl = record, sample, row, icl
        number = row.get("request_id")
        self.number = sample.row if number is None else number
        self.id = hashlib.blake2b(f"{record.receipt_id}\0{sample.row}".encode(), digest_size=16).hexdigest()
        at = {
            name: None if row.get(f"{name}_ns") is None else int(row[f"{name}_ns"]) + offset_ns
            for name in ("scheduled", "sent", "first_output", "last_output", "end")
        }
        self.at = at
        begin = at["scheduled"] if at["scheduled"] is not None else at["sent"]
        self.begin = int(begin or 0)
        self.end = max(self.begin, *(value for value in at.values() if value is not None))
        self.failed = bool(row.get("failure") or row.get("error"))

    @property
    def outcome(self) -> str:
        if self.failed:
            return f"failed: {self.row.get('failure') or 'error'}"
        parts = [
            f"{self.row[name]} {word}" for name, word in (("output_tokens", "output tokens"),) if self.row.get(name)
        ]
        parts += [
            f"{word} {self.row[name]:.1f} ms"
            for name, word in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))
            if self.row.get(name) is not None
        ]
        return ", ".join(parts)

    def info(self, experiment: str, run_id: str, *, fingerprint: str, clock: str) -> TraceInfo:
        from mlflow.entities import TraceInfo, TraceLocation, TraceState

        metadata = {"mlflow.sourceRun": run_id, "mlflow.trace_schema.version": "3", "nb.clock": clock}
        tokens = {name: self.row.get(name) for name in ("input_tokens", "output_tokens")}
        if all(isinstance(value, int) for value in tokens.values()):
            total = int(tokens["input_tokens"] or 0) + int(tokens["output_tokens"] or 0)
            metadata["mlflow.trace.tokenUsage"] = json.dumps({**tokens, "total_tokens": total})
        asked = self.row.get("input_tokens")
        return TraceInfo(
            trace_id=f"tr-{self.id}",
            trace_location=TraceLocation.from_experiment_id(experiment),
            request_time=self.begin // 1_000_000,
            execution_duration=(self.end - self.begin) // 1_000_000,
            state=TraceState.ERROR if self.failed else TraceState.OK,
            request_preview=f"request {self.number}" + (f", {asked} input tokens" if asked is not None else ""),
            response_preview=self.outcome[:500],
            client_request_id=request_id(f"{self.record.receipt_id}/{self.number}"),
            trace_metadata=metadata,
            tags={
                "mlflow.traceName": f"request {self.number}",
                "nb.session": self.record.session,
                "nb.receipt": self.record.receipt_id,
                "nb.point": fingerprint,
                "nb.sample": self.sample.why,
            },
        )

    def spans(self) -> list[Span]:
        at = self.at
        details = {name: value for name, value in self.row.items() if value is not None and not name.endswith("_ns")}
        found = [self._span(1, "request", self.begin, self.end, "CHAIN", details=details, failed=self.failed)]
        sent, first, last = at["sent"], at["first_output"], at["last_output"]
        if at["scheduled"] is not None and sent is not None:
            found.append(self._span(2, "queued", at["scheduled"], sent, "TASK"))
        if sent is not None:
            never = first is None
            found.append(self._span(3, "prefill", sent, self.end if first is None else first, "LLM", failed=never))
        if first is not None:
            stop = self.end if last is None else last
            gaps = {"chunks": len(self.icl) + 1, "longest_gap_ms": max(self.icl)} if self.icl else {}
            found.append(self._span(4, "decode", first, stop, "LLM", details=gaps, failed=self.failed))
        return found

    def _span(
        self,
        number: int,
        name: str,
        start_ns: int,
        end_ns: int,
        kind: str,
        *,
        details: dict[str, Json] | None = None,
        failed: bool = False,
    ) -> Span:
        from mlflow.entities import Span

        attributes: dict[str, Json] = {"mlflow.traceRequestId": f"tr-{self.id}", "mlflow.spanType": kind}
        if number == 1:
            attributes["mlflow.spanInputs"] = {"request": self.number, "input_tokens": self.row.get("input_tokens")}
            attributes["mlflow.spanOutputs"] = self.outcome
        attributes.update(details or {})
        message = str(self.row.get("error") or self.row.get("failure") or "") if failed else ""
        return Span.from_dict(
            {
                "trace_id": f"tr-{self.id}",
                "span_id": f"{number:016x}",
                "parent_span_id": None if number == 1 else f"{1:016x}",
                "name": name,
                "start_time_unix_nano": start_ns,
                "end_time_unix_nano": max(start_ns, end_ns),
                "status": {"code": "STATUS_CODE_ERROR" if failed else "STATUS_CODE_OK", "message": message[:500]},
                "attributes": {key: json.dumps(value) for key, value in attributes.items()},
                "events": [],
            }
        )
