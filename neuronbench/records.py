"""A record on its way to becoming a receipt: its folder, its closing, and what may not stand in it."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from neuronbench.model import Failure, FrozenMap, Outcome, Record, ResourceSpec

if TYPE_CHECKING:
    from neuronbench.protocols import Resource
    from neuronbench.receipts import ReceiptStore, Staging


def utc_now() -> str:
    """Now, in UTC, ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class OpenRecord:
    """A record being filled, and the folder its tables and logs go to until it becomes a receipt."""

    def __init__(self, record: Record, store: ReceiptStore) -> None:
        self.record = record
        self.record.started_at = utc_now()
        self._store = store
        self._staging: Staging | None = None
        self._started_ns = time.monotonic_ns()

    @property
    def folder(self) -> Path:
        """Where tables and logs go; made on first use, so that a skipped point costs no folder before its end."""
        if self._staging is None:
            try:
                json.dumps(self.record.to_json(), allow_nan=False)
                opened = self.record
            except (TypeError, ValueError):  # something in it cannot be written; `commit` says what
                opened = bare(self.record)
            self._staging = self._store.open(opened)
        return self._staging.folder

    def commit(self, outcome: Outcome) -> Path:
        """Close the record with `outcome` and make it a receipt; returns the receipt's folder."""
        folder = self.folder
        assert self._staging is not None
        known = {*self.record.tables.values(), *self.record.attachments}
        self.record.attachments += sorted(
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and path.name != "open.json" and path.relative_to(folder).as_posix() not in known
        )
        duration_s = (time.monotonic_ns() - self._started_ns) / 1e9
        self.record.close(outcome, ended_at=utc_now(), duration_s=None if outcome == Outcome.SKIPPED else duration_s)
        self.record = writable(self.record)
        return self._store.commit(self.record, self._staging)


def writable(record: Record) -> Record:
    """The closed `record` if it can be written and read back; else one that says why, with all that could be kept.

    A benchmark or a plugin may put anything into a record; a receipt that nobody can read would lose all of it.
    """
    from neuronbench.receipts import ReceiptError, decode_record

    try:
        decode_record(json.loads(json.dumps(record.to_json(), allow_nan=False)), Path("record.json"))
    except (ReceiptError, TypeError, ValueError) as error:
        problem = error
    else:
        return record
    kept = bare(record)
    kept.environment = record.environment
    for metric in record.metrics.values():
        with contextlib.suppress(Exception):
            json.dumps(metric.to_json(), allow_nan=False)
            kept.add(metric)
    for table, file in record.tables.items():
        kept.tables[str(table)] = str(file)
    kept.attachments += [str(path) for path in record.attachments]
    kept.notes.append(f"left out because it cannot be written: {str(problem)[:500]}")
    kept.error = Failure(
        kind="record_unwritable",
        phase="reduce",
        message=f"the record holds something that a receipt cannot: {problem}",
        causal_line=" ".join(str(problem).split()),
        remedy="record plain numbers, text, lists and dicts; a missing number is None, never NaN",
    )
    kept.close(Outcome.ERROR, ended_at=record.ended_at, duration_s=record.duration_s)
    return kept


def bare(record: Record) -> Record:
    """A new record with the identity of `record` and nothing else."""
    return Record(
        session=record.session,
        point=record.point,
        repeat=record.repeat,
        kind=record.kind,
        name=record.name,
        provenance=record.provenance,
        started_at=record.started_at,
    )


def point_ended(opened: OpenRecord, resource: Resource, *, failed: bool) -> None:
    """Tell a resource that the point that leased it has ended, while the record is open.

    One that wants to know has `point_ends` (see `neuronbench.protocols.Resource`). Raises what that raises.
    """
    ends = getattr(resource, "point_ends", None)
    if callable(ends):
        ends(opened.record, opened.folder, failed=failed)


def redacted(failure: Failure) -> Failure:
    """`failure` without secrets: messages and tracebacks quote URLs, headers and arguments."""
    from neuronbench.redaction import redact

    return replace(
        failure,
        message=redact(failure.message),
        causal_line=redact(failure.causal_line),
        traceback=redact(failure.traceback),
    )


def shown(spec: ResourceSpec) -> FrozenMap:
    """The settings of `spec` as they may stand in a record: secrets in URLs and in values by their name are out."""
    from neuronbench.redaction import REDACTED, is_secret_name, redact

    return FrozenMap(
        {
            name: REDACTED if value and is_secret_name(name) else redact(value) if isinstance(value, str) else value
            for name, value in spec.settings.items()
        }
    )


LOG_LIMIT_BYTES = 2 * 1024 * 1024


def copy_logs(source: Path, target: Path) -> None:
    """Copy the files of `source` (a live resource's folder) into a record's folder.

    Secrets are blotted out on the way (servers print their arguments), and of a huge file only the end is kept.
    """
    from neuronbench.redaction import redact

    for path in sorted(source.iterdir()) if source.is_dir() else []:
        if path.is_file():
            with path.open("rb") as file:
                file.seek(max(path.stat().st_size - LOG_LIMIT_BYTES, 0))
                text = file.read(LOG_LIMIT_BYTES).decode(errors="replace")
            (target / path.name).write_text(redact(text), encoding="utf-8")
