"""The folder of a session and its manifest, `session.json`: what was asked, where, and how it ended."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import SCHEMA_VERSION, FrozenMap, Json, jsonable
from neuronbench.receipts.documents import Fields, ReceiptError, parse
from neuronbench.receipts.files import sync_folder, to_text, write_atomic
from neuronbench.receipts.owner import this_process
from neuronbench.redaction import redact, redact_argv

if TYPE_CHECKING:
    from neuronbench.config import Settings

MANIFEST: Final = "session.json"
_SESSION_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4,}")


@dataclass(frozen=True, kw_only=True)
class SessionManifest:
    """What is known of a session besides its receipts."""

    id: str
    started_at: str
    """UTC, ISO 8601 with microseconds."""
    command: tuple[str, ...] = ()
    """The command line, secrets redacted."""
    host: str = ""
    user: str = ""
    settings: FrozenMap = field(default_factory=FrozenMap)
    """Those settings that change what is measured or where it goes."""
    planned: tuple[str, ...] = ()
    """Ids of the points that were to be measured."""
    owner: FrozenMap = field(default_factory=FrozenMap)
    """The process that measures: `pid`, `create_time`, `host`."""
    ended_at: str = ""
    """Empty while it runs, and for ever when it was killed."""
    exit_status: int | None = None

    def to_json(self) -> dict[str, Json]:
        fields = {f.name: jsonable(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"schema_version": SCHEMA_VERSION, **fields}


def utc_now() -> str:
    """Now, in UTC, ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new_session_id(root: Path, *, now: datetime | None = None) -> str:
    """Make a session's folder below `root` and return its name, such as `20261130-012345-3f9cab12`.

    Names sort by time (UTC). Two sessions of one second differ in the random part; making the folder decides.
    """
    root.mkdir(parents=True, exist_ok=True)
    stamp = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%d-%H%M%S")
    for length in (4,) * 64 + (8,):
        name = f"{stamp}-{secrets.token_hex(length)}"
        try:
            (root / name).mkdir()
        except FileExistsError:
            continue
        sync_folder(root)
        return name
    raise ReceiptError(f"{root}: no free session name for {stamp}")  # pragma: no cover - 64 bits collided


def is_session_id(name: str) -> bool:
    return _SESSION_ID.fullmatch(name) is not None


def settings_facts(settings: Settings) -> dict[str, Json]:
    """The part of the settings that a reader of results wants to know."""
    facts: dict[str, Any] = {
        "grid": settings.grid,
        "repeats": settings.repeats,
        "overrides": {key: list(values) for key, values in settings.overrides.items()},
        "resume": settings.resume,
        "stacks": dict(settings.stacks),
        "endpoint": redact(settings.endpoint),
        "tokenizer": str(settings.tokenizer) if settings.tokenizer else "",
        "tracking_uri": redact(settings.tracking_uri),
        "traces": settings.traces,
        "deadlines": dataclasses.asdict(settings.deadlines),
    }
    return facts


def new_manifest(session: str, settings: Settings | None, command: Sequence[str] | None) -> SessionManifest:
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return SessionManifest(
        id=session,
        started_at=utc_now(),
        command=tuple(redact_argv(list(sys.argv if command is None else command))),
        host=socket.gethostname(),
        user=user,
        owner=FrozenMap(this_process()),
        settings=FrozenMap(settings_facts(settings)) if settings is not None else FrozenMap(),
    )


def write_manifest(folder: Path, manifest: SessionManifest) -> None:
    write_atomic(folder / MANIFEST, to_text(manifest.to_json()))


def read_manifest(folder: Path) -> SessionManifest:
    """Raises `ReceiptError` naming file and key when it is missing or malformed."""
    path = folder / MANIFEST
    f = Fields(path, parse(path))
    settings: Mapping[str, Json] = f.mapping("settings", {})
    return SessionManifest(
        id=f.text("id"),
        started_at=f.text("started_at"),
        command=tuple(f.texts("command")),
        host=f.text("host", ""),
        user=f.text("user", ""),
        settings=FrozenMap(settings),
        owner=FrozenMap(f.mapping("owner", {})),
        planned=tuple(f.texts("planned")),
        ended_at=f.text("ended_at", ""),
        exit_status=f.whole_or_none("exit_status"),
    )
