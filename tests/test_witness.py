"""A resource that testifies about its windows: all of it is recorded, and what it raises costs only that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from neuronbench.definitions import metric
from neuronbench.measure_serving import _testimony
from neuronbench.model import FrozenMap, Gate, Point, Record, Validity
from neuronbench.protocols import SamplerSpec
from neuronbench.witness import SeenWindow, Witness


class Server:
    """As far as a window's record cares."""

    def __init__(self, raises: bool = False) -> None:
        self.raises = raises
        self.seen: SeenWindow | None = None

    def samplers(self) -> Sequence[SamplerSpec]:
        return []

    def testify(self, seen: SeenWindow) -> Any:
        self.seen = seen
        if self.raises:
            raise RuntimeError("its log is gone")
        from neuronbench.witness import Testimony

        return Testimony(
            metrics=[metric("prefill_fill", 0.5, stat="predicted", n=3)],
            gates=[Gate(id="compiled_in_window", passed=False, observed=1, limit=0)],
            facts={"buckets": [128]},
            tables={"buckets": "buckets.parquet"},
            notes=["three prompts"],
        )


def recorded(endpoint: Any, folder: Path) -> Record:
    point = Point(benchmark="b.py::f", lane="serving", backend="cpu", params=FrozenMap(), id="p")
    record = Record(session="s", point=point, workload={"plan": "x"})
    opened: Any = SimpleNamespace(record=record, folder=folder)
    reduction: Any = SimpleNamespace(table=folder / "requests.parquet", window={"start_ns": 1, "end_ns": 2})
    sampled: Any = object()
    _testimony(opened, endpoint, reduction, sampled)
    return record


def test_all_that_is_said_is_in_the_record(tmp_path: Path) -> None:
    server = Server()
    assert isinstance(server, Witness)
    record = recorded(server, tmp_path)
    assert record.metrics["prefill_fill_predicted_share"].value == 0.5
    assert record.validity is Validity.INVALID
    assert record.workload["server"] == {"buckets": [128]}
    assert record.tables == {"buckets": "buckets.parquet"}
    assert record.notes == ["three prompts"]
    assert server.seen is not None
    assert server.seen.window == {"start_ns": 1, "end_ns": 2}
    assert server.seen.workload["plan"] == "x"


def test_a_witness_that_raises_marks_the_record_and_loses_nothing_else(tmp_path: Path) -> None:
    record = recorded(Server(raises=True), tmp_path)
    assert record.validity is Validity.PROVISIONAL
    assert record.gates[0].id == "testimony"
    assert "its log is gone" in record.gates[0].message


def test_a_server_that_says_nothing_is_as_before(tmp_path: Path) -> None:
    record = recorded(object(), tmp_path)
    assert not record.gates
    assert "server" not in record.workload
