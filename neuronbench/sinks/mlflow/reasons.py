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


_STATUS: Final = re.compile(
    r"\berror code (\d{3})\b|\b(\d{3}) (?:Client|Server) Error\b|too many (\d{3}) error responses"
)
_PASSING: Final = frozenset({408, 425, 429, 502, 503, 504})
"""What proxies and servers say that are overloaded, or on their way down or up."""
_SOMEBODY: Final = ("Read timed out", "Connection aborted", "ConnectionReset", "RemoteDisconnected")
"""The connection was taken, and then came nothing, or its end."""
_EXHAUSTED: Final = ("QueuePool limit", "too many clients already", "remaining connection slots")
"""A server that has run out of connections to its database calls that a bad request."""


def http_status(uri: str, error: BaseException) -> int:
    """The HTTP status that an error tells of, 0 when it tells of none."""
    found = _STATUS.search(str(error)) if _by_http(uri) else None
    return int(next(filter(None, found.groups()))) if found else 0


def busy(uri: str, error: BaseException) -> bool:
    """Whether somebody is there who cannot answer now."""
    text = str(error)
    return _by_http(uri) and (
        http_status(uri, error) in _PASSING or any(sign in text for sign in (*_SOMEBODY, *_EXHAUSTED))
    )


def unreachable(uri: str, error: BaseException | None) -> bool:
    """Whether nobody answers, or only to say "not now": then each further try at once would be in vain."""
    if error is None or not _by_http(uri):
        return False
    if busy(uri, error):
        return True
    if http_status(uri, error):
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
    found = http_status(uri, error)
    return found if found in (401, 403) else 0


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
    said = http_status(uri, error)
    if said in _PASSING:
        return f"{where}: is there, and says that it cannot answer now ({said})"
    if unreachable(uri, error):
        for sign, meaning in _NETWORK:
            if sign in text:
                return f"{where}: {meaning.format(waited=waited_s)}"
    text = text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."
    return f"{where}: {type(error).__name__}: {text}"


def _by_http(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))
