"""What MLflow costs a point, on SQLite: the sink's run beside one written by hand."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np

from neuronbench import config
from neuronbench.definitions import metric
from neuronbench.model import Environment, FrozenMap, Gate, Outcome, Point, Record
from neuronbench.receipts import ReceiptStore

POINTS, WARM = 24, 4


def receipts(store: ReceiptStore, session: str) -> list[Path]:
    """Receipts of points with as many metrics as a serving record has."""
    written = []
    for index in range(POINTS):
        point = Point(
            benchmark="bench_x.py::bench_x", lane="serving", backend="cpu",
            params=FrozenMap({f"p{k}": k for k in range(20)} | {"concurrency": index}), axes=("concurrency",),
            id=f"serving.x-cpu-c{index}",
        )  # fmt: skip
        facts = FrozenMap({f"host.fact{k}": k for k in range(30)})
        record = Record(
            session=session, point=point, started_at="2026-11-30T12:00:00.000000+00:00",
            environment=Environment(facts=facts, key="k"),
        )  # fmt: skip
        for id_ in ("ttft", "ttft_due", "tpot", "icl", "e2e", "e2e_due", "max_stall", "send_lag"):
            record.add(*(metric(id_, 10.0 + index, stat=stat, n=500) for stat in ("p50", "p90", "p99", "mean", "max")))
        record.gate(Gate(id="window_complete", passed=True))
        staging = store.open(record)
        record.close(Outcome.OK, ended_at="2026-11-30T12:00:09.000000+00:00", duration_s=9.0)
        written.append(store.commit(record, staging))
    return written


def by_hand(uri: str, name: str) -> list[float]:
    """The same number of metrics, params and tags in one batch a run."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient(uri)
    experiment = client.create_experiment(name)
    spent = []
    for index in range(POINTS):
        begun = time.perf_counter()
        run = client.create_run(experiment)
        client.log_batch(
            run.info.run_id,
            metrics=[Metric(f"m{k}", float(index), 0, 0) for k in range(40)],
            params=[Param(f"p{k}", str(k)) for k in range(20)],
            tags=[RunTag(f"t{k}", str(k)) for k in range(30)],
        )
        client.set_terminated(run.info.run_id)
        spent.append(1000 * (time.perf_counter() - begun))
    return spent[WARM:]


def bench_mlflow(board, tmp_path: Path) -> None:
    """A point without tables: figures and traces are made from them, and only where there are some."""
    from neuronbench.sinks.mlflow.sink import MlflowSink

    (tmp_path / config.CONFIG_FILE).write_text("")
    settings = config.load(tmp_path, environ={})
    store = ReceiptStore(settings.receipts_dir)
    written = receipts(store, store.begin_session(settings))
    sink = MlflowSink(settings)
    spent = []
    for receipt in written:
        begun = time.perf_counter()
        delivery = sink.write(receipt)
        spent.append(1000 * (time.perf_counter() - begun))
        assert delivery.state == "delivered", delivery.reason
    sink.close()
    bare = by_hand(f"sqlite:///{tmp_path / 'bare.db'}", "bare")
    mine = spent[WARM:]
    assert np.isfinite(mine).all()
    board.report(
        what="MLflow, a point", unit="ms", value=statistics.median(mine), turns=mine, budget=60.0,
        bare=statistics.median(bare), note="40 metrics, 20 params, 30 tags, on SQLite; bare: one batch by hand",
    )  # fmt: skip
