"""MLflow kept quiet while it is called, and only then."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_CHATTY: Final = ("mlflow", "alembic")


@contextmanager
def mlflow_quiet(variables: Mapping[str, str]) -> Iterator[None]:
    """Settings for MLflow while it is called, and only then: what is started later inherits none of them.

    Its usage reporting is off, its chatter and warnings are not ours to show. It would also print the address of each
    run, with the password that is in the address of the server, and between the lines of `--json`.
    """
    ours = {
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", **variables,
    }  # fmt: skip
    names = (*ours, "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
    before = {name: os.environ.get(name) for name in names}
    levels = {name: logging.getLogger(name).level for name in _CHATTY}
    os.environ.update(ours)
    quieten()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def quieten() -> None:
    """Let MLflow's loggers speak of errors only."""
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
