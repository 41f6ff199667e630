"""Why MLflow cannot take anything now, on one line that may be kept: no secrets, no line breaks, and what to do."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

from neuronbench.redaction import redact

LIMIT: Final = 300
_NETWORK: Final = (
    ("refused", "nothing listens there (connection refused)"),
    ("resol", "the name of the host cannot be resolved"),
    ("unreachable", "there is no way to that network"),
    ("imeout", "no answer within {waited:g} s (timed out)"),
    ("timed out", "no answer within {waited:g} s (timed out)"),
)
_LOGIN: Final = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN), then: neuronbench push"
)


def unreachable(uri: str, error: BaseException | None) -> bool:
    """Whether the network is to blame: then each further try would wait in vain."""
    if not _by_http(uri):
        return False
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.startswith(
            ("requests.", "urllib3.")
        ):
            return True
        if "failed with exception" in str(error) and "API request" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def refused(uri: str, error: BaseException) -> int:
    """401 when the server does not know who asks, 403 when that one may not, else 0."""
    found = re.search(r"\berror code (401|403)\b|\b(401|403) Client Error\b", str(error)) if _by_http(uri) else None
    return int(found[1] or found[2]) if found else 0


def reason(uri: str, error: BaseException, *, waited_s: float, database: object = None) -> str:
    """What `error` means. `waited_s`: how long an answer was waited for; `database`: the SQLite file, if it is one."""
    text = " ".join(redact(str(error)).split())
    where = f"MLflow at {redact(uri)}"
    if isinstance(error, sqlite3.OperationalError) and "locked" in text:
        return f"{database} is locked by another process (waited {waited_s:g} s)"
    status = refused(uri, error)
    if status == 401:
        return f"{where}: the login was refused, or none was given (401): {_LOGIN}"
    if status == 403:
        return (
            f"{where}: this user may not do that (403): ask for EDIT on the experiments neuronbench/* there, "
            "and for the right to create experiments; then: neuronbench push"
        )
    if unreachable(uri, error):
        for sign, meaning in _NETWORK:
            if sign in text:
                return f"{where}: {meaning.format(waited=waited_s)}"
    text = text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."
    return f"{where}: {type(error).__name__}: {text}"


def _by_http(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))
