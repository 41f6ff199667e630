"""A team's server: PostgreSQL, S3, logins; several hosts that push the same, and a host that pulls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic_receipts as synthetic
from sink_helpers import PATIENT, Reader, settings_at

from neuronbench.config import Settings
from neuronbench.model import FrozenMap, Outcome, Point
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.contents import contents
from neuronbench.sinks.mlflow import MlflowSink, push
from neuronbench.sinks.mlflow.pull import Selection, pull
from neuronbench.testing.tracking.team import BUCKET, S3, Team

pytestmark = pytest.mark.timeout(600)
HERE = Path(__file__).resolve().parent
WRONG = "hunter2-is-no-password"


@pytest.fixture
def settings(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A data root whose MLflow is the team's; the login is in the environment, rights to S3 are not."""
    for name in (*S3, "MLFLOW_S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in team.login().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "neuronbench.toml").write_text(f'tracking_uri = "{team.url}"\ntraces = 3\n')
    return settings_at(tmp_path, tracking_uri=team.url, traces=3)


@pytest.fixture
def store(settings: Settings) -> ReceiptStore:
    return ReceiptStore(settings.receipts_dir)


def environ(team: Team, password: str = "") -> dict[str, str]:
    return {**os.environ, **team.login(password), "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), str(HERE)])}


def command(root: Path, *words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuronbench", "--root", str(root), *words],
        env=env, cwd=root, capture_output=True, text=True, timeout=400,
    )  # fmt: skip


def holding(folder: Path, secret: str) -> list[Path]:
    """Files that hold a secret."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def trees(store: ReceiptStore, session: str) -> dict[str, object]:
    return {header.name: contents(header.path) for header in store.headers(session)}


def measured(store: ReceiptStore, settings: Settings) -> str:
    """A session as they are: a boot, repeats, a point that failed, a long log, a skipped point."""
    session = store.begin_session(settings, command=["pytest", "benchmarks", "-m", "cpu"])
    synthetic.put(store, synthetic.boot(session), files={"server.log": b"a line of the server\n" * 9_000})
    for repeat in (1, 2):
        made = synthetic.record(session, repeat=repeat, tags={"release": "1.2"})
        synthetic.put(store, made, table=synthetic.requests(40))
    point = synthetic.point(concurrency=16)
    synthetic.put(store, synthetic.failing(session, point=point), Outcome.ERROR, files={"server.log": b"died\n"})
    skipped = synthetic.record(session, point=synthetic.point(concurrency=32))
    skipped.reason = "not enough memory"
    synthetic.put(store, skipped, Outcome.SKIPPED)
    store.end_session(session, 1)
    return session


# -- delivery ----------------------------------------------------------------------------------------------------------


def test_runs_go_to_postgresql_and_artifacts_to_s3_through_the_server(
    team: Team, settings: Settings, store: ReceiptStore, reader: Callable[..., Reader], tmp_path: Path
) -> None:
    session = measured(store, settings)
    result = push(settings)
    assert (len(result.delivered), result.failed, result.problems) == (4, (), ())
    assert push(settings) == type(result)()
    mlflow = reader(team.url)
    run = mlflow.run(f"{session}/serving-closed_loop-c8--r1")
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    assert mlflow.download(run, "requests.parquet", tmp_path / "d").read_bytes().startswith(b"PAR1")
    key = next(key for key in team.objects() if key.endswith(f"{run.info.run_id}/artifacts/record.json"))
    assert key.startswith("proxied/")
    assert len(mlflow.traces(run)) == 3
    assert len(mlflow.runs(nb_session=session, nb_kind="summary")) == 1
    (parent,) = mlflow.runs(nb_session=session, nb_kind="session")
    assert parent.info.status == "FAILED"  # a point of it did
    assert mlflow.experiment().tags["mlflow.experimentKind"] == "custom_model_development"


def test_a_wrong_password_is_said_and_kept_nowhere(
    team: Team, settings: Settings, store: ReceiptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.begin_session(settings)
    paths = [synthetic.put(store, synthetic.record(session, repeat=repeat)) for repeat in (1, 2)]
    store.end_session(session, 0)
    done = command(settings.root, "push", env=environ(team, WRONG))
    assert done.returncode == 1
    assert "the login was refused" in done.stderr
    assert "MLFLOW_TRACKING_PASSWORD" in done.stderr
    assert WRONG not in done.stdout + done.stderr
    for path in paths:
        marker = store.read(path).delivery("mlflow")
        assert marker is not None
        assert "401" in marker.reason
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", WRONG)
    sink = MlflowSink(settings, patience=PATIENT)
    assert {sink.write(path).state for path in paths} == {"pending"}
    assert "login was refused" in sink.gateway.broken  # asked once: some servers lock out who asks on
    assert holding(settings.root, WRONG) == []
    done = command(settings.root, "push", env=environ(team))
    assert done.stdout.startswith("2 delivered"), done.stderr
    assert holding(settings.root, team.user_password) == []


def test_a_login_in_the_address_works_and_is_kept_nowhere(team: Team, settings: Settings, store: ReceiptStore) -> None:
    env = {name: value for name, value in environ(team).items() if not name.startswith("MLFLOW_TRACKING_")}
    address = team.url.replace("://", f"://bench:{team.user_password}@")
    session = store.begin_session(settings)
    path = synthetic.put(store, synthetic.record(session))
    store.end_session(session, 0)
    done = command(settings.root, "push", "--to", address.replace(team.user_password, WRONG), env=env)
    assert (done.returncode, "the login was refused" in done.stderr) == (1, True)
    done = command(settings.root, "push", "--to", address, env=env)
    assert done.stdout.startswith("1 delivered"), done.stderr
    assert team.user_password not in done.stdout + done.stderr
    assert holding(settings.root, team.user_password) == []
    marker = store.read(path).delivery("mlflow")
    assert marker is not None
    assert "[redacted]@" in marker.target


def test_a_user_without_rights_is_told_which_are_missing(
    team: Team, settings: Settings, store: ReceiptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.call("/api/2.0/mlflow/users/create", {"username": "guest", "password": "Gu3st-of-the-team"}, admin=True)
    path = synthetic.put(store, synthetic.record(store.begin_session(settings)))
    other = team.call("/api/2.0/mlflow/experiments/get-by-name?experiment_name=neuronbench/serving", admin=True)
    assert other["experiment"]["lifecycle_stage"] == "active"
    for name, value in team.login("Gu3st-of-the-team", user="guest").items():
        monkeypatch.setenv(name, value)
    delivery = MlflowSink(settings, patience=PATIENT).write(path)
    assert delivery.state == "pending"
    assert "ask for EDIT on the experiments neuronbench/*" in delivery.reason


def test_artifacts_can_go_to_s3_directly(
    team: Team, settings: Settings, store: ReceiptStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = {"name": "neuronbench/encoder", "artifact_location": f"s3://{BUCKET}/direct"}
    team.call("/api/2.0/mlflow/experiments/create", body)
    for name, value in {**S3, "MLFLOW_S3_ENDPOINT_URL": team.s3_url}.items():
        monkeypatch.setenv(name, value)
    session = store.begin_session(settings)
    point = Point(benchmark="b.py::b", lane="encoder", backend="cpu", params=FrozenMap(batch=8), id="encoder-b8")
    path = synthetic.put(store, synthetic.record(session, point=point), table=synthetic.requests(20))
    store.end_session(session, 0)
    assert push(settings).ok
    assert any(key.startswith("direct/") and key.endswith("/record.json") for key in team.objects())
    away = settings_at(tmp_path / "away", tracking_uri=team.url)
    result = pull(away, Selection(lanes=["encoder"]))
    assert (result.fetched, result.ok) == ([store.read(path).id], True)
    assert trees(ReceiptStore(away.receipts_dir), session) == trees(store, session)


# -- two hosts at once -------------------------------------------------------------------------------------------------

PUSHER = """
import sys
from pathlib import Path
from neuronbench.config import Settings
from neuronbench.sinks.mlflow import push

root, url = Path(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
result = push(Settings(root=root, data_root=root / "mlruns", traces=2, tracking_uri=url))
assert result.ok, result
print(len(result.delivered), len(result.already))
"""


def test_two_hosts_that_push_the_same_at_once_make_one_set_of_runs(
    team: Team, settings: Settings, store: ReceiptStore, reader: Callable[..., Reader], tmp_path: Path
) -> None:
    session = store.begin_session(settings)
    for concurrency in (1, 2, 3, 4):
        for repeat in (1, 2):
            made = synthetic.record(session, repeat=repeat, point=synthetic.point(concurrency=concurrency))
            synthetic.put(store, made, table=synthetic.requests(20) if concurrency == 2 else None)
    store.end_session(session, 0)
    shutil.copytree(settings.data_root, tmp_path / "other" / "mlruns")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PUSHER, str(root), team.url],
            env=environ(team), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for root in (settings.root, tmp_path / "other")
    ]  # fmt: skip
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    told = []
    for child in children:
        out, err = child.communicate(timeout=400)
        assert child.returncode == 0, err
        told.append(tuple(map(int, out.split())))
    assert [sum(each) for each in told] == [8, 8]
    mlflow = reader(team.url)
    runs = mlflow.runs(nb_session=session)
    assert Counter(run.data.tags["nb.kind"] for run in runs) == {"session": 1, "point": 8, "summary": 4}
    assert {run.info.status for run in runs} == {"FINISHED"}
    (parent,) = (run for run in runs if run.data.tags["nb.kind"] == "session")
    children_of = {run.data.tags["mlflow.parentRunId"] for run in runs if run is not parent}
    assert children_of == {parent.info.run_id}
    for run in runs:
        if run.data.tags["nb.kind"] == "point":
            assert run.data.metrics["ttft/p50_ms"] == 58.0
            assert "files.json" in mlflow.artifacts(run)
            assert "nb.incomplete" not in run.data.tags
    for root in (settings.root, tmp_path / "other"):  # both know the run that stayed
        there = ReceiptStore(root / "mlruns" / "receipts")
        known = {there.read(header.path).delivery("mlflow").reference for header in there.headers()}  # type: ignore[union-attr]
        assert known == {run.info.run_id for run in runs if run.data.tags["nb.kind"] == "point"}


# -- and back ----------------------------------------------------------------------------------------------------------


def test_what_was_pushed_is_pulled_elsewhere_to_the_last_byte(
    team: Team, settings: Settings, store: ReceiptStore, tmp_path: Path
) -> None:
    sessions = [measured(store, settings)]
    assert push(settings).ok
    away = tmp_path / "away"
    away.mkdir()
    (away / "neuronbench.toml").write_text(f'tracking_uri = "{team.url}"\n')
    words = [word for session in sessions for word in ("--session", session)]
    done = command(away, "pull", *words, env=environ(team))
    assert done.stdout.startswith("5 fetched, 0 were here already, 0 refused"), done.stdout + done.stderr
    there = ReceiptStore(away / "mlruns" / "receipts")
    for session in sessions:
        assert trees(there, session) == trees(store, session)
        assert len(trees(there, session)) == 5
        manifest = (store.root / session / "session.json").read_bytes()
        assert (there.root / session / "session.json").read_bytes() == manifest
    here = settings_at(away, tracking_uri=team.url)
    again = pull(here, Selection(sessions=sessions))
    assert (again.fetched, len(again.kept), again.ok) == ([], 5, True)
    assert push(here) == type(push(here))()  # and they are known to be there


def test_a_receipt_that_is_another_here_is_refused(
    team: Team, settings: Settings, store: ReceiptStore, tmp_path: Path
) -> None:
    session = measured(store, settings)
    assert push(settings).ok
    away = settings_at(tmp_path / "away", tracking_uri=team.url)
    mine = ReceiptStore(away.receipts_dir).root / session / "serving-closed_loop-c8--r1"
    shutil.copytree(store.root / session / mine.name, mine)
    (mine / "record.json").write_text((mine / "record.json").read_text().replace("58.0", "5.8"))
    before = contents(mine)
    result = pull(away, Selection(sessions=[session]))
    ((refused, reason),) = result.refused
    assert refused == f"{session}/{mine.name}"
    assert "is there already and is another receipt: record.json: expected" in reason
    assert len(result.fetched) == 4
    assert contents(mine) == before


def test_selections(team: Team, settings: Settings, store: ReceiptStore, tmp_path: Path) -> None:
    session = measured(store, settings)
    assert push(settings).ok
    by_tag = pull(settings_at(tmp_path / "a", tracking_uri=team.url),
                  Selection(sessions=[session], tags={"release": "1.2"}))  # fmt: skip
    names = {receipt.partition("/")[2] for receipt in by_tag.fetched}
    assert names == {f"serving-closed_loop-c8--r{n}" for n in (1, 2)} | {"boot-endpoint-1a2b3c4d"}  # which they cite
    by_run_tag = Selection(sessions=[session], tags={"nb.outcome": "error"})
    found = pull(settings_at(tmp_path / "b", tracking_uri=team.url), by_run_tag)
    assert f"{session}/serving-closed_loop-c16--r1" in found.fetched
    nothing = pull(settings_at(tmp_path / "c", tracking_uri=team.url), Selection(sessions=[session], lanes=["moe"]))
    assert (nothing.fetched, nothing.kept, nothing.ok) == ([], [], True)
    assert not (tmp_path / "c" / "mlruns" / "receipts").exists()


def test_what_came_damaged_is_thrown_away(team: Team, settings: Settings, store: ReceiptStore, tmp_path: Path) -> None:
    import boto3

    session = measured(store, settings)
    assert push(settings).ok
    marker = store.read(store.root / session / "serving-closed_loop-c8--r1").delivery("mlflow")
    assert marker is not None
    key = next(key for key in team.objects() if key.endswith(f"{marker.reference}/artifacts/requests.parquet"))
    s3 = boto3.client("s3", endpoint_url=team.s3_url, region_name="us-east-1", aws_access_key_id="testing",
                      aws_secret_access_key="testing")  # fmt: skip
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"PAR1 something else PAR1")
    away = settings_at(tmp_path / "away", tracking_uri=team.url)
    result = pull(away, Selection(sessions=[session]))
    ((refused, reason),) = result.refused
    assert refused == f"{session}/serving-closed_loop-c8--r1"
    assert "what came is not what was sent: requests.parquet" in reason
    assert not (away.receipts_dir / session / "serving-closed_loop-c8--r1").exists()
    assert [path for path in (away.receipts_dir / session).iterdir() if path.name.startswith(".")] == []
