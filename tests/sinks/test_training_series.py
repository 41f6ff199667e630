"""Training runs in MLflow: bounded curves with steps, and figures, on a real store."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from neuronbench.model import FrozenMap, Outcome, Point, Record
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink
from neuronbench.sinks.mlflow.series import LIMIT
from neuronbench.training.steps import COLUMNS

STEPS, PEAK_AT = 2_600, 1_234


def table(steps: int = STEPS, ranks: int = 2) -> Any:
    import pyarrow as arrow

    rows = []
    for rank in range(ranks):
        now = 1_000_000_000
        for step in range(1, steps + 1):
            end = now + 10_000_000
            loss = 9.5 if step == PEAK_AT else 3 * math.exp(-step / 500) + 1
            rows.append(
                {
                    "rank": rank, "step": step, "begin_ns": now, "returned_ns": now + 1_000_000, "end_ns": end,
                    "wall_ns": 10_000_000, "loss": math.nan if step == 7 else loss, "grad_norm": 1.0,
                    "learning_rate": 1e-4, "tokens": 100, "padding_tokens": 0, "sequences": 1, "micro_batches": 1,
                }
            )  # fmt: skip
            now = end
    return arrow.table({name: [row[name] for row in rows] for name in COLUMNS})


def receipt(store: ReceiptStore, *tables: Any, **described: Any) -> Path:
    """A record with a table of steps for each run."""
    import pyarrow.parquet as parquet

    session = store.begin_session(command=["test"])
    point = Point(benchmark="b", lane="lora_sft", backend="cpu", params=FrozenMap(), id="sft")
    record = Record(session=session, point=point, started_at="2026-01-01T00:00:00.000000+00:00")
    staging = store.open(record)
    record.workload["training"] = []
    for number, steps in enumerate(tables, 1):
        name = "steps" if number == 1 else f"steps-{number}"
        parquet.write_table(steps, staging.folder / f"{name}.parquet")
        record.tables[name] = f"{name}.parquet"
        record.workload["training"].append(described)
    record.close(Outcome.OK, ended_at="2026-01-01T00:01:00.000000+00:00", duration_s=60.0)
    return store.commit(record, staging)


pytestmark = pytest.mark.usefixtures("quiet")


def history(sink: MlflowSink, run: str, key: str) -> list[Any]:
    from mlflow.tracking import MlflowClient

    return list(MlflowClient(sink.gateway.uri).get_metric_history(run, key))


def deliver(sink: MlflowSink, folder: Path) -> str:
    delivery = sink.write(folder)
    assert delivery.state == "delivered", delivery.reason
    return str(delivery.reference)


@pytest.mark.parametrize("steps", [STEPS, 5])
def test_curves_have_their_steps_their_ends_and_their_extremes(
    store: ReceiptStore, sink: MlflowSink, steps: int
) -> None:
    from mlflow.tracking import MlflowClient

    folder = receipt(store, table(steps))
    run = deliver(sink, folder)
    client = MlflowClient(sink.gateway.uri)
    losses = history(sink, run, "train/loss")
    by_step = {each.step: each.value for each in losses}
    assert len(losses) == len(by_step) <= LIMIT
    assert {1, steps} - {7} <= set(by_step)
    assert 7 not in by_step  # not finite: nothing that a curve could show
    if steps == STEPS:
        assert by_step[PEAK_AT] == 9.5
        assert len(losses) > LIMIT / 2
    rates = history(sink, run, "train/tok_s")
    assert {each.value for each in rates} == {200 / 0.01}  # both ranks' tokens
    assert min(each.step for each in rates) == 2  # compilation is in the first
    stamps = [each.timestamp for each in sorted(losses, key=lambda each: each.step)]
    assert stamps == sorted(stamps)
    files = [each.path for each in client.list_artifacts(run, "figures")]
    assert sorted(files) == ["figures/loss.png", "figures/step_time.png", "figures/tok_s.png"]
    assert "nb.incomplete" not in client.get_run(run).data.tags
    assert deliver(sink, folder) == run
    assert len(history(sink, run, "train/loss")) == len(losses)


def test_ranks_that_share_a_data_shard_count_once(store: ReceiptStore, sink: MlflowSink) -> None:
    run = deliver(sink, receipt(store, table(5), shards={"0": [0, 1], "1": [0, 1]}))
    assert {each.value for each in history(sink, run, "train/tok_s")} == {100 / 0.01}


def test_each_run_of_a_record_has_its_own_curves_at_its_own_time(store: ReceiptStore, sink: MlflowSink) -> None:
    from mlflow.tracking import MlflowClient

    epoch = {"mono_ns": 1_000_000_000, "utc_ns": 1_700_000_000_000_000_000, "uncertainty_ns": 1}
    run = deliver(sink, receipt(store, table(5), table(9), epoch=epoch))
    assert [each.step for each in history(sink, run, "train/loss")] == [1, 2, 3, 4, 5]
    second = history(sink, run, "train-2/loss")
    assert sorted(each.step for each in second) == [1, 2, 3, 4, 5, 6, 8, 9]
    assert {each.step: each.timestamp for each in second}[9] == 1_700_000_000_090
    files = [each.path for each in MlflowClient(sink.gateway.uri).list_artifacts(run, "figures")]
    assert "figures/losses.png" in files


def test_a_damaged_table_costs_its_curves_and_nothing_else(store: ReceiptStore, sink: MlflowSink) -> None:
    from mlflow.tracking import MlflowClient

    folder = receipt(store, table(5), table(9))
    (folder / "steps-2.parquet").write_bytes(b"no table")
    run = deliver(sink, folder)
    assert len(history(sink, run, "train/loss")) == 5
    assert history(sink, run, "train-2/loss") == []
    assert "steps-2.parquet" in MlflowClient(sink.gateway.uri).get_run(run).data.tags["nb.incomplete"]
