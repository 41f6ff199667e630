"""Evidence of accuracy in the store: found by the artifact's hash, read at report time, nothing rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Gate, Outcome, Point, Record, ResourceRef, Validity
from neuronbench.receipts import ReceiptStore, accuracy_evidence, artifact_hash, evidence, validity_now

FILES = {"model.pt2": "aa", "extra.bin": "bb"}


class Shelf:
    """A store that is filled by hand; sessions in the order they are named."""

    def __init__(self, root: Path) -> None:
        self.store = ReceiptStore(root)
        self._count = 0

    def put(
        self, session: str, *, artifact: str = "", passed: bool | None = None, speed: bool = False,
        outcome: Outcome = Outcome.OK, gates: tuple[Gate, ...] = (), **more: Any,
    ) -> Record:  # fmt: skip
        self._count += 1
        point = Point(benchmark="b", lane="encoder", backend="fake", params=FrozenMap(), id=f"p{self._count}")
        (self.store.root / session).mkdir(parents=True, exist_ok=True)
        record = Record(
            session=session, point=point, started_at=f"2026-11-30T01:00:{self._count:02}.000000+00:00", **more
        )
        if artifact and not speed:
            record.workload["accuracy"] = [{"artifact": artifact, "passed": passed}]
        if speed:
            record.resource = ResourceRef(
                id="m", kind="compiled_model", spec=FrozenMap(), facts=FrozenMap(artifact={"key": artifact})
            )
            record.add(metric("latency", 1.0, stat="p50", n=3))
        record.gate(*gates)
        staging = self.store.open(record)
        record.close(outcome, ended_at="2026-11-30T01:01:00.000000+00:00", duration_s=1.0)
        self.store.commit(record, staging)
        return record


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "receipts")


ONE, TWO, THREE = (f"20261130-01000{i}-aaaa" for i in (1, 2, 3))


def test_the_hash_is_of_the_files_and_only_without_them_of_the_key() -> None:
    files = artifact_hash({"artifact": {"key": "k", "sha256": FILES}})
    assert files == artifact_hash({"artifact": {"key": "other", "sha256": dict(reversed(FILES.items()))}})
    assert files != artifact_hash({"artifact": {"key": "k", "sha256": {**FILES, "model.pt2": "cc"}}})
    assert artifact_hash({"artifact": {"key": "k"}}) == "k"
    assert artifact_hash({}) == artifact_hash({"artifact": None}) == ""


def test_the_youngest_conclusive_record_of_the_artifact_decides(shelf: Shelf) -> None:
    assert accuracy_evidence(shelf.store, "a") is None
    first = shelf.put(ONE, artifact="a", passed=True)
    shelf.put(ONE, artifact="b", passed=False)
    found = accuracy_evidence(shelf.store, "a")
    assert found is not None
    assert (found.receipt, found.passed, found.at) == (first.receipt_id, True, first.started_at)
    second = shelf.put(TWO, artifact="a", passed=False)
    shelf.put(THREE, artifact="a", passed=None)  # too few samples
    shelf.put(THREE, artifact="a", passed=True, outcome=Outcome.TIMEOUT)
    shelf.put(THREE, artifact="a", passed=True, gates=(Gate(id="g", passed=False),))
    found = accuracy_evidence(shelf.store, "a")
    assert found is not None
    assert (found.receipt, found.passed) == (second.receipt_id, False)
    again = shelf.put(THREE, artifact="a", passed=True, outcome=Outcome.SLO_MISS)
    found = accuracy_evidence(shelf.store, "a")
    assert found is not None
    assert (found.receipt, found.passed) == (again.receipt_id, True)
    found = accuracy_evidence(shelf.store, "a", before=TWO)
    assert found is not None
    assert found.receipt == first.receipt_id
    assert accuracy_evidence(shelf.store, "a", before=ONE) is None
    assert accuracy_evidence(shelf.store, "") is None


def test_older_sessions_are_not_read_once_it_is_known(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.put(ONE, artifact="a", passed=True)
    shelf.put(TWO, artifact="a", passed=True)
    fresh = ReceiptStore(shelf.store.root)
    read: list[str] = []
    listing = fresh._listing
    monkeypatch.setattr(fresh, "_listing", lambda session: read.append(session) or listing(session))
    assert accuracy_evidence(fresh, "a") is not None
    assert read == [TWO]


def test_several_parts_must_all_pass(shelf: Shelf) -> None:
    def of(*passed: bool | None) -> tuple[str, bool | None]:
        return evidence.conclusion({"accuracy": [{"artifact": "a", "passed": each} for each in passed]})

    assert of(True, True) == ("a", True)
    assert of(True, None) == ("a", None)
    assert of(None, False) == ("a", False)
    assert evidence.conclusion({}) == evidence.conclusion({"accuracy": []}) == ("", None)
    assert evidence.conclusion({"accuracy": "what"}) == ("", None)


def provisional() -> Gate:
    return evidence.evidence_gate("a", None)


def test_later_evidence_counts_at_read_time_and_rewrites_nothing(shelf: Shelf) -> None:
    record = shelf.put(ONE, artifact="a", speed=True, gates=(provisional(),))
    folder = shelf.store.root / record.receipt_id
    written = (folder / "record.json").read_bytes()
    assert record.validity is validity_now(record, shelf.store) is Validity.PROVISIONAL
    shelf.put(TWO, artifact="a", passed=True)
    stored = shelf.store.read(folder).record
    assert stored.validity is Validity.PROVISIONAL
    assert validity_now(stored, shelf.store) is Validity.VALID
    shelf.put(THREE, artifact="a", passed=False)
    assert validity_now(stored, shelf.store) is Validity.INVALID
    assert (folder / "record.json").read_bytes() == written


def test_evidence_mends_nothing_else(shelf: Shelf) -> None:
    shelf.put(TWO, artifact="a", passed=True)
    bad = shelf.put(ONE, artifact="a", speed=True, gates=(provisional(), Gate(id="implausible", passed=False)))
    assert validity_now(bad, shelf.store) is Validity.INVALID
    unsure = Gate(id="unsure", passed=False, severity="provisional")
    other = shelf.put(ONE, artifact="a", speed=True, gates=(provisional(), unsure))
    assert validity_now(other, shelf.store) is Validity.PROVISIONAL
    cut_off = shelf.put(ONE, artifact="a", speed=True, gates=(provisional(),), outcome=Outcome.TIMEOUT)
    assert validity_now(cut_off, shelf.store) is cut_off.validity is not Validity.VALID
    informed = shelf.put(
        ONE, artifact="a", speed=True, gates=(provisional(), Gate(id="i", passed=False, severity="info"))
    )
    assert validity_now(informed, shelf.store) is Validity.VALID


@pytest.mark.parametrize(
    ("kind", "call"), [("endpoint", "measure.token_accuracy"), ("compiled_model", "measure.accuracy")]
)
def test_the_remedy_names_the_call_that_judges_this_kind_of_resource(kind: str, call: str) -> None:
    assert evidence.evidence_gate("a", None, kind=kind).message.endswith(f"run a benchmark with {call} on it")


def test_a_model_whose_artifact_is_not_known_stays_provisional() -> None:
    gate = evidence.evidence_gate("", None)
    assert (gate.passed, gate.severity) == (False, "provisional")
    assert "does not identify" in gate.message
