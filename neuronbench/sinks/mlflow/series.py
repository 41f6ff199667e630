"""What changes from step to step of a training run, as metrics with steps: curves that MLflow draws and compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Record
from neuronbench.receipts import Receipt, ReceiptError
from neuronbench.training import curves

if TYPE_CHECKING:
    import pyarrow
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

LIMIT: Final = 1_000
"""Points of a curve at most: the first, the last and the extremes are always among them."""
BATCH: Final = 1_000
"""Metrics that MLflow takes at once."""
RUNS: Final = 8
"""Runs of a record whose curves are sent; all of them are in the receipt."""
NAMES: Final = ("loss", "grad_norm", "learning_rate")


def steps_tables(receipt: Receipt) -> tuple[dict[int, Any], list[str]]:
    """Number of a run → its table of steps, and what is wrong with those that cannot be read."""
    found, problems = {}, []
    for number, name in curves.runs(receipt.record).items():
        try:
            found[number] = receipt.table(name)
        except ReceiptError as error:
            problems.append(str(error))
    return found, problems


def write(
    client: MlflowClient, run_id: str, record: Record, tables: Mapping[int, pyarrow.Table], *, end_ms: int
) -> int:
    """Log the curves of a record's runs; returns how many points. `end_ms`: when the record ended, by the wall clock.

    They are `train/loss`, `train/grad_norm`, `train/learning_rate` and `train/tok_s` (by the wall of each step, all
    distinct data shards), of a second run `train-2/loss` and so on. What is not finite is left out.
    """
    points = [
        point for number, table in list(tables.items())[:RUNS] for point in _points(record, number, table, end_ms)
    ]
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])
    return len(points)


def _points(record: Record, number: int, table: pyarrow.Table, end_ms: int) -> Iterator[Metric]:
    import numpy as np
    from mlflow.entities import Metric

    columns = curves.of_rank_zero(table, curves.counted_ranks(record, number))
    if not len(columns["step"]):
        return
    prefix = "train" if number == 1 else f"train-{number}"
    at_ms = _instants(columns["end_ns"], curves.described(record, number).get("epoch"), end_ms)
    series: dict[str, Any] = {name: columns[name].astype(float) for name in NAMES if name in columns}
    series["tok_s"] = curves.rates(columns)
    for name, values in series.items():
        there = np.flatnonzero(np.isfinite(values))
        for index in there[curves.thinned(values[there], LIMIT)]:
            yield Metric(f"{prefix}/{name}", float(values[index]), int(at_ms[index]), int(columns["step"][index]))


def _instants(end_ns: Any, epoch: Any, end_ms: int) -> Any:
    """Wall clock of each step's end in ms: by the record's own pair of clocks, else as if the last step ended it."""
    import numpy as np

    ends = end_ns.astype(np.int64)
    mono, utc = (epoch.get(name) if isinstance(epoch, Mapping) else None for name in ("mono_ns", "utc_ns"))
    if isinstance(mono, int) and isinstance(utc, int):
        return (ends - mono + utc) // 1_000_000
    return end_ms - (ends[-1] - ends) // 1_000_000
