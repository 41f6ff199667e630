"""Published figures beside a point: which row of which table has its parameters, and what is odd about that row.

A published figure is shown, with its source and date, and a ratio is formed on the same type of instance only: figures
of unlike hardware are not compared.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Final, Literal

from neuronbench.catalog.architectures import plain_name
from neuronbench.model import Json, Point

FILES: Final = ("encoder.csv", "seq2seq.csv")
NEEDED: Final = ("model", "batch_size", "sequence_length", "dtype", "run_mode", "instance_type")
"""Parameters a point must have to be one that a table could have a row for."""
COST_TOLERANCE_USD: Final = 0.0005
"""Printed with three decimals."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about a published row that a reader must know."""

    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of a published table."""

    edition: str
    """Which collection of tables: `trn1-2024-04`."""
    table: Literal["throughput", "latency"]
    """What the row was optimised for, by its source."""
    row: int
    model: str
    task: str
    framework: str
    sdk_version: str
    instance_type: str
    instance_cores: int
    application: Literal["batch", "real_time"]
    run_mode: Literal["data_parallel", "tensor_parallel"]
    tp_degree: int | None
    dp_degree: int | None
    batch_size: int
    sequence_length: int
    output_tokens: int | None
    dtype: str
    auto_cast: str
    throughput: float
    throughput_of: Literal["items", "tokens"]
    """Per second; tokens are input and output together."""
    throughput_decimals: int
    """As printed."""
    latency_p50_ms: float
    latency_p99_ms: float
    latency_of: Literal["call", "token"]
    cost_per_1m_usd: float | None
    hourly_usd: float | None
    as_of: str
    source: str

    @property
    def implied_workers(self) -> float:
        """Model copies that must have been busy at once: throughput × P50, per item of a batch."""
        each = self.batch_size if self.latency_of == "call" else 1
        return self.throughput * self.latency_p50_ms / 1e3 / each

    @property
    def cores_used(self) -> float:
        """Cores that the run can have used: by its degrees of parallelism, else by the workers implied."""
        if self.tp_degree:
            return self.tp_degree * (self.dp_degree or 1)
        return self.implied_workers

    @property
    def cost_recomputed_usd(self) -> float | None:
        """Price of an hour / 3600 / throughput × 1e6, of the whole instance; None without a price."""
        return None if self.hourly_usd is None else self.hourly_usd / 3600 / self.throughput * 1e6

    def findings(self) -> list[Finding]:
        """What our own checks find wrong or misleading in this row."""
        return [finding for check in _CHECKS for finding in check(self)]

    def to_json(self) -> dict[str, Json]:
        derived = {
            "implied_workers": round(self.implied_workers, 3),
            "cost_recomputed_usd": self.cost_recomputed_usd,
            "findings": [asdict(finding) for finding in self.findings()],
        }
        return {**asdict(self), **derived}


def _percentiles(row: Published) -> list[Finding]:
    if row.latency_p50_ms <= row.latency_p99_ms:
        return []
    text = f"P50 {row.latency_p50_ms:g} ms is above P99 {row.latency_p99_ms:g} ms"
    return [Finding(id="p50_above_p99", text=text)]


def _part_billed_as_whole(row: Published) -> list[Finding]:
    if row.cores_used > 0.9 * row.instance_cores:
        return []
    how = f"{row.tp_degree} × {row.dp_degree}" if row.tp_degree else f"throughput × P50 / batch = {row.cores_used:.2f}"
    text = f"{how} cores of {row.instance_cores} were used; a cost by the price of the instance is that of all of them"
    return [Finding(id="part_billed_as_whole", text=text)]


def _batch_of_one(row: Published) -> list[Finding]:
    if row.application != "batch" or row.batch_size != 1:
        return []
    return [Finding(id="batch_of_one", text="called a batch application, with batch size 1")]


def _cost_of_tokens(row: Published) -> list[Finding]:
    if row.throughput_of != "tokens":
        return []
    text = "the cost column says per million inferences and divides by tokens (input and output)"
    return [Finding(id="cost_mislabelled", text=text)]


def _cost(row: Published) -> list[Finding]:
    if row.cost_per_1m_usd is None or row.cost_recomputed_usd is None:
        return []
    rounding = 0.5 * 10**-row.throughput_decimals / row.throughput
    if abs(row.cost_per_1m_usd - row.cost_recomputed_usd) <= rounding * row.cost_recomputed_usd + COST_TOLERANCE_USD:
        return []
    text = f"printed cost {row.cost_per_1m_usd:g} USD, {row.cost_recomputed_usd:.3f} by its own price and throughput"
    return [Finding(id="cost_not_reproduced", text=text)]


def _versions(row: Published) -> list[Finding]:
    table = row.edition, row.table, row.throughput_of
    versions = sorted({each.sdk_version for each in rows() if (each.edition, each.table, each.throughput_of) == table})
    if len(versions) < 2:
        return []
    return [Finding(id="mixed_versions", text=f"rows of its table were measured on SDK {', '.join(versions)}")]


_CHECKS: Final = (_percentiles, _part_billed_as_whole, _batch_of_one, _cost_of_tokens, _cost, _versions)


def rows() -> Sequence[Published]:
    """Every published row, in the order of the files."""
    return [row for file in FILES for row in _read(file)]


def match(point: Point) -> Published | None:
    """The row with the parameters of `point`; of several editions the newest, unless the point names one (`edition`).

    A point needs all of `NEEDED`; `task`, `output_tokens`, `tp_degree` and `application` must fit where both have them.
    """
    if any(point.get(name) is None for name in NEEDED):
        return None
    found = [row for row in rows() if _fits(row, point)]
    return max(found, key=lambda row: row.as_of, default=None)


def _fits(row: Published, point: Point) -> bool:
    same = {name: point.get(name) == getattr(row, name) for name in NEEDED if name != "model"}
    told = {
        name: point.get(name) == getattr(row, name)
        for name in ("edition", "task", "application", "output_tokens", "tp_degree")
        if point.get(name) is not None and getattr(row, name) is not None
    }
    return all(same.values()) and all(told.values()) and plain_name(str(point["model"])) == plain_name(row.model)


@functools.cache
def _read(name: str) -> tuple[Published, ...]:
    text = (resources.files("neuronbench.catalog") / "published" / name).read_text(encoding="utf-8")
    return tuple(_parsed(entry) for entry in csv.DictReader(text.splitlines()))


def _parsed(entry: Mapping[str, str]) -> Published:
    values: dict[str, Any] = dict(entry)
    for name in ("row", "instance_cores", "batch_size", "sequence_length"):
        values[name] = int(entry[name])
    for name in ("tp_degree", "dp_degree", "output_tokens"):
        values[name] = int(entry[name]) if entry[name] else None
    for name in ("throughput", "latency_p50_ms", "latency_p99_ms"):
        values[name] = float(entry[name])
    for name in ("cost_per_1m_usd", "hourly_usd"):
        values[name] = float(entry[name]) if entry[name] else None
    values["throughput_decimals"] = len(entry["throughput"].partition(".")[2])
    return Published(**values)
