"""A data root with a session in it, and MLflow stores that need not be migrated for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sink_helpers import QUICK, Reader, settings_at

from neuronbench.config import Settings
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink
from neuronbench.sinks.mlflow.gateway import mlflow_quiet
from neuronbench.testing.tracking.team import NEEDS, Team, team_server


@pytest.fixture(scope="session")
def prepared_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its schema: making one takes over a second."""
    settings = settings_at(tmp_path_factory.mktemp("prepared"))
    with MlflowSink(settings).gateway.open():
        pass
    return settings.database


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """One team's server for all files: it takes as long to start as all else that a test of it does."""
    for module in NEEDS:
        pytest.importorskip(module, reason=f"{module} is not installed; `make harness` installs it")
    with team_server(tmp_path_factory.mktemp("team")) as team:
        yield team


@pytest.fixture
def settings(tmp_path: Path, prepared_db: Path) -> Settings:
    made = settings_at(tmp_path)
    made.data_root.mkdir()
    shutil.copy(prepared_db, made.database)
    return made


@pytest.fixture
def store(settings: Settings) -> ReceiptStore:
    return ReceiptStore(settings.receipts_dir)


@pytest.fixture
def session(store: ReceiptStore, settings: Settings) -> str:
    return store.begin_session(settings, command=["pytest", "benchmarks", "-m", "cpu"])


@pytest.fixture
def sink(settings: Settings) -> MlflowSink:
    return MlflowSink(settings, patience=QUICK)


@pytest.fixture
def quiet() -> Iterator[None]:
    """MLflow's own warnings are not errors of ours, also where a test reads from it."""
    with mlflow_quiet({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}):
        yield


@pytest.fixture
def reader(quiet: None) -> Callable[..., Reader]:
    return Reader
