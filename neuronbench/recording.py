"""What a benchmark itself writes into its record: its own numbers, gates, remarks, spans, and the limits it checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neuronbench.definitions import DEFINITIONS
from neuronbench.definitions import metric as defined
from neuronbench.epoch import clock_epoch
from neuronbench.model import Better, Gate, Metric, closest

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.spans import Span


class SloMiss(AssertionError):
    """A limit was missed; the numbers are recorded all the same."""


class Recording:
    """Writes into the open record of one repeat."""

    def __init__(self, session: Session, opened: OpenRecord) -> None:
        self._session = session
        self._opened = opened
        self.record = opened.record
        self.point = opened.record.point

    @property
    def folder(self) -> Path:
        """Files written here become part of the receipt."""
        return self._opened.folder

    def metric(
        self,
        id: str,
        value: float | None,
        *,
        unit: str | None = None,
        better: Better = None,
        stat: str = "",
        n: int = 1,
        note: str = "",
    ) -> Metric:
        """Record a number of your own; of ids that the lane or neuronbench defines, unit and direction are known."""
        lanes = self._session.plugins.lanes
        vocabulary = lanes[self.point.lane].vocabulary if self.point.lane in lanes else DEFINITIONS
        definition = vocabulary.get(id)
        if definition is None and unit is None:
            known = closest(id, list(vocabulary))
            raise ValueError(
                f"metric {id!r} is defined neither by the lane nor by neuronbench{known}: say its unit (unit='ms')"
            )
        if definition is not None and unit not in (None, definition.unit):
            raise ValueError(f"metric {id!r} is defined in {definition.unit}; found {unit!r}")
        if definition is not None:
            made = defined(id, value, stat=stat, n=n, note=note, among=vocabulary)
        else:
            made = Metric(id=id, value=value, unit=str(unit), better=better, stat=stat, n=n, note=note)
        self.record.add(made)
        return made

    def gate(self, gate: Gate) -> None:
        """Record a check of your own; a failed one of severity `invalid` makes the record invalid."""
        self.record.gate(gate)

    def note(self, text: str) -> None:
        """A remark for the receipt and the MLflow run."""
        self.record.notes.append(str(text))

    def spans(self, spans: Sequence[Span]) -> None:
        """Keep what stages took part in what was measured, and when (`neuronbench.spans`): every span in a table, a
        sample of them as traces in MLflow. Once in a point, and after its windows: it writes a file.
        """
        from neuronbench import spans as table

        if table.TABLE in self.record.tables:
            raise RuntimeError(f"{self.point.id}: measure.spans was called before in this point: give it all at once")
        table.write(self.folder / table.FILE, spans)
        self.record.tables[table.TABLE] = table.FILE
        self.record.workload.setdefault("epoch", clock_epoch())

    def check(self, key: str, *, at_most: float | None = None, at_least: float | None = None) -> float:
        """Fail the point with outcome `slo_miss` unless the metric `key` is there and within the limits.

        A metric without a value (too few samples, or unbounded because its percentile falls on failed requests) meets
        no limit; a name that the record does not have is a mistake of the benchmark and raises `LookupError`. Returns
        the value.
        """
        if (at_most is None) == (at_least is None):
            raise ValueError("check: give exactly one of at_most and at_least")
        for limit in (at_most, at_least):
            if limit is not None and not math.isfinite(limit):
                raise ValueError(f"check {key}: expected a finite limit, found {limit!r}")
        metric = self.record.metrics.get(key)
        if metric is None:
            keys = list(self.record.metrics)
            raise LookupError(
                f"{key}: no such metric in this record{closest(key, keys)}; it has: {', '.join(sorted(keys))}"
            )
        limit = at_most if at_most is not None else at_least
        sign = "≤" if at_most is not None else "≥"
        met = metric.value is not None and (
            metric.value <= at_most if at_most is not None else metric.value >= (at_least or 0.0)
        )
        self.record.workload.setdefault("checks", []).append(
            {"metric": key, "sign": sign, "limit": limit, "observed": metric.value, "met": met}
        )
        if metric.value is None:
            raise SloMiss(f"{key} {sign} {limit:g} cannot be confirmed: no value ({metric.note or 'not measured'})")
        if not met:
            raise SloMiss(f"{key} is {metric.value:.6g} {metric.unit}, expected {sign} {limit:g}")
        return metric.value
