"""The receipts of a report: readings of all of them, and the whole records of the few that are looked at closely."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.compare.reading import Keep, Reading
from neuronbench.model import Json, Record, RecordKind
from neuronbench.receipts import ReceiptError, ReceiptStore
from neuronbench.receipts.documents import parse
from neuronbench.receipts.receipt import RECORD
from neuronbench.report.page.rows import Row, as_float, link

if TYPE_CHECKING:
    import pyarrow

    from neuronbench.receipts import Receipt

BOUNDS: Final = 2_000
"""Receipts that are opened again for the bounds of their metrics."""

FIGURES: Final = frozenset(
    {
        "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "e2e_p50_ms", "output_throughput_tok_s",
        "request_throughput_req_s", "in_flight_requests", "goodput_req_s", "attainment_share", "achieved_rate_req_s",
        "max_rate_under_slo_req_s", "latency_p50_ms", "latency_p99_ms", "throughput_items_s",
        "total_token_throughput_tok_s", "train_throughput_tok_s", "mfu_pct", "memory_bandwidth_max_GB_s",
        "matmul_rate_max_GFLOP_s",
    }
)  # fmt: skip
"""Metrics that figures and derived tables need beside a lane's headline."""
_PREFIXES: Final = ("cost_", "measured_over_published", "agreement_", "accuracy_ratio")


def keeper(headline: Callable[[str], Sequence[str]]) -> Keep:
    """Which metrics a report reads of a record: the lane's headline and what figures need; all where it has none."""

    known: dict[tuple[str, tuple[str, ...]], Collection[str]] = {}

    def keep(kind: RecordKind, lane: str, keys: Collection[str]) -> Iterable[str]:
        if kind != "point":
            return keys
        shape = lane, tuple(keys)  # records of one benchmark have the same metrics
        if shape not in known:
            wanted = set(headline(lane))
            chosen = [key for key in keys if key in wanted or key in FIGURES or key.startswith(_PREFIXES)]
            known[shape] = chosen if wanted.intersection(keys) else shape[1]
        return known[shape]

    return keep


@dataclass(kw_only=True)
class Source:
    """Where numbers come from, and how a page refers to them. What cannot be read is told in `problems`."""

    store: ReceiptStore
    base: Path
    """Folder that the report is written to: links are relative to it."""
    problems: list[str] = field(default_factory=list)
    progress: Callable[[str], None] = lambda text: None
    _receipts: dict[Path, Receipt | None] = field(default_factory=dict)
    _documents: dict[Path, Mapping[str, Any]] = field(default_factory=dict)

    def link(self, reading: Reading, file: str = RECORD) -> str:
        return link(reading.path, self.base, file)

    def receipt(self, reading: Reading) -> Receipt | None:
        """The whole receipt; None, and a line in `problems`, when it cannot be read."""
        if reading.path not in self._receipts:
            try:
                self._receipts[reading.path] = self.store.read(reading.path.absolute())
            except (TypeError, ValueError, RecursionError) as error:  # a report of thousands does not fail over one
                self._receipts[reading.path] = None
                self._complain(error if isinstance(error, ReceiptError) else f"{reading.path}: {error}")
        return self._receipts[reading.path]

    def record(self, reading: Reading) -> Record | None:
        found = self.receipt(reading)
        return None if found is None else found.record

    def table(self, reading: Reading, name: str, columns: Sequence[str] | None = None) -> pyarrow.Table | None:
        """A table beside the record; None where there is none, and a line in `problems` where it is damaged."""
        receipt = self.receipt(reading)
        if receipt is None or name not in receipt.record.tables:
            return None
        try:
            return receipt.table(name, columns)
        except ReceiptError as error:
            self._complain(error)
            return None

    def bounds(self, reading: Reading, key: str) -> tuple[float | None, float | None]:
        """Bounds of a metric within its repeat, which readings do not keep."""
        metric = self._document(reading).get("metrics", {}).get(key)
        if not isinstance(metric, Mapping):
            return None, None
        low, high = metric.get("low"), metric.get("high")
        return as_float(low), as_float(high)

    def notes(self, reading: Reading) -> list[str]:
        """What a record says of itself: random weights, what was missing, what could not be compared."""
        found = self._document(reading).get("notes")
        return [note for note in found if isinstance(note, str)] if isinstance(found, list) else []

    def _document(self, reading: Reading) -> Mapping[str, Any]:
        """The JSON of a receipt that a reader has checked before, for as many as are affordable."""
        found = self._documents.get(reading.path)
        if found is None:
            if len(self._documents) >= BOUNDS:
                return {}
            try:
                found = parse(reading.path / RECORD)
            except ReceiptError:
                found = {}
            self._documents[reading.path] = found
        return found

    def _complain(self, error: ReceiptError | str) -> None:
        if str(error) not in self.problems:
            self.problems.append(str(error))


def cores_of(record: Record) -> tuple[float, str] | None:
    """Cores that a record's resource had, and by what it is known; None where nothing says it."""
    if record.resource is not None:
        spec, facts = record.resource.spec, record.resource.facts
        for where, told in (("facts", facts), ("spec", spec)):
            for name in ("cores", "cores_used", "neuroncores"):
                if _is_count(told.get(name)):
                    return float(told[name]), f"resource.{where}.{name}"
        degree = spec.get("tensor_parallel_size") or _in(spec.get("engine_args"), "tensor_parallel_size", "tp_degree")
        if _is_count(degree):
            copies = spec.get("data_parallel_size") or _in(spec.get("engine_args"), "data_parallel_size")
            return float(degree) * (float(copies) if _is_count(copies) else 1.0), "tensor parallel degree"
        workers = max((loop["workers"] for loop in _loops(record) if _is_count(loop.get("workers"))), default=0)
        if workers and record.point.backend != "cpu":
            return float(workers), "workers"
    facts = record.environment.facts
    for name in ("backend.cores", "neuron.cores", "host.cores"):
        if _is_count(facts.get(name)):
            return float(facts[name]), f"all {name}"
    return None


def _loops(record: Record) -> list[Mapping[str, Json]]:
    loops = record.workload.get("loops")
    return [loop for loop in loops if isinstance(loop, Mapping)] if isinstance(loops, list) else []


def _in(value: Json, *names: str) -> Json:
    if not isinstance(value, Mapping):
        return None
    return next((value[name] for name in names if value.get(name) is not None), None)


def _is_count(value: Json) -> bool:
    return (as_float(value) or 0.0) > 0


def instance_of(record: Record) -> str:
    """The type of instance it was measured on, by its environment; empty when nothing says it."""
    facts = record.environment.facts
    return str(facts.get("backend.instance_type") or facts.get("neuron.instance_type") or "")


@dataclass(kw_only=True)
class Content:
    """All that a report is made from."""

    label: str
    """What was asked for, with ids of sessions for words such as `latest`; the page is named after it."""
    rows: Sequence[Row]
    """Of points."""
    boots: Sequence[Reading]
    """Records of boots and compilations."""
    source: Source
    headline: Callable[[str], Sequence[str]]
    """Lane → metric keys."""
    titles: Callable[[str], str] = lambda lane: ""
    command: str = ""
    """What made the report, to make it again."""
    created: str = ""
    """UTC, ISO 8601."""
    version: str = ""
    left_out: Sequence[str] = ()
    """Receipts that could not be read."""
    environments: Mapping[str, str] = field(init=False)
    """Key → `E1`, `E2`, ... in order of appearance."""

    def __post_init__(self) -> None:
        keys = dict.fromkeys(reading.environment_key for reading in [*self.readings, *self.boots])
        self.environments = {key: f"E{number}" for number, key in enumerate(keys, start=1)}

    @property
    def readings(self) -> list[Reading]:
        return [reading for row in self.rows for reading in row.readings]
