"""The head's run, with nodes that do what a test says: what they hand in, how they end, and who is taken for lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from neuronbench_ray.place import fleet, run
from neuronbench_ray.place.agent import Job, Order
from neuronbench_ray.place.groups import Box, Group
from neuronbench_ray.place.items import Item, Plan
from neuronbench_ray.place.landing import Landing
from neuronbench_ray.place.ledger import Ledger
from neuronbench_ray.place.run import Member, Result, Run
from neuronbench_ray.place.screen import Screen

from neuronbench import Outcome, Point
from neuronbench.model import Environment, FrozenMap, Record
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.contents import contents

Look = Callable[[str, list[str]], Mapping[str, Any]]
"""Attempt, names of its points → what the agent says of it."""


@dataclass(kw_only=True)
class FakeNode:
    """A node whose agent answers at once; `look` says what."""

    name: str
    look: Look
    files: Path
    session: str
    jobs: dict[str, Job] = field(default_factory=dict)
    kept: dict[str, Path] = field(default_factory=dict)
    """Attempt → folder of its receipts."""

    def actor(self) -> Any:
        def called(function: Callable[..., Any]) -> Any:
            return SimpleNamespace(remote=lambda *args: Ref(lambda: function(*args)))

        def start(job: Job) -> None:
            self.jobs[job.attempt] = job
            self.kept[job.attempt] = self.files / self.name / job.attempt

        return SimpleNamespace(
            cores=called(lambda: None), start=called(start), finish=called(lambda attempt: None),
            look=called(lambda attempt, known: self._look(attempt, known)), read=called(self._read),
        )  # fmt: skip

    def _look(self, attempt: str, known: Sequence[str]) -> dict[str, Any]:
        told = {"notes": [], "tail": "", **self.look(attempt, list(self.jobs[attempt].names))}
        store = ReceiptStore(self.kept[attempt])
        receipts = {}
        for name, outcome in told.pop("made", {}).items():
            record = Record(
                point=point(name.partition("-")[0]), session=self.session, started_at="2026-11-30T01:23:45+00:00",
                environment=Environment(),
            )  # fmt: skip
            staging = store.open(record)
            record.close(outcome, ended_at="2026-11-30T01:23:46+00:00", duration_s=1.0)
            folder = store.commit(record, staging)
            receipts[name] = {path: (fact.sha256, fact.bytes) for path, fact in contents(folder).items()}
        return {**told, "receipts": receipts}

    def _read(self, attempt: str, receipt: str, path: str, offset: int, size: int) -> bytes:
        (folder,) = self.kept[attempt].glob(f"*/{receipt}")
        return (folder / path).read_bytes()[offset : offset + size]


@dataclass(frozen=True, eq=False)
class Ref:
    value: Callable[[], Any]


def point(id_: str) -> Point:
    return Point(benchmark="b.py::b", lane="serving", backend="cpu", params=FrozenMap(), id=id_)


def go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: Mapping[str, Look], *, points: int = 2, retries: int = 2,
    each: int = 2, ready: Callable[[list[Any]], list[Any]] = lambda refs: refs,
) -> tuple[Result, list[Record], list[FakeNode]]:  # fmt: skip
    """A run of groups of `each` points over fake nodes."""
    store = ReceiptStore(tmp_path / "store")
    session = store.begin_session(command=[])
    items = [Item(name=f"p{n}--r1", nodeid=f"x[{n}]", point=point(f"p{n}"), repeat=1) for n in range(1, points + 1)]
    boxes = [Box(id=name, name=name, cores=0, plan=Plan(items=tuple(items))) for name in looks]
    groups = [
        Group(id=f"g{n // each + 1}", items=tuple(items[n : n + each]), cores=0, boxes=frozenset(looks))
        for n in range(0, points, each)
    ]
    nodes = {
        name: FakeNode(name=name, look=look, files=tmp_path / "nodes", session=session) for name, look in looks.items()
    }
    known = [
        fleet.Node(id=name, name=name, address="", alive=True, cores=0, cpus=1, head=False, accelerator="")
        for name in looks
    ]
    monkeypatch.setattr(fleet, "nodes", lambda: known)
    monkeypatch.setattr(fleet, "lease", lambda node, order, shipment: nodes[node.id].actor())
    monkeypatch.setattr(fleet, "ready", lambda refs, timeout_s: ready(list(refs)))
    monkeypatch.setattr(fleet, "value", lambda ref, timeout_s=None: ref.value())
    monkeypatch.setattr(fleet, "end", lambda actor: None)
    monkeypatch.setattr(run, "TICK_S", 0.01)
    members = [Member(node=node, box=box) for node, box in zip(known, boxes, strict=True)]
    result = Run(
        Ledger(groups, retries=retries), members, Landing(store, session),
        order=Order(session=session, node="", args=(), within=""), shipment=None, screen=Screen(), patience_s=0.0,
        join=lambda node: None, meet=lambda node, ref: "",
    ).go()  # fmt: skip
    return result, [receipt.record for receipt in store.iter()], list(nodes.values())


def done(attempt: str, names: list[str]) -> Mapping[str, Any]:
    return {"returncode": 0, "made": dict.fromkeys(names, Outcome.OK)}


def test_a_point_whose_pytest_is_told_to_end_by_its_host_is_placed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine does that goes down: SIGTERM to all, pytest closes its record and ends with 2."""

    def goes_down(attempt: str, names: list[str]) -> Mapping[str, Any]:
        notes = [{"what": "begins", "name": names[0]}]
        return {"returncode": 2, "notes": notes, "made": {names[0]: Outcome.INTERRUPTED}, "tail": "! Interrupted !"}

    result, records, _ = go(tmp_path, monkeypatch, {"n1": goes_down, "n2": done}, points=4)
    assert (result.missing, result.interrupted) == ([], False)
    found = {record.receipt_name: record for record in records}
    assert {name: found[f"{name}--r1"].outcome for name in ("p1", "p2", "p3", "p4")} == dict.fromkeys(
        ("p1", "p2", "p3", "p4"), Outcome.OK
    )
    lost = found["p1--r1--lost1"]
    assert (lost.outcome, lost.error and lost.error.kind) == (Outcome.INTERRUPTED, "session_died")
    assert lost.tags["ray.node"] == "n1"


def test_a_pytest_that_cannot_collect_is_not_started_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _, nodes = go(tmp_path, monkeypatch, {"n1": lambda attempt, names: {"returncode": 2, "tail": "! errors !"}})
    assert result.missing == ["p1--r1", "p2--r1"]
    assert len(nodes[0].jobs) == 1


def test_who_waits_for_a_busy_head_is_not_taken_for_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head takes in a receipt of one node for longer than a node may be silent: the other one lives on."""
    clock = SimpleNamespace(s=0.0)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock.s, sleep=lambda _: None))
    looks = {"n1": 0}

    def slow(attempt: str, names: list[str]) -> Mapping[str, Any]:
        looks["n1"] += 1
        return {"returncode": None} if looks["n1"] < 5 else done(attempt, names)

    def large(attempt: str, names: list[str]) -> Mapping[str, Any]:
        clock.s += 2 * run.SILENT_S  # of the transfer, or of a store that does not answer
        return done(attempt, names)

    result, records, _ = go(tmp_path, monkeypatch, {"n1": slow, "n2": large}, points=2, each=1)
    assert result.missing == []
    assert sorted(record.receipt_name for record in records) == ["p1--r1", "p2--r1"]


def test_a_node_that_is_silent_is_given_up_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(s=0.0)

    def sleep(seconds: float) -> None:
        clock.s += 10.0

    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock.s, sleep=sleep))
    asked = {"n1": 0}

    def away(attempt: str, names: list[str]) -> Mapping[str, Any]:
        asked["n1"] += 1
        raise TimeoutError("away")

    monkeypatch.setattr(fleet, "kind_of", lambda error: "away")
    result, records, _ = go(tmp_path, monkeypatch, {"n1": away}, points=1, each=1, retries=0)
    assert result.missing == ["p1--r1"]
    (lost,) = records
    assert lost.error is not None
    assert (lost.error.kind, "has not answered" in lost.error.message) == ("worker_lost", True)
    assert asked["n1"] >= run.SILENT_S / 10


def test_a_box_that_somebody_else_has_is_told_of_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(s=0.0)

    def sleep(seconds: float) -> None:
        clock.s += 10.0

    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock.s, sleep=sleep))
    held = 2 * fleet.TAKEN_S  # for so long another run has it
    result, _, _ = go(tmp_path, monkeypatch, {"n1": done}, ready=lambda refs: refs if clock.s > held else [])
    assert result.missing == []
    assert capsys.readouterr().out.count("n1 could not be leased within 60 s") == 1
