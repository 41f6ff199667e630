"""What a box that has measured all night has on its disk: a session of receipts, and what MLflow is to have of them.

The receipts are made by the code that makes real ones (records, definitions of metrics, staging, commit), without
measuring: every value is made up. What is expected in MLflow is written down beside them, one line a receipt, so that
the server's database and bucket can be judged without asking who pushed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from neuronbench.config import Settings
from neuronbench.definitions import metric
from neuronbench.model import Environment, FrozenMap, Gate, Outcome, Point, Provenance, Record, ResourceRef
from neuronbench.receipts import ReceiptStore

EXPECTED: Final = "expected.jsonl"
LANE: Final = "serving"
METRICS: Final = ("ttft", "ttft_due", "tpot", "icl", "e2e", "e2e_due", "max_stall", "send_lag")
STATS: Final = ("p50", "p90", "p99", "mean", "max")
_STARTED: Final = "2026-11-30T12:00:00.000000+00:00"
_ENDED: Final = "2026-11-30T12:00:09.000000+00:00"
_MONO_NS: Final = 10**15


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What MLflow must have of one receipt."""

    receipt: str
    """`<session>/<name>`: the tag `nb.receipt` of its run."""
    session: str
    metrics: int
    total: float
    """Sum of the metrics' values."""
    params: int
    files: dict[str, int]
    """Artifact → size in bytes, of those that are files of the receipt."""
    inputs: int = 1
    traces: int = 0


def fill(
    settings: Settings, box: int, points: int, *, requests_every: int = 0, traces: int = 0
) -> tuple[str, list[Expected]]:
    """A session of `points` receipts and a boot in the data root; returns its id and what is expected.

    Every point has 40 metrics, 20 parameters, 30 facts, a gate and a small `telemetry.parquet`; every
    `requests_every`-th has requests too, from which figures and `traces` request traces are made.
    """
    store = ReceiptStore(settings.receipts_dir)
    session = store.begin_session(settings, command=["pytest", "benchmarks", "-m", "cpu"])
    facts = FrozenMap({f"host.fact{number}": number for number in range(29)} | {"backend.box": box})
    environment = Environment(facts=facts, key=f"box-{box}")
    made = [_boot(store, session, environment)]
    telemetry = _telemetry()
    for index in range(points):
        record = _record(session, environment, box, index)
        staging = store.open(record)
        pq.write_table(telemetry, staging.folder / "telemetry.parquet", compression="zstd")
        record.tables["telemetry"] = "telemetry.parquet"
        with_requests = bool(requests_every) and index % requests_every == 0
        if with_requests:
            pq.write_table(_requests(), staging.folder / "requests.parquet", compression="zstd")
            record.tables["requests"] = "requests.parquet"
        record.close(Outcome.OK, ended_at=_ENDED, duration_s=9.0)
        made.append(_expected(record, store.commit(record, staging), traces if with_requests else 0))
    store.end_session(session, 0)
    with (settings.data_root / EXPECTED).open("a") as out:
        out.writelines(json.dumps(asdict(each)) + "\n" for each in made)
    return session, made


def expected(data_root: Path) -> Iterator[Expected]:
    """What `fill` has written down."""
    with (data_root / EXPECTED).open() as lines:
        for line in lines:
            yield Expected(**json.loads(line))


def _record(session: str, environment: Environment, box: int, index: int) -> Record:
    params = {f"setting{number}": number for number in range(18)} | {"concurrency": index}
    point = Point(
        benchmark="benchmarks/serving/bench_closed_loop.py::bench_closed_loop", lane=LANE, backend="cpu",
        params=FrozenMap(params), axes=("concurrency",), id=f"serving.closed_loop-cpu-c{index}",
    )  # fmt: skip
    record = Record(
        session=session, point=point, started_at=_STARTED, environment=environment, provenance=Provenance.SIMULATED,
        workload={
            "name": "synthetic", "plan_hash": f"{index:032x}",
            "window": {"start_ns": _MONO_NS, "end_ns": _MONO_NS + 9 * 10**9},
            "epoch": {"mono_ns": _MONO_NS, "utc_ns": 1_796_040_000 * 10**9},
        },
        resource=ResourceRef(
            id="endpoint-1a2b3c4d", kind="endpoint", spec=FrozenMap(model="made-up"),
            boot_receipt=f"{session}/boot-endpoint-1a2b3c4d",
        ),
    )  # fmt: skip
    for number, name in enumerate(METRICS):
        record.add(*(metric(name, 10.0 + box + index + number / 8, stat=stat, n=500) for stat in STATS))
    record.gate(Gate(id="window_complete", passed=True))
    return record


def _boot(store: ReceiptStore, session: str, environment: Environment) -> Expected:
    name = "boot-endpoint-1a2b3c4d"
    point = Point(benchmark="", lane=LANE, backend="cpu", params=FrozenMap(model="made-up"), id=name)
    record = Record(
        session=session, kind="boot", name=name, point=point, started_at=_STARTED, environment=environment,
        provenance=Provenance.SIMULATED,
    )  # fmt: skip
    record.add(metric("boot_time", 23.5))
    staging = store.open(record)
    record.close(Outcome.OK, ended_at=_ENDED, duration_s=23.5)
    return _expected(record, store.commit(record, staging), 0)


def _expected(record: Record, folder: Path, traces: int) -> Expected:
    values = [metric.value for metric in record.metrics.values() if metric.value is not None]
    files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    params = len(record.point.params) + 1  # and the backend
    if record.resource is not None:
        params += len(record.resource.spec)
    return Expected(
        receipt=record.receipt_id, session=record.session, metrics=len(values), total=sum(values), params=params,
        files=files, inputs=int(bool(record.workload)), traces=traces,
    )  # fmt: skip


def _telemetry() -> pa.Table:
    rows = range(9)
    return pa.table(
        {
            "mono_ns": [_MONO_NS + row * 10**9 for row in rows],
            "cpu_percent": [50.0 + row for row in rows],
            "memory_used_bytes": [10**9 + row for row in rows],
        }
    )


def _requests(count: int = 24) -> pa.Table:
    rows = [
        {
            "request_id": row, "warmup": False, "in_window": True, "ok": True, "http_status": 200,
            "scheduled_ns": (begin := _MONO_NS + row * 10**8), "sent_ns": begin + 10**5,
            "first_output_ns": begin + 50 * 10**6, "last_output_ns": begin + 80 * 10**6, "end_ns": begin + 81 * 10**6,
            "input_tokens": 64, "output_tokens": 4, "chunks": 4, "icl_ms": [10.0, 10.0, 10.0], "client_lag_ms": 0.1,
            "ttft_ms": 49.9, "tpot_ms": 10.0, "e2e_ms": 80.9,
        }
        for row in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)
