"""Receipts there and back over a real SQLite store, and from folders: whole, once, and nowhere they do not belong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_receipts as synthetic
from sink_helpers import Reader, settings_at
from typer.testing import CliRunner

from neuronbench.cli import build
from neuronbench.config import Settings
from neuronbench.model import Outcome, Record
from neuronbench.plugins import Plugins
from neuronbench.receipts import Receipt, ReceiptStore
from neuronbench.session import Session
from neuronbench.sinks.contents import FileFact, RestoreError, contents, restore
from neuronbench.sinks.mlflow import MlflowSink, artifacts, inputs, push
from neuronbench.sinks.mlflow.pull import Selection, pull, pull_folder
from neuronbench.sinks.mlflow.sessions import read_unmeasured, status


def tree(store: ReceiptStore, session: str) -> dict[str, object]:
    return {header.name: contents(header.path) for header in store.headers(session)}


def away_from(settings: Settings, tmp_path: Path) -> tuple[Settings, ReceiptStore]:
    """An empty data root that reads the other's MLflow."""
    away = replace(settings_at(tmp_path / "away"), tracking_uri=settings.mlflow_uri)
    return away, ReceiptStore(away.receipts_dir)


# -- there and back ----------------------------------------------------------------------------------------------------


def test_large_files_go_in_parts_and_long_logs_packed(
    settings: Settings, store: ReceiptStore, session: str, reader: Callable[..., Reader], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(artifacts, "PART_BYTES", 5_000)
    record = synthetic.record(session)
    staging = store.open(record)
    (staging.folder / "not-in-the-record.bin").write_bytes(b"\0\1\2")
    (staging.folder / "deep").mkdir()
    files = {"profile.ntff": bytes(range(256)) * 60, "deep/server.log": b"line\n" * 40_000, "server.log": b"short\n"}
    for name, data in files.items():
        (staging.folder / name).write_bytes(data)
        record.attachments.append(name)
    record.close(Outcome.OK, ended_at=record.started_at, duration_s=1.0)
    path = store.commit(record, staging)
    store.end_session(session, 0)
    assert push(settings).ok
    mlflow = reader(settings.mlflow_uri)
    run = mlflow.run(f"{session}/{path.name}")
    assert "nb.incomplete" not in run.data.tags
    assert mlflow.artifacts(run, "receipt") == {
        "receipt/profile.ntff.part-000", "receipt/profile.ntff.part-001", "receipt/profile.ntff.part-002",
        "receipt/profile.ntff.part-003", "receipt/deep", "receipt/not-in-the-record.bin",
    }  # fmt: skip
    assert mlflow.artifacts(run, "receipt/deep") == {"receipt/deep/server.log.gzip"}
    assert mlflow.artifacts(run, "logs") == {"logs/server.log.tail.txt", "logs/server-2.log"}
    away, there = away_from(settings, tmp_path)
    result = pull(away, Selection())
    assert (result.fetched, result.ok) == ([f"{session}/{path.name}"], True)
    assert tree(there, session) == tree(store, session)
    assert len(contents(path)) == 5


def test_what_is_too_large_stays_and_is_said(
    settings: Settings, store: ReceiptStore, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    reader: Callable[..., Reader],
) -> None:  # fmt: skip
    monkeypatch.setattr(artifacts, "LIMIT_BYTES", 3 * 1024 * 1024)
    path = synthetic.put(store, synthetic.record(session), files={"profile.ntff": bytes(4 * 1024 * 1024)})
    assert MlflowSink(settings).write(path).state == "delivered"
    run = reader(settings.mlflow_uri).run(f"{session}/{path.name}")
    assert run.data.tags["nb.incomplete"] == "profile.ntff (4 MiB) is in the receipt only"
    away, there = away_from(settings, tmp_path)
    ((_, reason),) = pull(away, Selection()).refused
    assert "profile.ntff (4 MiB) is too large to have been sent; copy the folder" in reason
    assert there.sessions() == []


def test_a_run_that_is_not_complete_is_not_fetched(
    settings: Settings, store: ReceiptStore, session: str, tmp_path: Path, reader: Callable[..., Reader]
) -> None:
    path = synthetic.put(store, synthetic.record(session))
    assert MlflowSink(settings).write(path).state == "delivered"
    mlflow = reader(settings.mlflow_uri)
    run = mlflow.run(f"{session}/{path.name}")
    mlflow.client.update_run(run.info.run_id, status="RUNNING")
    away, _ = away_from(settings, tmp_path)
    ((_, reason),) = pull(away, Selection()).refused
    assert "is not complete" in reason
    mlflow.client.update_run(run.info.run_id, status="FINISHED")
    mlflow.client.set_tag(run.info.run_id, "nb.receipt.digest", "0" * 64)
    ((_, reason),) = pull(away, Selection()).refused
    assert "is not the one that was sent" in reason


def test_pull_says_what_is_wrong(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="switched off"):
        pull(replace(settings, tracking_uri="off"), Selection())
    with pytest.raises(ValueError, match="there is no store at"):
        pull(settings_at(tmp_path / "none"), Selection())
    with pytest.raises(ValueError, match="nothing listens there"):
        pull(settings, Selection(), source="http://127.0.0.1:9")


def test_pulled_receipts_are_listed_compared_and_reported(
    settings: Settings, store: ReceiptStore, tmp_path: Path
) -> None:
    sessions = []
    for base in (50.0, 80.0):
        session = store.begin_session(settings)
        for repeat in (1, 2, 3):
            made = synthetic.record(session, repeat=repeat, ttft=base + repeat)
            synthetic.put(store, made, table=synthetic.requests(20))
        skipped = synthetic.record(session, point=synthetic.point(concurrency=32))
        skipped.reason = "not enough memory"
        synthetic.put(store, skipped, Outcome.SKIPPED)
        store.end_session(session, 0)
        sessions.append(session)
    assert push(replace(settings, traces=0)).ok
    away, there = away_from(settings, tmp_path)
    assert len(pull(away, Selection(sessions=sessions)).fetched) == 8
    assert [tree(there, session) for session in sessions] == [tree(store, session) for session in sessions]
    (away.root / "neuronbench.toml").write_text("")
    run, app = CliRunner().invoke, build(Plugins())
    listed = run(app, ["--root", str(away.root), "list", "--json"])
    assert [row["outcomes"] for row in json.loads(listed.stdout)] == [{"ok": 3, "skipped": 1}] * 2
    assert [row["exit_status"] for row in json.loads(listed.stdout)] == [0, 0]  # of session.json
    compared = run(app, ["--root", str(away.root), "compare", *sessions, "--format", "json"])
    assert '"regressed"' in compared.stdout, compared.stderr
    reported = run(app, ["--root", str(away.root), "report", sessions[1], "--format", "markdown", "--out", "-"])
    assert reported.exit_code == 0, reported.exception
    assert "82" in reported.stdout
    assert "not enough memory" in reported.stdout


def test_a_session_that_ran_sends_its_closed_manifest_and_its_status(
    settings: Settings, reader: Callable[..., Reader], tmp_path: Path
) -> None:
    ran = Session(settings, Plugins())
    opened = ran.open_record(synthetic.point())
    opened.record.environment = synthetic.record("s").environment
    ran.commit(opened, Outcome.FAILED)
    ran.close(1)
    mlflow = reader(settings.mlflow_uri)
    (parent,) = mlflow.runs(nb_kind="session")
    assert parent.info.status == "FAILED"
    sent = mlflow.download(parent, "session.json", tmp_path / "d").read_bytes()
    assert json.loads(sent)["exit_status"] == 1
    assert sent == (settings.receipts_dir / ran.id / "session.json").read_bytes()


# -- folders -----------------------------------------------------------------------------------------------------------


def test_receipts_of_a_folder_are_copied_once(store: ReceiptStore, session: str, tmp_path: Path) -> None:
    paths = [synthetic.put(store, synthetic.record(session, repeat=r), table=synthetic.requests(20)) for r in (1, 2)]
    store.mark(paths[0], "mlflow", state="pending", reason="not there")
    store.end_session(session, 0)
    away = settings_at(tmp_path / "away")
    source = store.root.parent
    first, again = (pull_folder(away, Selection(sessions=[session[:15]]), source) for _ in range(2))
    assert (len(first.fetched), len(again.kept), first.ok, again.ok) == (2, 2, True, True)
    there = ReceiptStore(away.receipts_dir)
    assert tree(there, session) == tree(store, session)
    assert there.manifest(session) == store.manifest(session)
    assert not (there.root / session / paths[0].name / "sinks").exists()  # what became of it there is no matter here
    assert pull_folder(away, Selection(lanes=["moe"]), source).fetched == []
    (there.root / session / paths[0].name / "requests.parquet").write_bytes(b"")
    ((refused, reason),) = pull_folder(away, Selection(), source).refused
    assert refused == f"{session}/{paths[0].name}"
    assert "requests.parquet: expected" in reason
    assert "found 0 bytes" in reason


def test_the_folder_of_a_session_is_that_session(
    settings: Settings, store: ReceiptStore, session: str, tmp_path: Path
) -> None:
    synthetic.put(store, synthetic.record(session))
    other = store.begin_session(settings, command=["pytest"])
    synthetic.put(store, synthetic.record(other))
    away = settings_at(tmp_path / "away")
    found = pull_folder(away, Selection(), store.root / session)
    assert ([each.partition("/")[0] for each in found.fetched], found.ok) == ([session], True)
    assert tree(ReceiptStore(away.receipts_dir), session) == tree(store, session)


def test_the_command(store: ReceiptStore, session: str, tmp_path: Path) -> None:
    synthetic.put(store, synthetic.record(session))
    away = tmp_path / "away"
    away.mkdir()
    (away / "neuronbench.toml").write_text("")
    run, app = CliRunner().invoke, build(Plugins())
    told = run(app, ["--root", str(away), "pull", "--from", str(store.root)])
    assert (told.exit_code, told.stdout.startswith("1 fetched, 0 were here already, 0 refused")) == (0, True)
    told = run(app, ["--root", str(away), "pull", "--from", str(store.root), "--json"])
    assert json.loads(told.stdout)["kept"] == [f"{session}/serving-closed_loop-c8--r1"]
    for words, complaint in (
        (["--from", "nowhere"], "expected a folder, or a URI"),
        (["--from", str(store.root), "--tag", "x"], "expected NAME=VALUE"),
        (["--from", str(store.root), "--tag", "x=1"], "--tag asks MLflow"),
        (["--from", str(store.root), "--lane", "moe"], "nothing there matches"),
        (["--from", str(away)], f"expected SESSION/RECEIPT/record.json below {away}"),
    ):
        told = run(app, ["--root", str(away), "pull", *words])
        assert told.exit_code != 0
        assert complaint in str(told.exception)


# -- what is not to be trusted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "sinks/mlflow.json", "", "open.json", "a\0b"])
def test_files_stay_inside_their_receipt(tmp_path: Path, path: str) -> None:
    fact = FileFact(sha256="0" * 64, bytes=0)
    with pytest.raises(RestoreError, match="expected a path inside the receipt"):
        restore(tmp_path / "r", "s", "n", {"record.json": fact, path: fact}, lambda folder: None)
    text = json.dumps(
        {"schema": 1, "files": [{"path": path, "sha256": "", "bytes": 0, "artifacts": [], "gzip": False}]}
    )
    with pytest.raises(RestoreError):
        artifacts.read_files(text.encode(), "run")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", ""])
def test_receipts_stay_inside_their_session(tmp_path: Path, name: str) -> None:
    with pytest.raises(RestoreError, match="expected a plain folder name"):
        restore(tmp_path, "s", name, {}, lambda folder: None)
    with pytest.raises(RestoreError, match="expected a plain folder name"):
        restore(tmp_path, name, "n", {}, lambda folder: None)


def test_a_receipt_under_another_name_is_refused(store: ReceiptStore, session: str, tmp_path: Path) -> None:
    path = synthetic.put(store, synthetic.record(session))
    data = (path / "record.json").read_bytes()

    def fetch(folder: Path) -> None:
        (folder / "record.json").write_bytes(data)

    with pytest.raises(RestoreError, match="its record is that of"):
        restore(tmp_path, session, "other", contents(path), fetch)
    assert list((tmp_path / session).iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema": 9}', b'{"schema": 1, "files": [{}]}'])
def test_a_damaged_list_of_files_is_said(data: bytes) -> None:
    with pytest.raises(RestoreError, match="cannot be read"):
        artifacts.read_files(data, "run")
    with pytest.raises(RestoreError, match="cannot be read"):
        read_unmeasured(data, "run")


# -- what a run says --------------------------------------------------------------------------------------------------


def ended(outcome: Outcome) -> Record:
    made = synthetic.record("s")
    made.close(outcome, ended_at=made.started_at, duration_s=1.0)
    return made


@pytest.mark.parametrize(
    ("outcomes", "over", "exit_status", "wanted"),
    [
        ([Outcome.OK, Outcome.SLO_MISS, Outcome.SKIPPED, Outcome.XFAILED], True, 0, "FINISHED"),
        ([Outcome.OK, Outcome.FAILED], True, 1, "FAILED"),
        ([Outcome.TIMEOUT], True, 1, "FAILED"),
        ([Outcome.ERROR, Outcome.INTERRUPTED], True, 1, "KILLED"),
        ([Outcome.OK], True, 2, "KILLED"),
        ([Outcome.OK], False, None, "KILLED"),
    ],
)
def test_a_session_says_how_it_ended(outcomes: list[Outcome], over: bool, exit_status: int | None, wanted: str) -> None:
    assert status([ended(outcome) for outcome in outcomes], ended=over, exit_status=exit_status) == wanted


def test_training_data_and_samples_are_inputs_too() -> None:
    record = synthetic.record("s")
    record.workload = {
        "training": [{"dataset": {"name": "poems", "digest": "a" * 64, "holdout_digest": "b" * 64}}] * 2,
        "loops": [{"batch_size": 8, "inputs": "c" * 64}],
        "accuracy": [{"name": "mrpc", "samples": "d" * 64, "passed": True}],
        "workload": {"kind": "dataset", "path": "/somewhere/chats.jsonl"},
        "digest": "e" * 64,
    }
    found = {(each.name, each.digest[0], each.context) for each in inputs.inputs(record)}
    assert found == {
        ("poems", "a", "training"), ("poems (holdout)", "b", "evaluation"), ("batch of 8", "c", "load"),
        ("mrpc", "d", "evaluation"), ("dataset: chats.jsonl", "e", "load"),
    }  # fmt: skip


def test_the_kind_of_an_experiment_is_set_where_nobody_chose_it(
    settings: Settings, store: ReceiptStore, session: str, reader: Callable[..., Reader]
) -> None:
    mlflow = reader(settings.mlflow_uri)
    guessed = mlflow.client.create_experiment("neuronbench/serving")
    mlflow.client.set_experiment_tag(guessed, "mlflow.experimentKind", "genai_development_inferred")
    chosen = mlflow.client.create_experiment("neuronbench/encoder")
    mlflow.client.set_experiment_tag(chosen, "mlflow.experimentKind", "genai_development")
    sink = MlflowSink(settings)
    sink.write(synthetic.put(store, synthetic.record(session)))
    encoder = replace(synthetic.point(), lane="encoder", id="e")
    sink.write(synthetic.put(store, synthetic.record(session, point=encoder)))
    kinds = [mlflow.client.get_experiment(e).tags["mlflow.experimentKind"] for e in (guessed, chosen)]
    assert kinds == ["custom_model_development", "genai_development"]


def test_contents_name_every_file_of_a_receipt_and_no_marker(store: ReceiptStore, session: str) -> None:
    path = synthetic.put(store, synthetic.record(session), table=synthetic.requests(20))
    before = artifacts.digest(Receipt(path), artifacts.plan(Receipt(path)))
    store.mark(path, "mlflow", state="pending")
    assert set(contents(path)) == {"record.json", "requests.parquet"}
    assert artifacts.digest(Receipt(path), artifacts.plan(Receipt(path))) == before
