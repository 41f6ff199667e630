"""The sink on a real SQLite store: what stands there afterwards, exactly once, whatever happens in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import synthetic_receipts as synthetic
from sink_helpers import QUICK, Reader, settings_at

from neuronbench.config import Settings
from neuronbench.model import Metric, Outcome, Provenance
from neuronbench.protocols import Sink
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink, push, ui_command
from neuronbench.sinks.mlflow.gateway import rehome

HERE = Path(__file__).resolve().parent
PATHS = {"PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), str(HERE)])}


def test_it_is_a_sink(sink: MlflowSink) -> None:
    assert isinstance(sink, Sink)
    assert sink.name == "mlflow"


def test_a_point_becomes_a_child_run_with_the_numbers_of_its_receipt(
    sink: MlflowSink,
    store: ReceiptStore,
    session: str,
    settings: Settings,
    reader: Callable[..., Reader],
    tmp_path: Path,
) -> None:
    boot = synthetic.put(store, synthetic.boot(session), files={"server.log": b"a line\n" * 30_000})
    path = synthetic.put(store, synthetic.record(session), table=synthetic.requests(60))
    for receipt in (boot, path):
        delivery = sink.write(receipt)
        assert delivery.state == "delivered", delivery.reason
        marker = store.read(receipt).delivery("mlflow")
        assert marker is not None
        assert (marker.state, marker.reference) == ("delivered", delivery.reference)
    sink.close()

    mlflow = reader(settings.mlflow_uri)
    run, record = mlflow.run(f"{session}/serving-closed_loop-c8--r1"), store.read(path).record
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "serving-closed_loop-c8 #r1"
    assert run.data.metrics == {m.path: m.value for m in record.metrics.values() if m.value is not None}
    assert (run.data.params["concurrency"], run.data.params["model"]) == ("8", "SmolLM2-135M")
    assert (run.info.end_time - run.info.start_time) == 60_250
    tags = run.data.tags
    assert tags["nb.point"] == record.point.fingerprint
    assert tags["env.host.cpu_model"] == "Some CPU | with a bar"
    assert tags["mlflow.source.git.commit"] == "3f2a91c0"
    assert str(path) in tags["mlflow.note.content"]
    assert "nb.incomplete" not in tags
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("synthetic", "0123456789abcdef")
    assert mlflow.artifacts(run) == {"record.json", "requests.parquet", "files.json", "figures"}
    assert mlflow.artifacts(run, "figures") == {"figures/latency_cdf.png", "figures/timeline.png"}
    assert json.loads(mlflow.download(run, "record.json", tmp_path / "d").read_text()) == record.to_json()
    assert pq.read_table(mlflow.download(run, "requests.parquet", tmp_path / "d")).num_rows == 60

    (parent,) = mlflow.runs(nb_kind="session")
    assert tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.info.status == "FINISHED"
    assert parent.info.run_name == f"{session[:4]}-{session[4:6]}-{session[6:8]} cpu 3f2a91c {session[16:]}"
    assert parent.info.start_time <= run.info.start_time
    assert (parent.data.metrics["session/ok"], parent.data.metrics["session/points"]) == (1, 1)
    assert "env.host.cpu_model" in parent.data.tags
    assert mlflow.artifacts(parent) == {"environment.json", "report.md", "session.json"}
    (resource,) = mlflow.runs(nb_kind="resource")
    assert resource.data.metrics == {"boot_time/s": 23.5}
    assert resource.data.params["dtype"] == "bfloat16"
    assert mlflow.artifacts(resource, "logs") == {"logs/server.log.tail.txt"}
    tail = mlflow.download(resource, "logs/server.log.tail.txt", tmp_path / "d").read_bytes()
    assert tail.startswith(b"a line\n")
    assert 60_000 < len(tail) <= 65_536
    assert tags["nb.resource.receipt"] == resource.data.tags["nb.receipt"]


def test_request_traces_are_linked_to_the_run_and_none_is_lost(
    settings: Settings, store: ReceiptStore, session: str, reader: Callable[..., Reader]
) -> None:
    sink = MlflowSink(replace(settings, traces=30), patience=QUICK)
    path = synthetic.put(store, synthetic.record(session), table=synthetic.requests(200, failed=15))
    assert sink.write(path).state == "delivered"
    mlflow = reader(settings.mlflow_uri)
    run = mlflow.run(f"{session}/serving-closed_loop-c8--r1")
    found = mlflow.traces(run)
    assert Counter(trace.info.tags["nb.sample"] for trace in found) == {"slowest": 10, "failed": 10, "random": 10}
    assert run.data.tags["nb.traces"] == "30"
    table = {row["request_id"]: row for row in synthetic.requests(200, failed=15).to_pylist()}
    for trace in found:
        assert trace.info.trace_metadata["mlflow.sourceRun"] == run.info.run_id
        assert trace.info.trace_metadata["nb.clock"] == "recorded"
        names = [span.name for span in trace.data.spans]
        row = table[int(trace.info.client_request_id.rpartition("/")[2])]
        assert names == (["request", "queued", "prefill", "decode"] if row["ok"] else ["request", "queued", "prefill"])
        assert trace.info.request_time == (row["scheduled_ns"] - synthetic.MONO_NS + synthetic.UTC_NS) // 10**6
        assert trace.info.state.value == ("OK" if row["ok"] else "ERROR")


def test_no_traces_when_none_are_asked_for(
    settings: Settings, store: ReceiptStore, session: str, reader: Callable[..., Reader]
) -> None:
    sink = MlflowSink(replace(settings, traces=0), patience=QUICK)
    sink.write(synthetic.put(store, synthetic.record(session), table=synthetic.requests(30)))
    mlflow = reader(settings.mlflow_uri)
    assert mlflow.traces(mlflow.run(f"{session}/serving-closed_loop-c8--r1")) == []


def test_failures_keep_their_numbers_and_say_why(
    sink: MlflowSink,
    store: ReceiptStore,
    session: str,
    settings: Settings,
    reader: Callable[..., Reader],
    tmp_path: Path,
) -> None:
    path = synthetic.put(store, synthetic.failing(session), Outcome.ERROR, files={"server.log": b"out of memory\n"})
    sink.write(path)
    sink.write(synthetic.put(store, synthetic.record(session, repeat=2), Outcome.INTERRUPTED))
    mlflow = reader(settings.mlflow_uri)
    run = mlflow.run(f"{session}/serving-closed_loop-c8--r1")
    assert run.info.status == "FAILED"
    assert run.data.metrics["ttft/p50_ms"] == 58.0
    assert (run.data.tags["nb.error.kind"], run.data.tags["nb.outcome"]) == ("server_died", "error")
    assert mlflow.artifacts(run) == {"record.json", "files.json", "error.txt", "logs"}
    assert "RuntimeError: out of | memory" in mlflow.download(run, "error.txt", tmp_path).read_text()
    assert mlflow.run(f"{session}/serving-closed_loop-c8--r2").info.status == "KILLED"


def test_what_may_not_be_quoted_is_marked_everywhere(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    sink.write(synthetic.put(store, synthetic.invalid(session, provenance=Provenance.SIMULATED)))
    run = reader(settings.mlflow_uri).run(f"{session}/serving-closed_loop-c8--r1")
    assert run.info.run_name.endswith("(invalid, simulated)")
    assert (run.data.tags["nb.validity"], run.data.tags["nb.provenance"]) == ("invalid", "simulated")
    assert run.data.tags["nb.gates.failed"] == "client_lag"
    assert run.data.tags["mlflow.note.content"].startswith("**INVALID")


def test_skipped_and_cached_points_make_no_run(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    for repeat, outcome in ((1, Outcome.SKIPPED), (2, Outcome.CACHED)):
        assert sink.write(synthetic.put(store, synthetic.record(session, repeat=repeat), outcome)).state == "delivered"
    sink.close()
    assert reader(settings.mlflow_uri).runs() == []
    assert push(settings).delivered == ()


def test_repeats_get_one_summary_of_those_that_count(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    for repeat, ttft in ((1, 50.0), (2, 70.0), (3, 60.0)):
        sink.write(synthetic.put(store, synthetic.record(session, repeat=repeat, ttft=ttft)))
    sink.write(synthetic.put(store, synthetic.invalid(session, repeat=4, ttft=1.0)))
    sink.write(synthetic.put(store, synthetic.record(session, point=synthetic.point(concurrency=1))))
    sink.close()
    sink.close()
    (run,) = reader(settings.mlflow_uri).runs(nb_kind="summary")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["ttft/p50_ms"] == 60.0
    assert run.data.metrics["repeats/n"] == 3
    assert run.data.metrics["spread_share/ttft_p50_ms"] == pytest.approx(1 / 3)
    assert (run.data.tags["nb.summary.used"], run.data.tags["nb.outcome"]) == ("r1, r2, r3", "incomplete")
    assert run.data.params["concurrency"] == "8"
    assert "Left out: r4 (ok, invalid)" in run.data.tags["mlflow.note.content"]
    assert "--nb-repeats 4" in run.data.tags["mlflow.note.content"]


def test_a_summary_follows_when_a_repeat_comes_later(
    settings: Settings, store: ReceiptStore, session: str, reader: Callable[..., Reader]
) -> None:
    for repeat in (1, 2, 3):
        path = synthetic.put(store, synthetic.record(session, repeat=repeat, ttft=10.0 * repeat))
        if repeat >= 2:
            sink = MlflowSink(settings, patience=QUICK)
            sink.write(path)
            sink.close()
    (run,) = reader(settings.mlflow_uri).runs(nb_kind="summary")
    assert run.data.tags["nb.summary.of"] == "r1, r2, r3"
    assert run.data.metrics["ttft/p50_ms"] == 20.0


def test_odd_records_are_taken(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    record = synthetic.record(
        session, name="it's odd", point=synthetic.point(id="µ|point 'x' \"y\" [a=1]/../z" + "w" * 400)
    )
    record.add(*(Metric(id=f"weird/../id {n}", value=float(n), unit="things/s²") for n in range(90)))
    record.notes = ["x" * 20_000]
    record.tags = {"key with %": "v" * 9_000}
    record.workload = {"nothing": None}
    path = synthetic.put(store, record, table=synthetic.requests(20).drop_columns(["sent_ns", "ok", "e2e_ms"]))
    delivery = sink.write(path)
    assert delivery.state == "delivered", delivery.reason
    (run,) = reader(settings.mlflow_uri).runs(nb_kind="point")
    assert len(run.data.metrics) == 60
    assert run.data.tags["nb.metrics.left_out"] == "34"
    assert sink.write(path) == delivery
    marker = ReceiptStore(settings.receipts_dir).read(path).delivery("mlflow")
    assert marker is not None
    assert marker.attempts == 1


def test_broken_tables_and_figures_do_not_cost_the_run(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    record = synthetic.record(session)
    record.tables["requests"] = "requests.parquet"
    staging = store.open(record)
    (staging.folder / "requests.parquet").write_bytes(b"PAR1 nothing more")
    record.close(Outcome.OK, ended_at=record.started_at, duration_s=1.0)
    assert sink.write(store.commit(record, staging)).state == "delivered"
    run = reader(settings.mlflow_uri).run(record.receipt_id)
    assert run.info.status == "FINISHED"
    assert "requests.parquet" in run.data.tags["nb.incomplete"]


def test_a_receipt_that_cannot_be_read_is_pending_with_the_reason(
    sink: MlflowSink, store: ReceiptStore, session: str
) -> None:
    path = synthetic.put(store, synthetic.record(session))
    (path / "record.json").write_text("{")
    delivery = sink.write(path)
    assert delivery.state == "pending"
    assert "record.json" in delivery.reason
    assert sink.write(path / "nowhere").state == "pending"


def test_nothing_leaks_into_the_environment(sink: MlflowSink, store: ReceiptStore, session: str) -> None:
    before = dict(os.environ)
    sink.write(synthetic.put(store, synthetic.record(session), table=synthetic.requests(20)))
    sink.close()
    now = dict(os.environ)
    before.pop("PYTEST_CURRENT_TEST", None)
    now.pop("PYTEST_CURRENT_TEST", None)
    assert now == before


# -- locked, killed, concurrent --------------------------------------------------------------------------------


def test_a_locked_database_leaves_it_pending_and_push_delivers_once(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    paths = [synthetic.put(store, synthetic.record(session, repeat=repeat)) for repeat in (1, 2)]
    assert sink.write(paths[0]).state == "delivered"
    other = sqlite3.connect(settings.database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    delivery = sink.write(paths[1])
    other.rollback()
    other.close()
    assert delivery.state == "pending"
    assert "is locked by another process" in delivery.reason
    marker = store.read(paths[1]).delivery("mlflow")
    assert marker is not None
    assert marker.reason == delivery.reason
    store.end_session(session, 0)
    result = push(settings)
    assert result.delivered == (f"{session}/serving-closed_loop-c8--r2",)
    assert result.ok
    assert push(settings) == type(result)()
    mlflow = reader(settings.mlflow_uri)
    assert len(mlflow.runs(nb_kind="point")) == 2
    assert len(mlflow.runs(nb_kind="summary")) == 1
    assert [run.info.status for run in mlflow.runs(nb_kind="session")] == ["FINISHED"]


KILLED = """
import os, signal, sys
from pathlib import Path
from neuronbench.config import Settings
from neuronbench.sinks.mlflow import MlflowSink, runs
import mlflow

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

root, receipt, where = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if where == "log":
    runs.log = die
elif where == "artifacts":
    runs.artifacts.send = die
else:
    mlflow.MlflowClient.set_terminated = die
MlflowSink(Settings(root=root, data_root=root / "mlruns", traces=6)).write(receipt)
"""


@pytest.mark.parametrize("where", ["log", "artifacts", "terminate"])
def test_a_run_that_was_begun_by_a_killed_process_is_finished_not_doubled(
    where: str, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    path = synthetic.put(store, synthetic.record(session), table=synthetic.requests(40))
    command = [sys.executable, "-c", KILLED, str(settings.root), str(path), where]
    done = subprocess.run(command, env={**os.environ, **PATHS}, capture_output=True, timeout=240)
    assert done.returncode == -signal.SIGKILL, done.stderr
    mlflow = reader(settings.mlflow_uri)
    (begun,) = mlflow.runs(nb_kind="point")
    assert begun.info.status == "RUNNING"
    assert store.read(path).delivery("mlflow") is None

    store.end_session(session, 0)
    assert push(settings).delivered == (f"{session}/serving-closed_loop-c8--r1",)
    (run,) = mlflow.runs(nb_kind="point")
    assert run.info.run_id == begun.info.run_id
    assert run.info.status == "FINISHED"
    assert run.data.metrics["ttft/p50_ms"] == 58.0
    assert len(mlflow.client.get_metric_history(run.info.run_id, "ttft/p50_ms")) == 1
    assert mlflow.artifacts(run) == {"record.json", "requests.parquet", "files.json", "figures"}
    assert len(mlflow.traces(run)) == 6
    assert len(run.inputs.dataset_inputs) == 1
    assert len(mlflow.runs(nb_kind="session")) == 1


PUSHER = """
import sys
from pathlib import Path
from neuronbench.config import Settings
from neuronbench.sinks.mlflow import push

root = Path(sys.argv[1])
result = push(Settings(root=root, data_root=root / "mlruns", traces=3))
assert result.ok, result
print(len(result.delivered), len(result.already))
"""


def test_two_pushers_at_once_make_one_set_of_runs(
    store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    for concurrency in range(1, 9):
        point = synthetic.point(concurrency=concurrency)
        table = synthetic.requests(20) if concurrency == 4 else None
        synthetic.put(store, synthetic.record(session, point=point), table=table)
    store.end_session(session, 0)
    command = [sys.executable, "-c", PUSHER, str(settings.root)]
    children = [
        subprocess.Popen(command, env={**os.environ, **PATHS}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    delivered = 0
    for child in children:
        out, err = child.communicate(timeout=240)
        assert child.returncode == 0, err.decode()
        delivered += int(out.split()[0])
    assert delivered == 8
    mlflow = reader(settings.mlflow_uri)
    runs = mlflow.runs(nb_kind="point")
    assert Counter(run.data.tags["nb.receipt"] for run in runs).most_common(1)[0][1] == 1
    assert len(runs) == 8
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len(mlflow.runs(nb_kind="session")) == 1
    assert list(store.pending("mlflow")) == []


def test_push_finishes_what_a_killed_session_left(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    for repeat in (1, 2):
        sink.write(synthetic.put(store, synthetic.record(session, repeat=repeat)))  # and never closed
    assert push(settings).ok
    mlflow = reader(settings.mlflow_uri)
    assert [run.info.status for run in mlflow.runs(nb_kind="session")] == ["RUNNING"]  # its process lives
    assert mlflow.runs(nb_kind="summary") == []
    owner = {**store.manifest(session).owner, "create_time": 1.0}
    store.update_session(session, owner=type(store.manifest(session).owner)(owner))
    assert push(settings).ok
    assert [run.info.status for run in mlflow.runs(nb_kind="session")] == ["KILLED"]
    assert len(mlflow.runs(nb_kind="summary")) == 1


# -- other stores ----------------------------------------------------------------------------------------------


def test_a_lost_database_is_made_again_from_the_receipts(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    sink.write(synthetic.put(store, synthetic.record(session)))
    sink.close()
    store.end_session(session, 0)
    settings.database.unlink()
    command = [sys.executable, "-c", PUSHER, str(settings.root)]  # in this process MLflow still holds the old file
    done = subprocess.run(command, env={**os.environ, **PATHS}, capture_output=True, text=True, timeout=240)
    assert done.stdout == "1 0\n", done.stderr
    os.replace(settings.database, settings.root / "again.db")
    settings = replace(settings, tracking_uri=f"sqlite:///{settings.root / 'again.db'}")
    assert len(reader(settings.mlflow_uri).runs(nb_kind="point")) == 1


def test_push_to_another_store_and_back(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, prepared_db: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, reader: Callable[..., Reader],
) -> None:  # fmt: skip
    sink.write(synthetic.put(store, synthetic.record(session), table=synthetic.requests(20)))
    store.end_session(session, 0)
    sink.close()
    shutil.copy(prepared_db, tmp_path / "team.db")
    with sqlite3.connect(tmp_path / "team.db") as database:
        database.execute("PRAGMA user_version = 4711")
    uri = f"sqlite:///{tmp_path / 'team.db'}"
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    said: list[str] = []
    result = push(settings, to=uri, session=session, progress=said.append)
    assert len(result.delivered) == 1, result
    assert said == [
        "opening MLflow; a new store gets its tables first", f"1/1 {session}/serving-closed_loop-c8--r1: delivered",
    ]  # fmt: skip
    assert list((tmp_path / "cwd").iterdir()) == []
    assert push(settings, to=uri).delivered == ()
    back = push(settings)
    assert (back.delivered, len(back.already)) == ((), 1)
    assert len(reader(uri).runs(nb_kind="point")) == len(reader(settings.mlflow_uri).runs(nb_kind="point")) == 1


def test_push_without_mlflow_says_what_to_do(settings: Settings) -> None:
    with pytest.raises(ValueError, match="switched off"):
        push(replace(settings, tracking_uri="off"))
    with pytest.raises(ValueError, match="switched off"):
        ui_command(replace(settings, tracking_uri="off"))
    with pytest.raises(ValueError, match="server already"):
        ui_command(replace(settings, tracking_uri="http://team:5000"))


def test_push_reports_receipts_it_cannot_read(store: ReceiptStore, session: str, settings: Settings) -> None:
    path = synthetic.put(store, synthetic.record(session))
    (path / "record.json").write_text("[")
    result = push(settings)
    assert not result.ok
    assert "record.json" in result.problems[0]


def test_a_copy_of_a_session_under_another_name_keeps_nothing_else_from_its_delivery(
    store: ReceiptStore, session: str, settings: Settings
) -> None:
    synthetic.put(store, synthetic.record(session))
    (store.root / session).rename(store.root / "baseline")
    other = store.begin_session(settings, command=["pytest"])
    synthetic.put(store, synthetic.record(other))
    result = push(settings)
    assert [receipt.partition("/")[0] for receipt in result.delivered] == [other]
    (problem,) = result.problems
    assert f"baseline: its receipts are of session {session}" in problem
    shutil.copytree(store.root / "baseline", store.root / session)
    assert [receipt.partition("/")[0] for receipt in push(settings).delivered] == [session]


def test_moving_the_data_root_breaks_nothing(
    sink: MlflowSink,
    store: ReceiptStore,
    session: str,
    settings: Settings,
    reader: Callable[..., Reader],
    tmp_path: Path,
) -> None:
    sink.write(synthetic.put(store, synthetic.record(session)))
    store.end_session(session, 0)
    sink.close()
    moved = settings_at(tmp_path / "elsewhere")
    moved.root.mkdir()
    settings.data_root.rename(moved.data_root)
    assert "--backend-store-uri" in ui_command(moved)
    assert rehome(moved) == 0  # done by ui_command
    mlflow = reader(moved.mlflow_uri)
    run = mlflow.run(f"{session}/serving-closed_loop-c8--r1")
    assert mlflow.download(run, "record.json", tmp_path / "d").is_file()
    assert push(moved) == type(push(moved))()  # the same store still, with nothing to do
    again = MlflowSink(moved, patience=QUICK)
    again.write(synthetic.put(ReceiptStore(moved.receipts_dir), synthetic.record(session, repeat=2)))
    assert not settings.data_root.exists()


def test_a_deleted_experiment_is_pending_with_the_remedy(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    sink.write(synthetic.put(store, synthetic.record(session)))
    mlflow = reader(settings.mlflow_uri)
    mlflow.client.delete_experiment(mlflow.experiment().experiment_id)
    path = synthetic.put(store, synthetic.record(session, repeat=2))
    delivery = MlflowSink(settings, patience=QUICK).write(path)
    assert delivery.state == "pending"
    assert "restore it" in delivery.reason


def test_a_store_that_cannot_be_opened_is_tried_once(settings: Settings, store: ReceiptStore, session: str) -> None:
    settings.database.write_bytes(b"this is no database, but long enough to be looked at as one" * 50)
    sink = MlflowSink(settings, patience=QUICK)
    first, second = (sink.write(synthetic.put(store, synthetic.record(session, repeat=r))) for r in (1, 2))
    assert first.state == second.state == "pending"
    assert "not a database" in first.reason
    sink.close()


def test_importing_the_sink_loads_no_mlflow() -> None:
    heavy = {"mlflow", "matplotlib", "pandas"}
    code = f"import sys, neuronbench.sinks.mlflow; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **PATHS}, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_environment_of_children_started_while_writing(sink: MlflowSink) -> None:
    with sink.gateway.open():
        found: dict[str, Any] = json.loads(
            subprocess.run(
                [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"],
                capture_output=True, check=True,
            ).stdout
        )  # fmt: skip
    assert "MLFLOW_TRACKING_URI" not in found
