"""What changes from step to step of a training run, as metrics with steps: curves that MLflow draws and compares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from neuronbench.receipts import Receipt, ReceiptError
from neuronbench.training.overlay import bounded
from neuronbench.training.steps import TABLE

if TYPE_CHECKING:
    import pyarrow
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

LIMIT: Final = 1_000
"""Points of a curve at most: the first, the last and the extremes are always among them."""
BATCH: Final = 1_000
"""Metrics that MLflow takes at once."""
NAMES: Final = {"loss": "train/loss", "grad_norm": "train/grad_norm", "learning_rate": "train/learning_rate"}
RATE: Final = "train/tok_s"


def steps_table(receipt: Receipt) -> tuple[Any, str]:
    """The table of steps, or None and what is wrong with it."""
    name = TABLE.partition(".")[0]
    if name not in receipt.record.tables:
        return None, ""
    try:
        return receipt.table(name), ""
    except ReceiptError as error:
        return None, str(error)


def write(client: MlflowClient, run_id: str, table: pyarrow.Table, *, end_ms: int) -> int:
    """Log the curves of `table` to a run; returns how many points. `end_ms`: wall clock of the last step."""
    points = list(_points(table, end_ms))
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])
    return len(points)


def _points(table: pyarrow.Table, end_ms: int) -> list[Metric]:
    from mlflow.entities import Metric

    rows = table.to_pylist()
    first = [row for row in rows if row["rank"] == 0]
    if not first:
        return []
    last_ns = first[-1]["end_ns"]
    tokens: dict[int, int] = {}
    for row in rows:
        tokens[row["step"]] = tokens.get(row["step"], 0) + row["tokens"]
    curves: dict[str, list[tuple[int, int, float]]] = {}
    for index, row in enumerate(first):
        at = end_ms - (last_ns - row["end_ns"]) // 1_000_000
        values = {name: row[column] for column, name in NAMES.items()}
        if index and row["wall_ns"] > 0:
            values[RATE] = tokens[row["step"]] / (row["wall_ns"] / 1e9)
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                curves.setdefault(name, []).append((row["step"], at, float(value)))
    found = []
    for name, curve in curves.items():
        order = sorted(range(len(curve)), key=lambda index: curve[index][2])
        for index in bounded(len(curve), LIMIT, [order[0], order[-1]]):
            step, at, value = curve[index]
            found.append(Metric(name, value, at, step))
    return found
