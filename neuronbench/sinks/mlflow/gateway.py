"""The way to MLflow: one client, short patience, a lock, and a breaker that opens when nobody answers.

Only `MlflowClient` is used. The fluent API would write its URI into this process's environment, where servers and
trainers started later inherit it.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from neuronbench.model import slug
from neuronbench.receipts import LockTimeout, locked
from neuronbench.redaction import redact
from neuronbench.sinks.mlflow import reasons
from neuronbench.sinks.mlflow.patience import LIVE, PUSH, Outage, Patience
from neuronbench.sinks.mlflow.quiet import mlflow_quiet, quieten

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

    from neuronbench.config import Settings

__all__ = ["LIVE", "PUSH", "Gateway", "Patience", "Unavailable", "artifacts_of", "lanes_of", "mlflow_quiet", "quieten",
           "rehome", "sqlite_file"]  # fmt: skip

LOCK_NAME: Final = ".mlflow.lock"
KIND_TAG: Final = "mlflow.experimentKind"
KIND: Final = "custom_model_development"
"""Opens an experiment on its table of runs. Left to guess, the UI sees traces and opens the pages for chat agents."""
GUESSED: Final = ("", "no_inferred_type", "genai_development_inferred", "custom_model_development_inferred")
"""Kinds that nobody has chosen."""
_STRIKES: Final = 3
"""Receipts in a row that a server has failed on: then it is the server, not a receipt."""

T = TypeVar("T")


class Unavailable(Exception):
    """MLflow cannot take anything now; the text says why and is kept as the reason of `pending`."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing
        """Whether the same may well succeed in a while."""


class Gateway:
    """Opens MLflow for `uri` when first needed. After a failure to reach it, it stays closed: no second wait.

    With patience for an outage it is closed only when that has lasted as long. `say` is told what is waited for.
    """

    def __init__(
        self, settings: Settings, *, uri: str, patience: Patience = LIVE, say: Callable[[str], None] | None = None
    ) -> None:
        self.settings = settings
        self.uri = uri
        self.patience = patience
        self.broken = ""
        """Why the breaker is open; empty while it is closed."""
        self._client: MlflowClient | None = None
        self._held = ""
        """Which lock was waited for in vain, in words: until it is free, nobody waits for it again."""
        self._experiments: dict[str, str] = {}
        self._outage = Outage(patience.outage_s)
        self._strikes = 0
        self.say = say or (lambda text: None)

    # -- where it is --------------------------------------------------------------------------------------------------

    @property
    def sqlite(self) -> Path | None:
        """The database file when the store is SQLite."""
        return sqlite_file(self.uri)

    @property
    def _lock(self) -> Path:
        """Beside a SQLite file, so that all who write to it know it; else of the data root."""
        path = self.sqlite
        return (self.settings.data_root if path is None else path.parent) / LOCK_NAME

    @property
    def rival_s(self) -> float | None:
        """How long to wait for others that write the same; None where the lock keeps them away."""
        return self.patience.rival_s if self.sqlite is None else None

    @property
    def served(self) -> bool:
        """Whether a server stands between us and the store: then it decides where artifacts go."""
        return not self.uri.startswith(("sqlite:", "postgresql", "mysql", "mssql"))

    @property
    def own_store(self) -> bool:
        """Whether it is the store beside the receipts, whose artifacts are beside it too."""
        return self.sqlite == self.settings.database

    @property
    def target(self) -> str:
        """Which store a marker speaks of. For SQLite a number kept inside the file: it moves with it and dies with it.

        Empty for a database that is not there yet.
        """
        path = self.sqlite
        if path is None:
            return redact(self.uri)
        if not path.is_file():
            return ""
        with _database(path, self.patience.busy_s) as database:
            (number,) = database.execute("PRAGMA user_version").fetchone()
        return f"sqlite:{number:08x}" if number else ""

    # -- opening ------------------------------------------------------------------------------------------------------

    def call(self, action: Callable[[MlflowClient], T]) -> T:
        """What `action` returns; it is called again while the server is away for a while. Raises `Unavailable`.

        `action` must come to the same when it is cut off anywhere and called again.
        """
        while True:
            try:
                with self.open() as client:
                    found = action(client)
            except Unavailable as error:
                if self.broken or not error.passing:
                    raise
                reason = str(error)
                if not self._outage.wait(lambda told: self.say(f"{reason}; {told}")):  # noqa: B023 - used at once
                    self.broken = reason
                    raise
            else:
                self._outage.over()
                self._strikes = 0
                return found

    @contextmanager
    def open(self) -> Iterator[MlflowClient]:
        """The client, while this process alone of the data root may write. Raises `Unavailable`."""
        if self.broken:
            raise Unavailable(self.broken)
        try:
            lock_s = 0.0 if self._held else self.patience.lock_s
            with (
                locked(self._lock, timeout_s=lock_s, purpose="writing to MLflow"),
                mlflow_quiet(self._variables()),
            ):
                client = self._connect()
                self._held = ""
                yield client
        except Unavailable:
            raise
        except LockTimeout as error:
            self._held = self._held or str(error)
            raise Unavailable(self._held) from error
        except Exception as error:
            reason = self.reason(error)
            raise Unavailable(reason, passing=self._judge(error, reason)) from error

    def _judge(self, error: Exception, reason: str) -> bool:
        """Whether the failure will pass; opens the breaker where it will not and concerns all that follows."""
        if reasons.refused(self.uri, error) == 401:
            self.broken = reason
        elif self.unreachable(error):
            if self.patience.outage_s:
                return True
            self.broken = reason
        elif reasons.http_status(self.uri, error) == 500:
            self._strikes += 1
            if self._strikes >= _STRIKES or not self.patience.outage_s:
                self.broken = reason
        return False

    def _variables(self) -> Mapping[str, str]:
        patience = self.patience.request_s if self._client is not None else self.patience.first_s
        return {
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(patience),
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(self.patience.retries if self._client is not None else 0),
            "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
            "MLFLOW_ASYNC_TRACE_LOGGING_RETRY_TIMEOUT": str(patience),
            "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
            "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
        }

    def _connect(self) -> MlflowClient:
        path = self.sqlite
        if path is not None:
            try:
                self._check_free(path, 0.0 if self._held else self.patience.busy_s)
            except sqlite3.OperationalError as error:
                self._held = self._held or self.reason(error)
                raise Unavailable(self._held) from error
        if self._client is not None:
            return self._client
        try:
            from mlflow import MlflowClient

            quieten()  # importing has set the levels again
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with _database(path, self.patience.busy_s) as database:  # MLflow itself would try for minutes
                    database.execute("PRAGMA schema_version")
            if self.own_store:
                rehome(self.settings)
            client = MlflowClient(tracking_uri=self.uri)
            client.search_experiments(max_results=1)  # makes the schema, or meets the server
            if path is not None:
                _number(path, self.patience.busy_s)
        except sqlite3.Error:
            raise
        except Exception as error:  # without a client there is no second try in this session, unless it is only busy
            reason = self.reason(error)
            if self.patience.outage_s and reasons.busy(self.uri, error):
                raise Unavailable(reason, passing=True) from error
            self.broken = reason
            raise Unavailable(reason) from error
        self._client = client
        os.environ.update(self._variables())  # inside mlflow_quiet: restored with the rest
        return client

    def _check_free(self, path: Path, timeout_s: float) -> None:
        """Wait briefly for the write lock; MLflow itself would wait 20 s at every statement."""
        if path.is_file():
            with _database(path, timeout_s) as database:
                database.execute("BEGIN IMMEDIATE")
                database.rollback()

    # -- failures -----------------------------------------------------------------------------------------------------

    def reason(self, error: BaseException) -> str:
        """One line about a failure, fit to be kept."""
        waited = self.patience.first_s if self._client is None else self.patience.request_s
        if isinstance(error, sqlite3.Error):
            return reasons.reason(self.uri, error, waited_s=self.patience.busy_s, database=self.sqlite)
        return reasons.reason(self.uri, error, waited_s=waited)

    def unreachable(self, error: BaseException | None) -> bool:
        """Whether the network is to blame: then each further try would wait in vain."""
        return reasons.unreachable(self.uri, error)

    def artifacts(self, run: Run) -> ArtifactRepository:
        """Where the artifacts of a run go, without asking the server for the run again."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        return get_artifact_repository(run.info.artifact_uri, tracking_uri=self.uri)

    # -- experiments --------------------------------------------------------------------------------------------------

    def experiment(self, client: MlflowClient, lane: str) -> str:
        """Id of the experiment of `lane`, made when missing."""
        if lane in self._experiments:
            return self._experiments[lane]
        name = f"neuronbench/{lane}"
        found = client.get_experiment_by_name(name)
        if found is None:
            location = None if self.served else artifacts_of(self.settings, lane)  # its default is ./mlruns
            try:
                made = client.create_experiment(name, artifact_location=location, tags={KIND_TAG: KIND})
                found = client.get_experiment(made)
            except Exception:
                found = client.get_experiment_by_name(name)  # another host was faster
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise Unavailable(f"experiment {name!r} is deleted in MLflow; restore it there, then push")
        if found.tags.get(KIND_TAG, "") in GUESSED:
            client.set_experiment_tag(found.experiment_id, KIND_TAG, KIND)
        self._experiments[lane] = found.experiment_id
        return self._experiments[lane]


def artifacts_of(settings: Settings, lane: str) -> str:
    """Where the artifacts of a lane are kept with our own store: a URI below the data root."""
    return (settings.artifacts_dir / slug(lane)).as_uri()


# --------------------------------------------------------------------------------------------------------------------
# the SQLite file


def sqlite_file(uri: str) -> Path | None:
    """The database file of a SQLite store's URI; None for another store."""
    prefix = "sqlite:///"
    return Path(uri[len(prefix) :].partition("?")[0]) if uri.startswith(prefix) else None


@contextmanager
def _database(path: Path, timeout_s: float) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def _number(path: Path, timeout_s: float) -> None:
    """Give a database its number (`PRAGMA user_version`, which MLflow does not use) when it has none."""
    with _database(path, timeout_s) as database:
        if database.execute("PRAGMA user_version").fetchone() == (0,):
            database.execute(f"PRAGMA user_version = {secrets.randbelow(2**31 - 1) + 1}")


def lanes_of(uri: str) -> dict[str, str]:
    """Lane → id of its experiment in a SQLite store; empty where there is none, or nothing in it yet."""
    path = sqlite_file(uri)
    if path is None or not path.is_file():
        return {}
    try:
        with _database(path, LIVE.busy_s) as database:
            rows = database.execute(
                "SELECT name, experiment_id FROM experiments "
                "WHERE name LIKE 'neuronbench/%' AND lifecycle_stage = 'active' ORDER BY name"
            ).fetchall()
    except sqlite3.Error:
        return {}
    return {str(name).removeprefix("neuronbench/"): str(experiment) for name, experiment in rows}


def rehome(settings: Settings) -> int:
    """Correct the artifact locations in our own store after the data root was moved; returns how many experiments.

    MLflow stores absolute locations. Ours are always `<data root>/artifacts/<lane>`, so a store that says otherwise
    was moved or copied here.
    """
    path = settings.database
    if not path.is_file():
        return 0
    here = settings.artifacts_dir.as_uri()
    with _database(path, LIVE.busy_s) as database:
        tables: Any = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "experiments" not in tables:
            return 0
        moved = [
            (experiment, location)
            for experiment, name, location in database.execute(
                "SELECT experiment_id, name, artifact_location FROM experiments WHERE name LIKE 'neuronbench/%'"
            ).fetchall()
            if location
            and location.startswith("file://")
            and not location.startswith(here + "/")
            and location.endswith("/artifacts/" + slug(name.removeprefix("neuronbench/")))
        ]
        if not moved:
            return 0
        database.execute("BEGIN IMMEDIATE")
        for experiment, location in moved:
            old = location.rpartition("/")[0]
            database.execute(
                "UPDATE experiments SET artifact_location = ? || substr(artifact_location, ?) WHERE experiment_id = ?",
                (here, len(old) + 1, experiment),
            )
            database.execute(
                "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
                "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
                (here, len(old) + 1, experiment, len(old) + 1, old + "/"),
            )
        database.commit()
    return len(moved)
