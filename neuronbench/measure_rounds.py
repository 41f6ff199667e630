"""What pytest-benchmark timed, as metrics and gates of a record.

Its rounds are calls (or means over the iterations of a round), all of them kept in `rounds.parquet`. On the worker's
clock they are calls of a compiled model and get the gates of one; on any other timer they are the time of a Python
function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from neuronbench import stats
from neuronbench.definitions import metric
from neuronbench.measure_device import PERCENTILES
from neuronbench.measure_gates import ESCAPE_LIMIT, escape_verdict, finite_gate, floor_gate, mask_gate
from neuronbench.model import Gate

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord

TABLE: Final = "rounds.parquet"


def record(opened: OpenRecord, rounds: Any, model: Any) -> None:
    """Add what `rounds` (pytest-benchmark's `benchmark.stats`) has; `model` when its timer is the worker's clock.

    A record that has the same metrics already, from a loop of our own, keeps them.
    """
    import numpy as np

    in_order = np.asarray(rounds.stats.data, dtype=float)
    durations = np.sort(in_order) * 1e3
    iterations = int(rounds.iterations)
    id = "call_time" if model is None else "latency"
    said = "timed by pytest-benchmark" + (f", rounds of {iterations} iterations" if iterations > 1 else "")
    metrics = []
    for p in PERCENTILES:
        found = stats.quantile(durations, p)
        confidence = stats.CONFIDENCE if found.low is not None or found.high is not None else None
        metrics.append(
            metric(id, found.value, stat=f"p{100 * p:g}", n=found.n, low=found.low, high=found.high,
                   confidence=confidence, note="; ".join(part for part in (said, found.note) if part))
        )  # fmt: skip
    metrics.append(metric(id, float(durations.mean()), stat="mean", n=len(durations), note=said))
    target = opened.record
    target.add(*(each for each in metrics if each.key not in target.metrics))
    timer = rounds.options.get("timer")
    target.workload["pytest_benchmark"] = {
        "rounds": len(durations),
        "iterations": iterations,
        "timer": getattr(timer, "__name__", str(timer)),
        "group": rounds.group,
    }
    _write_rounds(opened, in_order)
    if model is not None:
        target.gate(*_gates(float(durations[0]), model))


def _write_rounds(opened: OpenRecord, seconds: Any) -> None:
    """Every round in the order they ran: the time of a call in ns, of several iterations their mean."""
    import numpy as np
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    columns = {"round": np.arange(len(seconds), dtype="int64"), "duration_ns": seconds * 1e9}
    parquet.write_table(arrow.table(columns), opened.folder / TABLE, compression="zstd")
    opened.record.tables["rounds"] = TABLE


def _gates(least_ms: float, model: Any) -> list[Gate]:
    """Those of a loop, as far as single calls have them."""
    gates = [
        floor_gate(least_ms, model.floor),
        finite_gate([model.last_outputs()]),
        mask_gate(model),
    ]
    escaped = model.single_calls_escape()
    if escaped is not None:
        gates.append(escape_verdict(escaped, ESCAPE_LIMIT, "single calls"))
    return gates
