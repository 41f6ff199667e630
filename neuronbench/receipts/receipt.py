"""A receipt as its readers see it: the record, its tables, and what became of it in each sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from neuronbench.model import Json, Outcome, Provenance, Record, RecordKind, Validity
from neuronbench.receipts.codec import decode_record, upgrade
from neuronbench.receipts.documents import Document, Fields, ReceiptError, parse
from neuronbench.receipts.evidence import conclusion
from neuronbench.receipts.files import inside, sync_folder, to_text, write_atomic

if TYPE_CHECKING:
    import pyarrow

RECORD: Final = "record.json"
SINKS: Final = "sinks"


@dataclass(frozen=True, kw_only=True)
class Header:
    """The few fields of a record that selections need; cheap to scan by the ten thousand."""

    path: Path
    session: str
    name: str
    kind: RecordKind
    lane: str
    backend: str
    point_id: str
    fingerprint: str
    repeat: int
    outcome: Outcome
    validity: Validity
    provenance: Provenance
    environment_key: str
    started_at: str
    accuracy_of: str = ""
    """The artifact whose accuracy it was about; empty when it was about none."""
    accuracy_passed: bool | None = None

    @property
    def receipt_id(self) -> str:
        return f"{self.session}/{self.name}"

    @property
    def reusable(self) -> bool:
        """Whether resume may take it in place of a measurement: measured here, passed, not invalid."""
        return (
            self.kind == "point"
            and self.outcome is Outcome.OK
            and self.validity is not Validity.INVALID
            and self.provenance is not Provenance.IMPORTED
        )


@dataclass(frozen=True, kw_only=True)
class Marker:
    """What a sink did with a receipt, as kept beside it in `sinks/<sink>.json`."""

    state: Literal["delivered", "pending"]
    reference: str = ""
    reason: str = ""
    attempts: int = 0
    at: str = ""
    """UTC, ISO 8601 with microseconds."""
    target: str = ""
    """Which instance of the sink this is about, such as a tracking URI without its login."""

    def to_json(self) -> dict[str, Json]:
        return {
            "state": self.state,
            "reference": self.reference,
            "reason": self.reason,
            "attempts": self.attempts,
            "at": self.at,
            "target": self.target,
        }


class Receipt:
    """A read-only view of a receipt's folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"Receipt({str(self._path)!r})"

    @property
    def path(self) -> Path:
        return self._path

    @property
    def id(self) -> str:
        return f"{self._path.parent.name}/{self._path.name}"

    @cached_property
    def _read(self) -> tuple[Record, Header]:
        path = self._path / RECORD
        document = upgrade(parse(path), path)
        record = decode_record(document, path)
        if not record.closed:
            raise ReceiptError(f"{path}: outcome: expected the outcome of a closed record, found null")
        return record, header_of(self._path, document)

    @property
    def record(self) -> Record:
        """The closed record; raises `ReceiptError` naming file and key."""
        return self._read[0]

    @property
    def header(self) -> Header:
        return self._read[1]

    @property
    def fingerprint(self) -> str:
        """The point's fingerprint as it was written: a later schema computes others."""
        return self.header.fingerprint

    def table(self, name: str, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """The Parquet table `name`, read on each call; of `columns` those that it has, in its own order.

        Raises `ReceiptError` when it is not there or damaged.
        """
        tables = self.record.tables
        if name not in tables:
            raise ReceiptError(f"{self._path}: no table {name!r}; it has: {', '.join(tables) or 'none'}")
        import pyarrow
        import pyarrow.parquet

        path = self._path / tables[name]
        if not inside(self._path, tables[name]):
            raise ReceiptError(f"{path}: expected a Parquet table inside the receipt, found none")
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                there = file.schema_arrow.names
                wanted = None if columns is None else [column for column in there if column in columns]
                return file.read(columns=wanted)
        except (OSError, pyarrow.ArrowException) as error:
            raise ReceiptError(f"{path}: expected a Parquet table, cannot read it: {error}") from error

    def delivery(self, sink: str) -> Marker | None:
        """What `sink` last did with it; None when it was never tried."""
        return read_marker(self._path, sink)


def header_of(folder: Path, document: Document) -> Header:
    """The header of a document in the present schema; raises `ReceiptError` naming file and key."""
    f = Fields(folder / RECORD, document)
    point, environment = f.at("point"), f.at("environment")
    accuracy_of, accuracy_passed = conclusion(f.mapping("workload", {}))
    return Header(
        path=folder,
        session=f.text("session"),
        name=f.text("name"),
        kind=f.one_of("kind", "point", "boot", "compile", "summary"),
        lane=point.text("lane"),
        backend=point.text("backend"),
        point_id=point.text("id"),
        fingerprint=point.text("fingerprint"),
        repeat=f.whole("repeat"),
        outcome=f.choice("outcome", Outcome),
        validity=f.choice("validity", Validity),
        provenance=f.choice("provenance", Provenance),
        environment_key=environment.text("key"),
        started_at=f.text("started_at"),
        accuracy_of=accuracy_of,
        accuracy_passed=accuracy_passed,
    )


def scan_header(folder: Path) -> Header:
    """Read a header without rebuilding the record; raises `ReceiptError` naming file and key."""
    path = folder / RECORD
    return header_of(folder, upgrade(parse(path), path))


def read_marker(folder: Path, sink: str) -> Marker | None:
    path = folder / SINKS / f"{sink}.json"
    if not path.is_file():
        return None
    f = Fields(path, parse(path))
    return Marker(
        state=f.one_of("state", "delivered", "pending"),
        reference=f.text("reference", ""),
        reason=f.text("reason", ""),
        attempts=f.whole("attempts", 0),
        at=f.text("at", ""),
        target=f.text("target", ""),
    )


def write_marker(folder: Path, sink: str, marker: Marker) -> None:
    """Replace the marker of `sink`, atomically; the rest of the receipt is left alone."""
    target = folder / SINKS
    if not target.is_dir():
        target.mkdir(exist_ok=True)
        sync_folder(folder)
    write_atomic(target / f"{sink}.json", to_text(marker.to_json()))
