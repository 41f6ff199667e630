"""Starts the team's MLflow server: logins, PostgreSQL, artifacts in S3 through the server. Runs in its container.

Passwords come from Secrets Manager while it runs: they are in no template, no image, no command line, and in no
environment that an API would show. PostgreSQL's is read anew every minute into a password file, which libpq looks at
for each connection, so a rotated one needs no restart.

Environment: NB_DATABASE_SECRET, NB_ADMIN_SECRET, NB_CLIENT_SECRET (ARNs or names), NB_DATABASE_HOST, NB_DATABASE_PORT,
NB_DATABASE_SSL (libpq's `sslmode`), NB_DATABASE_CA (a file), NB_ARTIFACTS (`s3://...`), NB_HOST (the name clients use),
NB_LISTEN (address and port), NB_WORKERS, NB_FOLDER (for files nobody else may read).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

REFRESH_S = 60
READY_S = 300
DATABASES = ("mlflow", "mlflow_auth")
"""What MLflow keeps, and who may see it."""


def command(environ: Mapping[str, str]) -> list[str]:
    """The server's command line. There is nothing secret in it."""
    address, _, port = environ["NB_LISTEN"].rpartition(":")
    host = environ["NB_HOST"]
    return [
        sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth",
        "--backend-store-uri", database_uri(environ, DATABASES[0]),
        "--artifacts-destination", environ["NB_ARTIFACTS"], "--serve-artifacts",
        "--host", address, "--port", port, "--workers", environ.get("NB_WORKERS", "2"),
        "--allowed-hosts", f"{host},{host}:443,127.0.0.1:{port}",
        "--cors-allowed-origins", f"https://{host}",
    ]  # fmt: skip


def database_uri(environ: Mapping[str, str], name: str) -> str:
    """SQLAlchemy's name of a database, without a password: libpq takes it from its file."""
    query = {"host": environ["NB_DATABASE_HOST"], "port": environ["NB_DATABASE_PORT"]}
    query["sslmode"] = environ["NB_DATABASE_SSL"]
    if environ.get("NB_DATABASE_CA"):
        query["sslrootcert"] = environ["NB_DATABASE_CA"]
    user = json.loads(secret(environ["NB_DATABASE_SECRET"]))["username"]
    return f"postgresql+psycopg://{quote(user, safe='')}@/{name}?{urlencode(query)}"


def auth_config(environ: Mapping[str, str]) -> str:
    """MLflow's file of who may enter. The administrator is made from the environment, on the first start only."""
    uri = database_uri(environ, DATABASES[1]).replace("%", "%%")  # its parser takes one as the start of a name
    return (
        "[mlflow]\ndefault_permission = READ\n"
        "auth_cache_ttl_seconds = 600\n"  # else it hashes the password at every request
        f"database_uri = {uri}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )


def passwords(user: str, password: str) -> str:
    """The text of libpq's password file, in which colons and backslashes are escaped."""
    clean = [part.replace("\\", "\\\\").replace(":", "\\:") for part in (user, password)]
    return f"*:*:*:{clean[0]}:{clean[1]}\n"


def secret(name: str) -> str:
    """The text of a secret."""
    import boto3

    return str(boto3.client("secretsmanager").get_secret_value(SecretId=name)["SecretString"])


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(fresh, path)


def refresh(environ: Mapping[str, str], path: Path) -> None:
    """Write PostgreSQL's present password to libpq's file."""
    login = json.loads(secret(environ["NB_DATABASE_SECRET"]))
    write_private(path, passwords(login["username"], login["password"]))


def make_databases(environ: Mapping[str, str]) -> None:
    """Make the databases that are not there; RDS makes none of these."""
    import psycopg

    uri = database_uri(environ, "postgres").replace("+psycopg", "")
    with psycopg.connect(uri, autocommit=True, connect_timeout=30) as connection:
        there = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
        for name in DATABASES:
            if name not in there:
                connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload,unused-ignore]


def make_client(environ: Mapping[str, str], admin: Mapping[str, str]) -> None:
    """Make the login that benchmarks' clients use, or give it its present password."""
    port = environ["NB_LISTEN"].rpartition(":")[2]
    login = json.loads(secret(environ["NB_CLIENT_SECRET"]))
    body = {"username": login["username"], "password": login["password"]}
    for path, method in (("create", "POST"), ("update-password", "PATCH")):
        token = base64.b64encode(f"{admin['username']}:{admin['password']}".encode()).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/2.0/mlflow/users/{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Basic {token}"},
            method=method,
        )
        try:
            urllib.request.urlopen(request, timeout=60).close()
            return
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if method == "PATCH" or "RESOURCE_ALREADY_EXISTS" not in text:
                raise RuntimeError(f"cannot {path} user {login['username']}: {error.code} {text[:500]}") from None


def wait_ready(environ: Mapping[str, str], child: subprocess.Popen[bytes]) -> None:
    """Return when the server answers; raises where it has ended or is not ready in time."""
    url = f"http://127.0.0.1:{environ['NB_LISTEN'].rpartition(':')[2]}/health"
    deadline = time.monotonic() + READY_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError as error:
            if child.poll() is not None:
                raise RuntimeError(f"mlflow ended with {child.returncode} before it was ready") from None
            if time.monotonic() > deadline:
                raise RuntimeError(f"mlflow does not answer after {READY_S} s: {error}") from None
        time.sleep(0.2)


def main() -> int:
    """Run the server until it ends or somebody ends us; its exit status."""
    environ = os.environ
    folder = Path(environ.get("NB_FOLDER", "/tmp/nb-tracking"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    passfile = folder / "pgpass"
    os.environ["PGPASSFILE"] = str(passfile)
    refresh(environ, passfile)
    make_databases(environ)
    config = folder / "auth.ini"
    write_private(config, auth_config(environ))
    admin = json.loads(secret(environ["NB_ADMIN_SECRET"]))
    child = subprocess.Popen(command(environ), env=_server_environment(environ, config, admin))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    try:
        wait_ready(environ, child)
        make_client(environ, admin)
    except BaseException:
        child.terminate()
        child.wait(30)
        raise
    print("nb-tracking: ready", flush=True)
    done = threading.Event()
    threading.Thread(target=_keep_fresh, args=(environ, passfile, done), daemon=True).start()
    status = child.wait()
    done.set()
    return status


def _server_environment(environ: Mapping[str, str], config: Path, admin: Mapping[str, Any]) -> dict[str, str]:
    return {
        **environ,
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_AUTH_ADMIN_USERNAME": admin["username"],
        "MLFLOW_AUTH_ADMIN_PASSWORD": admin["password"],
        # All workers must have the same, also after a restart.
        "MLFLOW_FLASK_SERVER_SECRET_KEY": hmac.new(
            admin["password"].encode(), b"neuronbench: forms of the tracking server", hashlib.sha256
        ).hexdigest(),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _keep_fresh(environ: Mapping[str, str], passfile: Path, done: threading.Event) -> None:
    while not done.wait(REFRESH_S):
        try:
            refresh(environ, passfile)
        except Exception as error:  # the password that is there is most likely still right
            print(f"nb-tracking: cannot read the database's password: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
