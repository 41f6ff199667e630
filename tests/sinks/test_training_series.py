"""Training runs in MLflow: bounded curves with steps, and figures, on a real store."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from neuronbench.model import FrozenMap, Outcome, Point, Record
from neuronbench.receipts import ReceiptStore
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


def receipt(root: Path, steps: Any) -> Path:
    import pyarrow.parquet as parquet

    store = ReceiptStore(root / "receipts")
    session = store.begin_session(command=["test"])
    point = Point(benchmark="b", lane="lora_sft", backend="cpu", params=FrozenMap(), id="sft")
    record = Record(session=session, point=point, started_at="2026-01-01T00:00:00.000000+00:00")
    staging = store.open(record)
    parquet.write_table(steps, staging.folder / "steps.parquet")
    record.tables["steps"] = "steps.parquet"
    record.close(Outcome.OK, ended_at="2026-01-01T00:01:00.000000+00:00", duration_s=60.0)
    return store.commit(record, staging)


@pytest.mark.parametrize("steps", [STEPS, 5])
def test_curves_have_their_steps_their_ends_and_their_extremes(tmp_path: Path, steps: int) -> None:
    from mlflow.tracking import MlflowClient

    from neuronbench import config
    from neuronbench.sinks.mlflow import MlflowSink

    (tmp_path / "pyproject.toml").write_text("")
    settings = config.load(tmp_path, environ={}, overrides={"data_root": str(tmp_path)})
    folder = receipt(tmp_path, table(steps))
    sink = MlflowSink(settings)
    try:
        delivery = sink.write(folder)
        assert delivery.state == "delivered", delivery.reason
        client = MlflowClient(settings.mlflow_uri)
        losses = client.get_metric_history(delivery.reference, "train/loss")
        by_step = {each.step: each.value for each in losses}
        assert len(losses) == len(by_step) <= LIMIT
        assert {1, steps} - {7} <= set(by_step)
        assert 7 not in by_step  # not finite: nothing that a curve could show
        if steps == STEPS:
            assert by_step[PEAK_AT] == 9.5
            assert len(losses) > LIMIT / 2
        rates = client.get_metric_history(delivery.reference, "train/tok_s")
        assert {each.value for each in rates} == {200 / 0.01}  # both ranks' tokens
        assert min(each.step for each in rates) == 2  # compilation is in the first
        stamps = [each.timestamp for each in sorted(losses, key=lambda each: each.step)]
        assert stamps == sorted(stamps)
        files = [each.path for each in client.list_artifacts(delivery.reference, "figures")]
        assert sorted(files) == ["figures/loss.png", "figures/step_time.png"]
        run = client.get_run(delivery.reference)
        assert "nb.incomplete" not in run.data.tags
        again = sink.write(folder)
        assert again.reference == delivery.reference
        assert len(client.get_metric_history(delivery.reference, "train/loss")) == len(losses)
    finally:
        sink.close()

