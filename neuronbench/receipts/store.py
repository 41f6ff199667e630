"""The store of receipts: one folder per session, one folder per receipt.

A receipt is prepared in `.open-<name>/` and becomes `<name>/` by one rename; whatever stands under its final name is
whole, and is never written again but for the sinks' markers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import SCHEMA_VERSION, Outcome, Record, RecordKind
from neuronbench.receipts.documents import ReceiptError
from neuronbench.receipts.files import inside, sync_folder, sync_tree, to_text, write_atomic
from neuronbench.receipts.owner import this_process
from neuronbench.receipts.receipt import (
    RECORD,
    Header,
    Marker,
    Receipt,
    read_marker,
    scan_header,
    write_marker,
)
from neuronbench.receipts.sessions import (
    SessionManifest,
    is_session_id,
    new_manifest,
    new_session_id,
    read_manifest,
    utc_now,
    write_manifest,
)

if TYPE_CHECKING:
    from neuronbench.config import Settings

OPEN: Final = "open.json"
OPEN_PREFIX: Final = ".open-"
_SETTLED_NS: Final = 2_000_000_000
"""A folder changed less than this ago may change again within the same tick of its clock: its listing is not kept."""

OnError = Callable[[ReceiptError], None]


@dataclass(frozen=True, kw_only=True)
class Staging:
    """The folder a record's tables and logs go to until it becomes a receipt."""

    folder: Path
    session: str
    name: str
    started_at: str


@dataclass(kw_only=True)
class _Listing:
    mtime_ns: int
    headers: dict[str, Header]
    errors: dict[str, ReceiptError]
    by_fingerprint: dict[str, list[Header]] = field(default_factory=dict)
    by_artifact: dict[str, list[Header]] = field(default_factory=dict)


class ReceiptStore:
    """Receipts below `root` (`<data root>/receipts`); the folder is made when the first session begins."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._listings: dict[str, _Listing] = {}

    # -- sessions -----------------------------------------------------------------------------------------------------

    def begin_session(
        self, settings: Settings | None = None, *, command: Sequence[str] | None = None, planned: Sequence[str] = ()
    ) -> str:
        """Make a session's folder with its manifest and return its id. `command` defaults to this process's.

        Settings that name a session take part in it: its folder here gets that name. Raises `ReceiptError` for a name
        that is none of a session.
        """
        session = settings.session if settings is not None else ""
        if session:
            if not is_session_id(session):
                raise ReceiptError(f"session: expected an id such as 20261130-012345-ab12, found {session!r}")
            (self.root / session).mkdir(parents=True, exist_ok=True)
        else:
            session = new_session_id(self.root)
        manifest = replace(new_manifest(session, settings, command), planned=tuple(planned))
        write_manifest(self.root / session, manifest)
        return session

    def update_session(self, session: str, **changes: Any) -> SessionManifest:
        """Replace fields of the manifest, such as `planned` once collection is over."""
        manifest = replace(self.manifest(session), **changes)
        write_manifest(self.root / session, manifest)
        return manifest

    def end_session(self, session: str, exit_status: int) -> SessionManifest:
        return self.update_session(session, ended_at=utc_now(), exit_status=int(exit_status))

    def manifest(self, session: str) -> SessionManifest:
        """Raises `ReceiptError` when the session has none or it is malformed."""
        return read_manifest(self.root / _plain(session, "session"))

    def sessions(self) -> list[str]:
        """Ids of all sessions, oldest first."""
        if not self.root.is_dir():
            return []
        return sorted(e.name for e in os.scandir(self.root) if e.is_dir() and not e.name.startswith("."))

    def latest_session(self, *, before: str | None = None) -> str | None:
        """The youngest session, or the youngest older than `before`.

        Folders that do not carry the name of a session (imports) are no one's latest.
        """
        found = [s for s in self.sessions() if is_session_id(s) and (before is None or s < before)]
        return found[-1] if found else None

    # -- writing ------------------------------------------------------------------------------------------------------

    def open(self, record: Record, *, phase: str = "window") -> Staging:
        """Make the folder that `record`'s files go to, with a trace (`open.json`) of who is filling it.

        `phase` is what a recovered record names when this process is killed. Raises `ReceiptError` when the receipt
        is there already or is being written: a repeat is measured once, a second try takes another name.
        """
        name = _plain(record.receipt_name, "receipt")
        session = self.root / _plain(record.session, "session")
        self._refuse_existing(session / name, record)
        folder = session / f"{OPEN_PREFIX}{name}"
        session.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            raise ReceiptError(
                f"{folder}: receipt {record.receipt_id!r} is being written already; "
                "if its process is dead, recover it first, else take another repeat"
            ) from None
        staging = Staging(folder=folder, session=record.session, name=name, started_at=record.started_at or utc_now())
        self.update(staging, record, phase=phase)
        sync_folder(session)
        return staging

    def update(self, staging: Staging, record: Record, *, phase: str = "window") -> None:
        """Note what `record` has by now, so that a recovered record has it too."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "owner": this_process(),
            "started_at": staging.started_at,
            "phase": phase,
            "record": record.to_json(),
        }
        write_atomic(staging.folder / OPEN, to_text(document))

    def commit(self, record: Record, staging: Staging) -> Path:
        """Make the closed `record` a receipt and return its folder.

        Everything is on disk before the rename that makes it visible. Raises `ReceiptError` when a receipt of that
        name exists; nothing is overwritten, and what was prepared stays in the staging folder.
        """
        if not record.closed:
            raise ReceiptError(f"record {record.receipt_id!r} is still open; close it with an outcome first")
        if (record.session, record.receipt_name) != (staging.session, staging.name):
            raise ReceiptError(
                f"record {record.receipt_id!r} does not belong to the staging of {staging.session}/{staging.name}"
            )
        for file in (*record.tables.values(), *record.attachments):
            if not inside(staging.folder, file):
                raise ReceiptError(f"{staging.folder}: the record names {file!r}, expected a file in there, found none")
        write_atomic(staging.folder / RECORD, to_text(record.to_json()))
        return self._publish(staging.folder, record)

    def _publish(self, folder: Path, record: Record) -> Path:
        target = folder.parent / folder.name.removeprefix(OPEN_PREFIX)
        self._refuse_existing(target, record)
        sync_tree(folder)
        try:
            os.rename(folder, target)
        except OSError as error:
            self._refuse_existing(target, record)  # another process was faster
            raise ReceiptError(f"{folder}: cannot become {target}: {error}") from error
        sync_folder(target.parent)
        (target / OPEN).unlink(missing_ok=True)
        self._listings.pop(target.parent.name, None)
        return target

    def _refuse_existing(self, target: Path, record: Record) -> None:
        if target.exists():
            raise ReceiptError(
                f"receipt {record.receipt_id!r} (repeat {record.repeat} of {record.point.id!r}) cannot be written: "
                f"{target} is there already, and receipts are never overwritten; take another repeat or name"
            )

    def mark(
        self, folder: Path, sink: str, *, state: str, reference: str = "", reason: str = "", target: str = ""
    ) -> Marker:
        """Keep what `sink` did with the receipt in `folder`; `attempts` counts the calls."""
        if state not in ("delivered", "pending"):
            raise ValueError(f"state: expected 'delivered' or 'pending', found {state!r}")
        before = read_marker(folder, sink)
        marker = Marker(
            state=state,  # type: ignore[arg-type]
            reference=reference,
            reason=reason,
            attempts=(before.attempts if before else 0) + 1,
            at=utc_now(),
            target=target,
        )
        write_marker(folder, sink, marker)
        return marker

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, path: Path | str) -> Receipt:
        """The receipt in a folder, or of an id `<session>/<name>`; validated. Raises `ReceiptError`."""
        folder = Path(path)
        if not folder.is_absolute() and not (folder / RECORD).is_file():
            folder = self.root / folder
        receipt = Receipt(folder)
        _ = receipt.record  # validates
        return receipt

    def headers(
        self,
        session: str | None = None,
        *,
        lane: str | None = None,
        backend: str | None = None,
        kind: RecordKind | None = None,
        outcome: Outcome | None = None,
        on_error: OnError | None = None,
    ) -> Iterator[Header]:
        """Headers of the receipts that match, by session and then by start.

        A receipt that cannot be read raises, or goes to `on_error` and is left out.
        """
        for name in self.sessions() if session is None else [_plain(session, "session")]:
            listing = self._listing(name)
            for error in listing.errors.values():
                if on_error is None:
                    raise error
                on_error(error)
            for header in listing.headers.values():
                if (
                    (lane is None or header.lane == lane)
                    and (backend is None or header.backend == backend)
                    and (kind is None or header.kind == kind)
                    and (outcome is None or header.outcome is outcome)
                ):
                    yield header

    def iter(self, session: str | None = None, *, on_error: OnError | None = None, **filters: Any) -> Iterator[Receipt]:
        """The receipts that match (filters as of `headers`), whole and validated."""
        for header in self.headers(session, on_error=on_error, **filters):
            try:
                yield self.read(header.path)
            except ReceiptError as error:
                if on_error is None:
                    raise
                on_error(error)

    def find(
        self,
        fingerprint: str,
        environment_key: str,
        *,
        repeat: int | None = None,
        session: str | None = None,
        before: str | None = None,
        resource: str | None = None,
    ) -> Receipt | None:
        """The youngest receipt that resume may take for this point in this environment, or None.

        `resource` asks for one measured on the resource of that id (empty: on none), `repeat` for that repeat,
        `session` looks in one session only, `before` only in older ones. Receipts that cannot be read are as good as
        none here: the point is measured again.
        """
        names = self.sessions() if session is None else [_plain(session, "session")]
        for name in reversed([n for n in names if before is None or n < before]):
            for header in reversed(self._listing(name).by_fingerprint.get(fingerprint, [])):
                if header.environment_key != environment_key or not header.reusable:
                    continue
                if repeat is None or header.repeat == repeat:
                    try:
                        receipt = self.read(header.path)
                    except ReceiptError:
                        continue
                    cited = receipt.record.resource.id if receipt.record.resource else ""
                    if resource is None or cited == resource:
                        return receipt
        return None

    def about(self, artifact: str, *, before: str | None = None) -> Iterator[Header]:
        """Accuracy records of a compiled artifact, the youngest first; `before`: in sessions older than that one.

        Sessions are read as far as the caller goes on. Receipts that cannot be read are left out.
        """
        for name in reversed([n for n in self.sessions() if before is None or n < before]):
            yield from reversed(self._listing(name).by_artifact.get(artifact, []))

    def pending(
        self, sink: str, *, session: str | None = None, target: str | None = None, on_error: OnError | None = None
    ) -> Iterator[Header]:
        """Receipts that `sink` has not delivered (to `target`, when given), those it never saw among them."""
        for header in self.headers(session, on_error=on_error):
            marker = read_marker(header.path, sink)
            if marker is None or marker.state == "pending" or (target is not None and marker.target != target):
                yield header

    def _listing(self, session: str) -> _Listing:
        folder = self.root / session
        try:
            mtime_ns = folder.stat().st_mtime_ns
        except FileNotFoundError:
            raise ReceiptError(
                f"{folder}: no such session; known: {', '.join(self.sessions()[-5:]) or 'none'}"
            ) from None
        known = self._listings.get(session)
        if known is not None and known.mtime_ns == mtime_ns:
            return known
        headers: list[Header] = []
        errors: dict[str, ReceiptError] = {}
        for entry in os.scandir(folder):
            if entry.name.startswith(".") or not entry.is_dir() or not os.path.exists(f"{entry.path}/{RECORD}"):
                continue
            if known is not None and entry.name in known.headers:
                headers.append(known.headers[entry.name])  # a receipt does not change
                continue
            try:
                headers.append(scan_header(Path(entry.path)))
            except ReceiptError as error:
                errors[entry.name] = error
        headers.sort(key=lambda header: (header.started_at, header.name))
        settled = time.time_ns() - mtime_ns > _SETTLED_NS
        listing = _Listing(
            mtime_ns=mtime_ns if settled else -1,
            headers={header.path.name: header for header in headers},
            errors=errors,
        )
        for header in headers:
            listing.by_fingerprint.setdefault(header.fingerprint, []).append(header)
            if header.accuracy_of:
                listing.by_artifact.setdefault(header.accuracy_of, []).append(header)
        self._listings[session] = listing
        return listing


def _plain(name: str, noun: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ReceiptError(f"{noun} {name!r}: expected a plain folder name that does not begin with a dot")
    return name
