"""Sessions as a user names them: an id, the start of one, `latest` or `latest~1`; `last` is the same word.

`latest` is the youngest session that was measured here and has a receipt: one that has none yet cannot be looked at.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.model import Outcome
from neuronbench.receipts.receipt import RECORD
from neuronbench.receipts.sessions import is_session_id
from neuronbench.words import counted

if TYPE_CHECKING:
    from neuronbench.receipts.store import ReceiptStore

_LATEST: Final = re.compile(r"(?:latest|last)(?:~(\d{1,9}))?")
_RESULTS: Final = (Outcome.OK, Outcome.SLO_MISS, Outcome.CACHED)
"""Outcomes that come with numbers, or stand for a record that does."""
_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Latest:
    """What `latest~BACK` means."""

    session: str
    back: int
    without: tuple[str, ...]
    """Sessions passed over on the way to it from `latest~(BACK-1)`, as they have no receipt; the youngest first."""


def back_of(name: str) -> int | None:
    """How far back from the youngest session `name` goes: 0 for `latest` and `last`, 2 for `latest~2`; else None."""
    found = _LATEST.fullmatch(name)
    return None if found is None else int(found[1] or 0)


def latest(store: ReceiptStore, back: int = 0) -> Latest:
    """The youngest session with receipts, or the one `back` before it. Raises `LookupError` when there are too few."""
    seen, without = 0, list[str]()
    for name in _youngest_first(store):
        if not has_receipts(store.root / name):
            without.append(name)
        elif seen == back:
            return Latest(session=name, back=back, without=tuple(without))
        else:
            seen, without = seen + 1, []
    word = "latest" + (f"~{back}" if back else "")
    raise LookupError(
        f"{word}: expected {counted(back + 1, 'session')} with receipts in {store.root}, found {seen}; "
        "to make one: pytest benchmarks -m cpu"
    )


def starting(sessions: Sequence[str], name: str) -> list[str]:
    """The session of that id, or all those whose ids start with it; empty where there is none."""
    return [name] if name in sessions else [session for session in sessions if session.startswith(name)]


def has_receipts(session: Path) -> bool:
    """Whether there is a receipt in a session's folder. Raises `LookupError` when it cannot be looked into."""
    try:
        entries = list(os.scandir(session))
    except OSError as error:
        raise LookupError(f"{session}: cannot be read: {error.strerror}") from error
    return any(not entry.name.startswith(".") and os.path.exists(f"{entry.path}/{RECORD}") for entry in entries)


# --------------------------------------------------------------------------------------------------------------------
# what has to be said of a choice


def passed_over(found: Latest) -> list[str]:
    """A line on the sessions that do not count as they have no receipt; empty without any."""
    if not found.without:
        return []
    shown = ", ".join(found.without[:_SHOWN])
    more = f" and {len(found.without) - _SHOWN} more" if len(found.without) > _SHOWN else ""
    verb = "has" if len(found.without) == 1 else "have"
    return [f"{shown}{more} {verb} no receipt (yet): latest{_tilde(found.back)} is {found.session}"]


def unmeasured(store: ReceiptStore, found: Latest) -> list[str]:
    """A line when nothing was measured in the session, with how to name the youngest before it that has results."""
    outcomes = _outcomes(store, found.session)
    if outcomes is None or any(outcome in outcomes for outcome in _RESULTS):
        return []
    back, before = found.back, ""
    for name in _youngest_first(store):
        if name < found.session and has_receipts(store.root / name):
            back += 1
            earlier = _outcomes(store, name)
            if earlier is None or any(outcome in earlier for outcome in _RESULTS):
                before = name
                break
    how = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "no point"
    rest = f"the youngest before it with results is {before}: latest~{back}" if before else "none before it has results"
    return [f"latest{_tilde(found.back)} is {found.session}, in which nothing was measured ({how}); {rest}"]


def _tilde(back: int) -> str:
    return f"~{back}" if back else ""


def _youngest_first(store: ReceiptStore) -> list[str]:
    """Sessions that were measured here; imports carry other names, and are no one's latest."""
    return [name for name in reversed(store.sessions()) if is_session_id(name)]


def _outcomes(store: ReceiptStore, session: str) -> Counter[Outcome] | None:
    """How its points ended; None where a receipt cannot be read, and nothing can be said."""
    errors: list[Exception] = []
    headers = list(store.headers(session, kind="point", on_error=errors.append))
    return None if errors else Counter(header.outcome for header in headers)
