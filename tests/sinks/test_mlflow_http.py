"""The sink and a real MLflow server over HTTP, and servers that are not there or never answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic_receipts as synthetic
from sink_helpers import PATIENT, QUICK, Reader, settings_at

from neuronbench.config import Settings
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink, push, ui_command, ui_environment


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


class Served:
    """`neuronbench ui` on a store that the sink wrote before it was started."""

    def __init__(self, settings: Settings, url: str, session: str) -> None:
        self.settings, self.url, self.session = settings, url, session


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, prepared_db: Path) -> Iterator[Served]:
    settings = settings_at(tmp_path_factory.mktemp("served"))
    settings.data_root.mkdir()
    shutil.copy(prepared_db, settings.database)
    store = ReceiptStore(settings.receipts_dir)
    session = store.begin_session(settings)
    sink = MlflowSink(settings)
    delivery = sink.write(synthetic.put(store, synthetic.record(session), table=synthetic.requests(40)))
    assert delivery.state == "delivered", delivery.reason
    sink.close()
    store.end_session(session, 0)

    url, log = f"http://127.0.0.1:{(port := free_port())}", settings.root / "ui.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            ui_command(settings, port=port), env=ui_environment(), stdout=out, stderr=out, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                fetch(url + "/health")
                break
            except (OSError, urllib.error.URLError):
                assert child.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        yield Served(settings, url, session)
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(20)


def test_the_ui_serves_what_the_sink_wrote(served: Served) -> None:
    api = served.url + "/api/2.0/mlflow"
    found = json.loads(fetch(api + "/experiments/search", {"max_results": 10}))["experiments"]
    (experiment,) = [item["experiment_id"] for item in found if item["name"] == "neuronbench/serving"]
    query = {"experiment_ids": [experiment], "filter": "tags.`nb.kind` = 'point'"}
    (run,) = json.loads(fetch(api + "/runs/search", query))["runs"]
    run_id = run["info"]["run_id"]
    listed = json.loads(fetch(f"{api}/artifacts/list?run_id={run_id}"))["files"]
    assert {item["path"] for item in listed} == {"record.json", "requests.parquet", "files.json", "figures"}
    record = json.loads(fetch(f"{served.url}/get-artifact?run_uuid={run_id}&path=record.json"))
    assert record["session"] == served.session
    picture = fetch(f"{served.url}/get-artifact?run_uuid={run_id}&path=figures/timeline.png")
    assert picture.startswith(b"\x89PNG")
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    query = {"locations": [place], "filter": f"attributes.run_id = '{run_id}'", "max_results": 50}
    traces = json.loads(fetch(served.url + "/api/3.0/mlflow/traces/search", query))["traces"]
    assert len(traces) == 6
    assert b"neuronbench" in fetch(served.url + "/api/2.0/mlflow/experiments/get?experiment_id=" + experiment)


@pytest.fixture
def remote(served: Served, tmp_path: Path) -> Settings:
    """A data root of its own whose MLflow is the server."""
    return settings_at(tmp_path, tracking_uri=served.url)


def test_delivery_to_a_server(remote: Settings, reader: Callable[..., Reader], tmp_path: Path) -> None:
    store = ReceiptStore(remote.receipts_dir)
    session = store.begin_session(remote)
    sink = MlflowSink(remote, patience=PATIENT)
    for repeat in (1, 2):
        path = synthetic.put(store, synthetic.record(session, repeat=repeat), table=synthetic.requests(40))
        delivery = sink.write(path)
        assert delivery.state == "delivered", delivery.reason
        assert sink.write(path) == delivery
    sink.close()
    store.end_session(session, 0)
    mlflow = reader(remote.mlflow_uri)
    run = mlflow.run(f"{session}/serving-closed_loop-c8--r1")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["ttft/p50_ms"] == 58.0
    assert mlflow.artifacts(run) == {"record.json", "requests.parquet", "files.json", "figures"}
    assert json.loads(mlflow.download(run, "record.json", tmp_path / "d").read_text())["session"] == session
    assert len(mlflow.traces(run)) == 6
    assert {len(trace.data.spans) for trace in mlflow.traces(run)} <= {3, 4}
    assert len(mlflow.runs(nb_kind="summary", nb_session=session)) == 1
    assert push(remote) == type(push(remote))()
    marker = store.read(path).delivery("mlflow")
    assert marker is not None
    assert marker.target == remote.tracking_uri


def test_what_was_pending_for_want_of_a_server_is_pushed_once_it_is_there(
    remote: Settings, reader: Callable[..., Reader]
) -> None:
    away = replace(remote, tracking_uri=f"http://127.0.0.1:{free_port()}")
    store = ReceiptStore(away.receipts_dir)
    session = store.begin_session(away)
    sink = MlflowSink(away, patience=QUICK)
    for repeat in (1, 2):
        delivery = sink.write(synthetic.put(store, synthetic.record(session, repeat=repeat)))
        assert delivery.state == "pending"
        assert "refused" in delivery.reason
    sink.close()
    store.end_session(session, 0)
    assert len(list(store.pending("mlflow"))) == 2
    result = push(away)
    assert not result.ok
    assert [receipt for receipt, _ in result.failed] == [f"{session}/serving-closed_loop-c8--r{n}" for n in (1, 2)]
    result = push(remote)
    assert (len(result.delivered), result.failed) == (2, ())
    runs = reader(remote.mlflow_uri).runs(nb_session=session, nb_kind="point")
    assert sorted(run.data.tags["nb.repeat"] for run in runs) == ["1", "2"]


class Silent:
    """Takes connections, reads, and never answers; counts them."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections: list[socket.socket] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


def test_a_server_that_never_answers_is_waited_for_once(silent: Silent, tmp_path: Path) -> None:
    settings = settings_at(tmp_path, tracking_uri=silent.url)
    store = ReceiptStore(settings.receipts_dir)
    session = store.begin_session(settings)
    sink = MlflowSink(settings, patience=replace(QUICK, first_s=1))
    reasons = set()
    for repeat in range(1, 6):
        delivery = sink.write(synthetic.put(store, synthetic.record(session, repeat=repeat)))
        assert delivery.state == "pending"
        reasons.add(delivery.reason)
    sink.close()
    assert len(silent.connections) == 1
    assert len(reasons) == 1
    assert "timed out" in reasons.pop()


def test_a_server_that_falls_silent_later_is_given_up_too(
    served: Served, silent: Silent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_at(tmp_path, tracking_uri=served.url)
    store = ReceiptStore(settings.receipts_dir)
    session = store.begin_session(settings)
    sink = MlflowSink(settings, patience=PATIENT)
    assert sink.write(synthetic.put(store, synthetic.record(session))).state == "delivered"
    sink.gateway.patience = replace(PATIENT, request_s=1)
    client = sink.gateway._client
    assert client is not None
    credentials = client._tracking_client.store.get_host_creds
    monkeypatch.setattr(client._tracking_client.store, "get_host_creds", lambda: _redirected(credentials(), silent.url))
    for repeat in (2, 3):
        assert sink.write(synthetic.put(store, synthetic.record(session, repeat=repeat))).state == "pending"
    assert len(silent.connections) == 1
    assert sink.gateway.broken


def _redirected(credentials: Any, url: str) -> Any:
    credentials.host = url
    return credentials


def test_reasons_hold_no_passwords(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, tracking_uri=f"http://me:hunter2hunter2@127.0.0.1:{free_port()}")
    store = ReceiptStore(settings.receipts_dir)
    path = synthetic.put(store, synthetic.record(store.begin_session(settings)))
    assert MlflowSink(settings, patience=QUICK).write(path).state == "pending"
    text = (path / "sinks" / "mlflow.json").read_text()
    assert "hunter2" not in text
    assert "[redacted]" in text
