"""Receipts: whole or absent, never overwritten, readable across schemas, recovered after a kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench import receipts
from neuronbench.config import Settings
from neuronbench.definitions import metric
from neuronbench.model import (
    Environment,
    Failure,
    FrozenMap,
    Gate,
    Metric,
    Outcome,
    Point,
    Provenance,
    Record,
    ResourceRef,
    Validity,
    canonical_json,
)
from neuronbench.receipts import ReceiptError, ReceiptStore

ROOT = Path(__file__).resolve().parent.parent


def make_point(**params: Any) -> Point:
    params = {"concurrency": 8, **params}
    return Point(
        benchmark="benchmarks/serving/bench_closed_loop.py::bench_closed_loop",
        lane="serving",
        backend="cpu",
        params=FrozenMap(params),
        axes=("concurrency",),
        source_hash="abc",
        id=f"serving-closed_loop-c{params['concurrency']}",
    )


def make_record(session: str, *, repeat: int = 1, **fields: Any) -> Record:
    return Record(
        session=session,
        point=fields.pop("point", make_point()),
        repeat=repeat,
        started_at=fields.pop("started_at", receipts.utc_now()),
        environment=fields.pop(
            "environment", Environment(facts=FrozenMap({"host.cpu": "x", "host.cores": 2}), key="e1")
        ),
        **fields,
    )


def close(record: Record, outcome: Outcome = Outcome.OK) -> Record:
    record.close(outcome, ended_at=receipts.utc_now(), duration_s=1.5)
    return record


@pytest.fixture
def store(tmp_path: Path) -> ReceiptStore:
    return ReceiptStore(tmp_path / "receipts")


@pytest.fixture
def session(store: ReceiptStore) -> str:
    return store.begin_session()


def put(store: ReceiptStore, record: Record, outcome: Outcome = Outcome.OK) -> Path:
    staging = store.open(record)
    return store.commit(close(record, outcome), staging)


def full_record(session: str) -> Record:
    record = make_record(session, provenance=Provenance.SIMULATED)
    record.add(metric("ttft", 12.5, stat="p50", n=100, low=12.0, high=13.0, confidence=0.95))
    record.add(metric("ttft", None, stat="p99", n=100, note="needs 368 requests"))
    record.add(Metric(id="odd", value=-1.0, unit="things per s²", version=3))
    record.gate(
        Gate(id="timer", passed=True, observed=1, limit={"at_most": 2}),
        Gate(id="noise", passed=False, observed=[1.0, None], severity="provisional", message="noisy"),
        Gate(id="load", passed=None, severity="info", unit="%"),
    )
    record.error = Failure(kind="host_oom", phase="window", message="m", causal_line="line ü\n", exit_status=-9)
    record.resource = ResourceRef(
        id="endpoint-1", kind="endpoint", spec=FrozenMap(model="m"), facts=FrozenMap(port=1), boot_receipt="s/boot"
    )
    record.workload = {"plan_hash": "p", "window": {"start_ns": 1, "end_ns": 2}}
    record.notes = ["a note"]
    record.tags = {"a": "b"}
    record.reason = "why"
    return record


# -- round trip ------------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_written(store: ReceiptStore, session: str) -> None:
    record = full_record(session)
    staging = store.open(record)
    pq.write_table(pa.table({"request_id": [1, 2]}), staging.folder / "requests.parquet")
    (staging.folder / "logs").mkdir()
    (staging.folder / "logs" / "server.log").write_text("hello")
    record.tables["requests"] = "requests.parquet"
    record.attachments.append("logs/server.log")
    path = store.commit(close(record), staging)

    receipt = store.read(path)
    assert receipt.record == record
    assert receipt.record.closed
    assert receipt.record.validity is Validity.PROVISIONAL
    assert canonical_json(receipt.record.to_json()) == canonical_json(record.to_json())
    assert receipt.table("requests").column("request_id").to_pylist() == [1, 2]
    assert receipt.table("requests", columns=["other", "request_id"]).column_names == ["request_id"]
    assert receipt.fingerprint == record.point.fingerprint
    assert sorted(p.name for p in path.iterdir()) == ["logs", "record.json", "requests.parquet"]
    with pytest.raises(ReceiptError, match="no table 'steps'; it has: requests"):
        receipt.table("steps")
    top = list(json.loads((path / "record.json").read_text()))
    for key in (
        "schema_version",
        "point",
        "outcome",
        "validity",
        "gates",
        "metrics",
        "resource",
        "environment",
        "error",
    ):
        assert key in top
    assert store.read(record.receipt_id).record == record


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    params=st.dictionaries(st.text(max_size=10), json_values, max_size=4), text=st.text(), value=st.floats(-1e9, 1e9)
)
def test_any_json_survives_decoding(params: dict[str, Any], text: str, value: float) -> None:
    record = make_record("s", point=make_point(extra=params), reason=text)
    record.add(metric("ttft", value, stat="p50", note=text))
    document = json.loads(json.dumps(close(record).to_json()))
    assert receipts.decode_record(document, Path("record.json")) == record


def test_bytes_that_are_no_text_do_not_cost_the_record(store: ReceiptStore, session: str) -> None:
    record = make_record(session)
    record.error = Failure(kind="unclassified", phase="boot", message=b"\xff oops".decode("utf-8", "surrogateescape"))
    receipt = store.read(put(store, record, Outcome.ERROR))
    assert receipt.record.error is not None
    assert receipt.record.error.message == "? oops"
    assert [header.outcome for header in store.headers(session)] == [Outcome.ERROR]


# -- never overwritten -----------------------------------------------------------------------------------------------


def test_an_existing_receipt_is_refused_and_both_are_named(store: ReceiptStore, session: str) -> None:
    path = put(store, make_record(session))
    before = (path / "record.json").read_bytes()
    with pytest.raises(ReceiptError) as error:
        store.open(make_record(session))
    assert str(path) in str(error.value)
    assert make_record(session).receipt_id in str(error.value)
    assert (path / "record.json").read_bytes() == before
    put(store, make_record(session, repeat=2))


def test_a_receipt_that_appears_while_another_is_prepared_wins(store: ReceiptStore, session: str) -> None:
    record = make_record(session)
    staging = store.open(record)
    winner = staging.folder.parent / staging.name
    winner.mkdir()
    (winner / "record.json").write_text("{}")
    with pytest.raises(ReceiptError, match="never overwritten"):
        store.commit(close(record), staging)
    assert (winner / "record.json").read_text() == "{}"
    assert (staging.folder / "record.json").is_file()


def test_the_same_receipt_cannot_be_opened_twice(store: ReceiptStore, session: str) -> None:
    store.open(make_record(session))
    with pytest.raises(ReceiptError, match="being written already"):
        store.open(make_record(session))


def test_what_commit_refuses(store: ReceiptStore, session: str) -> None:
    record = make_record(session)
    staging = store.open(record)
    with pytest.raises(ReceiptError, match="still open"):
        store.commit(record, staging)
    with pytest.raises(ReceiptError, match="does not belong"):
        store.commit(close(make_record(session, repeat=2)), staging)
    for file in ("requests.parquet", "../../escape"):
        record = make_record(session)
        record.attachments = [file]
        with pytest.raises(ReceiptError, match="expected a file in there"):
            store.commit(close(record), staging)
    for name in ("a/b", ".hidden", "..", "a\0b"):
        with pytest.raises(ReceiptError, match="plain folder name"):
            store.open(make_record(session, name=name))


def test_numbers_that_json_cannot_hold_are_refused(store: ReceiptStore, session: str) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        metric("ttft", 1.0, stat="p50", low=float("nan"))
    record = make_record(session)
    record.workload["x"] = float("nan")
    staging_record = make_record(session)
    staging = store.open(staging_record)
    with pytest.raises(ValueError):
        store.commit(close(record), staging)


def test_a_receipt_does_not_change_but_for_the_markers(store: ReceiptStore, session: str) -> None:
    path = put(store, make_record(session))
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert store.read(path).delivery("mlflow") is None
    store.mark(path, "mlflow", state="pending", reason="unreachable", target="http://a")
    store.mark(path, "mlflow", state="delivered", reference="run1", target="http://a")
    marker = store.read(path).delivery("mlflow")
    assert marker is not None
    assert (marker.state, marker.reference, marker.reason, marker.attempts) == ("delivered", "run1", "", 2)
    assert marker.target == "http://a"
    after = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert set(after) - set(before) == {path / "sinks" / "mlflow.json"}
    assert all(after[p] == before[p] for p in before)
    with pytest.raises(ValueError, match="state"):
        store.mark(path, "mlflow", state="lost")


# -- reading what is not right ---------------------------------------------------------------------------------------


def damage(path: Path, change: Any) -> None:
    document = json.loads((path / "record.json").read_text())
    change(document)
    (path / "record.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema_version=99), "schema_version: this neuronbench reads up to 1, found 99"),
        (lambda d: d.update(schema_version=-1), "schema_version: -1 is older"),
        (lambda d: d.update(schema_version="1"), "schema_version: expected a whole number"),
        (lambda d: d.pop("schema_version"), "schema_version: expected a whole number, found None"),
        (lambda d: d.pop("point"), "point: expected an object, found null"),
        (lambda d: d["point"].pop("id"), r"point\.id: expected text, found nothing"),
        (lambda d: d["point"].update(params=[]), r"point\.params: expected an object"),
        (lambda d: d.update(outcome="great"), "outcome: expected one of ok, slo_miss"),
        (lambda d: d.update(outcome=None), "outcome: expected the outcome of a closed record"),
        (lambda d: d.update(validity="invalid"), "validity: expected 'provisional'"),
        (lambda d: d.update(repeat=True), "repeat: expected a whole number, found true"),
        (lambda d: d.update(kind="thing"), "kind: expected one of point, boot"),
        (lambda d: d["metrics"]["ttft_p50_ms"].update(value="fast"), r"metrics\.ttft_p50_ms\.value: expected a number"),
        (lambda d: d["metrics"]["ttft_p50_ms"].update(definition="ttft"), r"metrics\.ttft_p50_ms\.definition"),
        (lambda d: d["metrics"]["ttft_p50_ms"].update(better="more"), "better: expected lower, higher or null"),
        (lambda d: d["metrics"].update(other=d["metrics"]["ttft_p50_ms"]), "make the key 'ttft_p50_ms'"),
        (lambda d: d["gates"].append(3), r"gates\[3\]: expected an object, found 3"),
        (lambda d: d["gates"][0].update(passed="yes"), r"gates\[0\]\.passed"),
        (lambda d: d["gates"][0].update(severity="bad"), r"gates\[0\]\.severity"),
        (lambda d: d.update(tables={"requests": 1}), "tables: expected an object of texts"),
        (lambda d: d.update(notes="text"), "notes: expected a list of texts"),
        (lambda d: d["error"].update(exit_status="9"), r"error\.exit_status: expected a whole number"),
    ],
)
def test_a_malformed_record_names_file_and_key(store: ReceiptStore, session: str, change: Any, message: str) -> None:
    path = put(store, full_record(session))
    damage(path, change)
    with pytest.raises(ReceiptError, match=message) as error:
        store.read(path)
    assert str(path / "record.json") in str(error.value)


def test_a_truncated_record_and_a_missing_one(store: ReceiptStore, session: str) -> None:
    good = put(store, make_record(session))
    bad = put(store, make_record(session, repeat=2))
    (bad / "record.json").write_bytes((bad / "record.json").read_bytes()[:200])
    with pytest.raises(ReceiptError, match=r"truncated or damaged.*record\.json|record\.json.*truncated or damaged"):
        store.read(bad)
    with pytest.raises(ReceiptError, match="found none"):
        store.read(store.root / session / "nothing")
    with pytest.raises(ReceiptError, match="truncated"):
        list(store.iter(session))
    errors: list[ReceiptError] = []
    assert [r.path for r in store.iter(session, on_error=errors.append)] == [good]
    assert len(errors) == 1
    (bad / "record.json").write_text("[]")
    with pytest.raises(ReceiptError, match="expected an object"):
        store.read(bad)


def test_a_damaged_table_says_which(store: ReceiptStore, session: str) -> None:
    record = make_record(session)
    staging = store.open(record)
    (staging.folder / "requests.parquet").write_text("nothing of the kind")
    record.tables["requests"] = "requests.parquet"
    path = store.commit(close(record), staging)
    with pytest.raises(ReceiptError, match=r"requests\.parquet: expected a Parquet table"):
        store.read(path).table("requests")


def test_the_schema_before_this_one_is_lifted(store: ReceiptStore, session: str) -> None:
    record = full_record(session)
    record.provenance = Provenance.MEASURED
    path = put(store, record)

    def to_schema_0(document: dict[str, Any]) -> None:
        document["schema_version"] = 0
        del document["provenance"], document["kind"]

    damage(path, to_schema_0)
    assert store.read(path).record == record
    header = next(ReceiptStore(store.root).headers(session))
    assert (header.kind, header.provenance) == ("point", Provenance.MEASURED)


# -- sessions --------------------------------------------------------------------------------------------------------


def test_session_ids_sort_by_time_and_never_collide(tmp_path: Path) -> None:
    now = datetime(2026, 11, 30, 1, 23, 45, tzinfo=UTC)
    first = [receipts.new_session_id(tmp_path, now=now) for _ in range(300)]
    later = receipts.new_session_id(tmp_path, now=datetime(2026, 11, 30, 1, 23, 46, tzinfo=UTC))
    assert len(set(first)) == 300
    assert all(name.startswith("20261130-012345-") for name in first)
    assert sorted([*first, later])[-1] == later
    assert all((tmp_path / name).is_dir() for name in first)


def test_the_manifest_of_a_session(store: ReceiptStore, tmp_path: Path) -> None:
    config = Settings(root=tmp_path, data_root=tmp_path, tracking_uri="https://me:pw@host/x", repeats=3)
    command = ["pytest", "benchmarks", "--token=abcdef", "-m", "cpu", "http://u:p@h/", "--api-key", "hunter2"]
    session = store.begin_session(config, command=command)
    store.update_session(session, planned=("a", "b"))
    assert store.manifest(session).ended_at == ""
    store.end_session(session, 1)
    manifest = ReceiptStore(store.root).manifest(session)
    assert manifest.command == (
        "pytest", "benchmarks", "--token=[redacted]", "-m", "cpu", "http://[redacted]@h/", "--api-key", "[redacted]",
    )  # fmt: skip
    assert manifest.settings["repeats"] == 3
    assert manifest.settings["tracking_uri"] == "https://[redacted]@host/x"
    assert (manifest.planned, manifest.exit_status, manifest.host) == (("a", "b"), 1, socket.gethostname())
    assert manifest.owner["pid"] == os.getpid()
    assert receipts.may_be_alive(manifest.owner)
    assert manifest.ended_at > manifest.started_at
    text = (store.root / session / "session.json").read_text()
    assert "hunter2" not in text
    assert "pw" not in text


def test_latest_session(store: ReceiptStore) -> None:
    assert store.latest_session() is None
    assert store.sessions() == []
    for name in ("20260101-000000-aaaa", "20260102-000000-aaaa", "vllm-import"):
        (store.root / name).mkdir(parents=True)
    assert store.latest_session() == "20260102-000000-aaaa"
    assert store.latest_session(before="20260102-000000-aaaa") == "20260101-000000-aaaa"
    with pytest.raises(ReceiptError, match=r"no such session; known: .*vllm-import"):
        list(store.headers("20250101-000000-aaaa"))


# -- selection -------------------------------------------------------------------------------------------------------


def test_iter_filters_and_ignores_other_folders(store: ReceiptStore, session: str) -> None:
    put(store, make_record(session))
    put(store, make_record(session, name="boot-1", kind="boot"), Outcome.ERROR)
    other = store.begin_session()
    put(store, make_record(other))
    store.open(make_record(session, repeat=7))
    (store.root / session / "pids").mkdir()
    assert len(list(store.iter())) == 3
    assert [r.record.kind for r in store.iter(session)] == ["point", "boot"]
    assert [h.name for h in store.headers(kind="boot", outcome=Outcome.ERROR)] == ["boot-1"]
    assert list(store.headers(lane="nothing")) == []
    assert {h.session for h in store.headers(backend="cpu")} == {session, other}


def test_find_takes_only_what_resume_may_take(store: ReceiptStore, session: str) -> None:
    point = make_point()
    key = point.fingerprint
    assert store.find(key, "e1") is None
    put(store, make_record(session), Outcome.FAILED)
    put(store, make_record(session, repeat=2, provenance=Provenance.IMPORTED))
    invalid = make_record(session, repeat=3)
    invalid.gate(Gate(id="timer", passed=False))
    put(store, invalid)
    put(store, make_record(session, repeat=4), Outcome.SLO_MISS)
    put(store, make_record(session, kind="boot", name="boot"))
    assert store.find(key, "e1") is None
    good = put(store, make_record(session, repeat=5))
    found = store.find(key, "e1")
    assert found is not None
    assert found.path == good
    assert store.find(key, "another environment") is None
    assert store.find(make_point(concurrency=9).fingerprint, "e1") is None
    assert store.find(key, "e1", repeat=4) is None
    assert store.find(key, "e1", before=session) is None
    later = receipts.new_session_id(store.root, now=datetime(2100, 1, 1, tzinfo=UTC))
    youngest = put(store, make_record(later))
    found = store.find(key, "e1")
    assert found is not None
    assert found.path == youngest
    found = store.find(key, "e1", session=session)
    assert found is not None
    assert found.path == good


def test_a_receipt_written_by_another_store_is_found_at_once(store: ReceiptStore, session: str) -> None:
    other = ReceiptStore(store.root)
    for repeat in range(1, 30):
        assert len(list(store.headers(session))) == repeat - 1
        put(other, make_record(session, repeat=repeat))


def test_pending_counts_what_no_sink_ever_saw(store: ReceiptStore, session: str) -> None:
    paths = [put(store, make_record(session, repeat=r)) for r in (1, 2, 3)]
    store.mark(paths[0], "mlflow", state="delivered", target="a")
    store.mark(paths[1], "mlflow", state="pending", reason="locked")
    assert [h.path for h in store.pending("mlflow")] == paths[1:]
    assert [h.path for h in store.pending("mlflow", target="b")] == paths
    assert [h.path for h in store.pending("other", session=session)] == paths


# -- kills -----------------------------------------------------------------------------------------------------------


def dead_owner() -> dict[str, Any]:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    owner = {"pid": child.pid, "create_time": psutil.Process(child.pid).create_time(), "host": socket.gethostname()}
    child.communicate()
    return owner


def rewrite_trace(folder: Path, **changes: Any) -> None:
    trace = json.loads((folder / "open.json").read_text())
    (folder / "open.json").write_text(json.dumps({**trace, **changes}))


def test_recover_keeps_what_was_there(store: ReceiptStore, session: str) -> None:
    record = make_record(session)
    staging = store.open(record)
    record.tables = {"requests": "requests.parquet", "telemetry": "telemetry.parquet"}
    record.add(metric("ttft", 1.0, stat="p50"))
    store.update(staging, record, phase="reduce")
    pq.write_table(pa.table({"request_id": [1]}), staging.folder / "requests.parquet")
    pq.write_table(pa.table({"step": [1]}), staging.folder / "steps.parquet")
    (staging.folder / "telemetry.parquet").write_bytes(b"PAR1 half a table")
    (staging.folder / "logs").mkdir()
    (staging.folder / "logs" / "server.log").write_text("line")
    assert receipts.recover(store.root) == []  # this process lives
    rewrite_trace(staging.folder, owner={**dead_owner(), "host": "another-host"})
    assert receipts.recover(store.root) == []
    rewrite_trace(staging.folder, owner=dead_owner())

    (receipt,) = receipts.recover(store.root)
    found = receipt.record
    assert receipt.path.name == record.receipt_name
    assert found.outcome is Outcome.INTERRUPTED
    assert found.error is not None
    assert (found.error.kind, found.error.phase) == ("harness_killed", "reduce")
    assert found.tables == {"requests": "requests.parquet", "steps": "steps.parquet"}
    assert found.attachments == ["logs/server.log", "telemetry.parquet"]
    assert any("telemetry.parquet" in note for note in found.notes)
    assert found.metrics["ttft_p50_ms"].value == 1.0
    assert found.ended_at >= found.started_at
    assert receipt.table("requests").num_rows == 1
    assert not staging.folder.exists()
    assert receipts.recover(store.root) == []


def test_a_number_that_another_process_has_now_is_no_sign_of_life(store: ReceiptStore, session: str) -> None:
    staging = store.open(make_record(session))
    owner = json.loads((staging.folder / "open.json").read_text())["owner"]
    rewrite_trace(staging.folder, owner={**owner, "create_time": owner["create_time"] - 3600})
    assert len(receipts.recover(store.root)) == 1


def test_a_closed_record_whose_rename_was_missing_is_published_as_it_is(store: ReceiptStore, session: str) -> None:
    record = make_record(session)
    staging = store.open(record)
    close(record)
    (staging.folder / "record.json").write_text(json.dumps(record.to_json()))
    rewrite_trace(staging.folder, owner=dead_owner())
    (receipt,) = receipts.recover(store.root)
    assert receipt.record == record


def test_recover_reports_what_it_cannot_read_and_goes_on(store: ReceiptStore, session: str) -> None:
    broken = store.open(make_record(session))
    (broken.folder / "open.json").write_text("{")
    fine = store.open(make_record(session, repeat=2))
    rewrite_trace(fine.folder, owner=dead_owner())
    with pytest.raises(ReceiptError, match="truncated"):
        receipts.recover(store.root)
    errors: list[ReceiptError] = []
    assert [r.record.repeat for r in receipts.recover(store.root, on_error=errors.append)] == [2]
    assert len(errors) == 1
    assert broken.folder.is_dir()


def test_a_folder_without_trace_goes_when_it_is_old_and_empty(store: ReceiptStore, session: str) -> None:
    young, old, used = (store.root / session / f".open-{n}" for n in ("young", "old", "used"))
    for folder in (young, old, used):
        folder.mkdir()
    (old / ".open.json.1.tmp").write_text("{")
    (used / "requests.parquet").write_text("x")
    for folder in (old, used):
        os.utime(folder, (time.time() - 3600,) * 2)
    assert receipts.recover(store.root) == []
    assert (young.is_dir(), old.is_dir(), used.is_dir()) == (True, False, True)


WRITER = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from neuronbench import receipts
    from neuronbench.model import FrozenMap, Outcome, Point, Record

    store, session = receipts.ReceiptStore(Path(sys.argv[1])), sys.argv[2]
    CHANGING = {"open", "write", "flush", "close", "__exit__", "fsync", "mkdir", "rename", "replace", "unlink",
                "remove", "rmdir", "flock", "utime", "truncate", "link"}  # all else finds what was there before

    def write(id):
        point = Point(benchmark="b", lane="serving", backend="cpu", params=FrozenMap(id=id), id=id)
        record = Record(session=session, point=point, started_at=receipts.utc_now())
        staging = store.open(record)
        (staging.folder / "data.bin").write_bytes(bytes(20_000))
        record.attachments.append("data.bin")
        record.close(Outcome.OK, ended_at=receipts.utc_now(), duration_s=1.0)
        store.commit(record, staging)

    def child(order):
        how, name = order.split()
        if how == "on":  # and on, until killed from outside
            for number in range(100_000):
                write(f"{name}-{number}")
                if not number:
                    print(os.getpid(), flush=True)
        left = int(how)  # killed before that call into the system

        def counted(frame, event, called):
            nonlocal left
            if event == "c_call" and called.__name__ in CHANGING:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(counted)
        write(name)
        sys.setprofile(None)
        os._exit(0)

    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            child(line)
        print(os.waitpid(pid, 0)[1], flush=True)
    """
)
"""For each line on standard input a child that writes receipts; prints how it ended."""


@pytest.fixture
def writer(store: ReceiptStore, session: str) -> Iterator[Callable[[str], int]]:
    """`writer(order)`: what stands in the next line that the writer prints."""
    command = [sys.executable, "-c", WRITER, str(store.root), session]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=env, text=True)
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def order(text: str) -> int:
        if text:
            stdin.write(text + "\n")
            stdin.flush()
        return int(stdout.readline())

    yield order
    process.kill()
    process.communicate()


def whole_or_absent(store: ReceiptStore, session: str) -> int:
    """Check that no receipt is half of one, recover, and say how many records were found interrupted."""
    before = list(ReceiptStore(store.root).iter(session))  # raises for a half one
    for receipt in before:
        if receipt.record.outcome is Outcome.OK:
            assert (receipt.path / "data.bin").stat().st_size == 20_000
    recovered = receipts.recover(store.root)
    assert len(recovered) <= 1
    assert len(list(ReceiptStore(store.root).iter(session))) == len(before) + len(recovered)
    left = [path for path in (store.root / session).iterdir() if path.name.startswith(".open-")]
    assert all(not (path / "open.json").exists() for path in left)
    return sum(receipt.record.outcome is Outcome.INTERRUPTED for receipt in recovered)


def test_sigkill_before_any_call_into_the_system_leaves_no_half_receipt(
    store: ReceiptStore, session: str, writer: Callable[[str], int]
) -> None:
    interrupted = instants = 0
    while (status := writer(f"{instants} p{instants}")) != 0:
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        instants += 1
        interrupted += whole_or_absent(store, session)
        for path in [*(store.root / session).glob(".open-*"), *(each.path for each in store.iter(session))]:
            shutil.rmtree(path)  # looked at once
    assert whole_or_absent(store, session) == 0
    assert instants > 20
    assert interrupted > 5
    (survivor,) = [each for each in store.iter(session) if each.record.point.id == f"p{instants}"]
    assert survivor.record.outcome is Outcome.OK


def test_sigkill_at_any_instant_leaves_no_half_receipt(
    store: ReceiptStore, session: str, writer: Callable[[str], int]
) -> None:
    chance = random.Random(7)
    interrupted = 0
    for attempt in range(400):
        if attempt >= 8 and interrupted:
            break  # at least eight kills, and more until one fell into an open record
        pid = writer(f"on k{attempt}")  # once it has written its first
        time.sleep(chance.uniform(0.0, 0.02))  # the point is to hit any instant
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(writer("")) == -signal.SIGKILL
        interrupted += whole_or_absent(store, session)
    assert interrupted > 0


def test_two_processes_recover_at_once(store: ReceiptStore, session: str) -> None:
    for repeat in range(1, 13):
        staging = store.open(make_record(session, repeat=repeat))
        rewrite_trace(
            staging.folder, owner=dead_owner() if repeat == 1 else {"pid": 2**22 + 1, "host": socket.gethostname()}
        )
    code = (
        "import sys; from pathlib import Path; from neuronbench.receipts import recover\n"
        "print(len(recover(Path(sys.argv[1]))))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(store.root)], stdout=subprocess.PIPE, cwd=ROOT,
                         env={**os.environ, "PYTHONPATH": str(ROOT)})
        for _ in range(2)
    ]  # fmt: skip
    counts = [int(child.communicate(timeout=200)[0]) for child in children]
    assert sum(counts) == 12
    assert len(list(store.iter(session, outcome=Outcome.INTERRUPTED))) == 12


def test_a_lock_held_elsewhere_is_named_after_the_wait(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from neuronbench.receipts import locked\n"
        "with locked(Path(sys.argv[1]), timeout_s=5, purpose='x'): print('held', flush=True); input()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "l")], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with (
        pytest.raises(receipts.LockTimeout, match="pushing: another process"),
        receipts.locked(tmp_path / "l", timeout_s=0.1, purpose="pushing"),
    ):
        pass
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    with receipts.locked(tmp_path / "l", timeout_s=5, purpose="pushing"):
        pass


def test_importing_receipts_loads_nothing_heavy() -> None:
    heavy = {"numpy", "pyarrow", "mlflow", "pandas", "scipy"}
    code = f"import sys, neuronbench.receipts; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"
