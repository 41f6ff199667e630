"""`record.json` back into a `Record`: validation at the file boundary, and upgrades of the previous schema.

Every complaint names the file, the key, what was expected and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from neuronbench.model import (
    SCHEMA_VERSION,
    Environment,
    Failure,
    FrozenMap,
    Gate,
    Json,
    Metric,
    Outcome,
    Point,
    Provenance,
    Record,
    ResourceRef,
    Validity,
)
from neuronbench.receipts.documents import Document, Fields, ReceiptError

# --------------------------------------------------------------------------------------------------------------------
# upgrades: one function per schema that is left behind


def _from_0(document: Document) -> Document:
    """Schema 0 knew points only, and only measured ones."""
    return {**document, "schema_version": 1, "kind": "point", "provenance": "measured"}


UPGRADES: Final[Mapping[int, Callable[[Document], Document]]] = MappingProxyType({0: _from_0})
"""Schema version → function that lifts a document of it by one version."""


def upgrade(document: Document, path: Path) -> Document:
    """`document` in the present schema; raises `ReceiptError` for one that is newer or too old."""
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ReceiptError(f"{path}: schema_version: expected a whole number, found {version!r}")
    if version > SCHEMA_VERSION:
        raise ReceiptError(
            f"{path}: schema_version: this neuronbench reads up to {SCHEMA_VERSION}, found {version}; "
            "the receipt was written by a newer release, use that one to read it"
        )
    while version < SCHEMA_VERSION:
        if version not in UPGRADES:
            raise ReceiptError(
                f"{path}: schema_version: {version} is older than this neuronbench reads "
                f"({min(UPGRADES, default=SCHEMA_VERSION)} to {SCHEMA_VERSION})"
            )
        document = UPGRADES[version](document)
        version += 1
    return document


# --------------------------------------------------------------------------------------------------------------------
# the parts of a record


def decode_point(f: Fields) -> Point:
    """The point of a record; raises `ReceiptError` naming the key."""
    return Point(
        id=f.text("id"),
        benchmark=f.text("benchmark"),
        lane=f.text("lane"),
        backend=f.text("backend"),
        params=FrozenMap(f.tree("params")),
        axes=tuple(f.texts("axes")),
        source_hash=f.text("source_hash", ""),
    )


_NUMBER: Final = frozenset({int, float, type(None)})


@lru_cache(maxsize=4096)
def metric_identity(definition: str, stat: str, unit: str) -> tuple[str, int, str]:
    """Id and version of a definition, and the key of a metric of it; raises `ValueError` for another form."""
    id_, _, version = definition.partition("@")
    if not id_:
        raise ValueError(definition)
    return id_, int(version), Metric(id=id_, value=None, unit=unit, stat=stat).key


def decode_metric(key: str, f: Fields) -> Metric:
    # There are dozens in each record and reports read ten thousand records, so the usual case is checked in one go.
    get = f.data.get
    definition, stat, unit, note = get("definition"), get("stat", ""), get("unit"), get("note", "")
    value, low, high, confidence = get("value"), get("low"), get("high"), get("confidence")
    n, better = get("n", 0), get("better")
    if not (isinstance(definition, str) and isinstance(stat, str) and isinstance(unit, str) and isinstance(note, str)):
        for name in ("definition", "stat", "unit", "note"):
            f.text(name, "" if name in ("stat", "note") else None)
        raise AssertionError  # one of them has raised
    if not {type(value), type(low), type(high), type(confidence)} <= _NUMBER:
        for name in ("value", "low", "high", "confidence"):
            f.number_or_none(name)
    if type(n) is not int:
        f.whole("n")
    if better not in ("lower", "higher", None):
        raise f.fail("better", "lower, higher or null")
    try:
        id_, version, expected = metric_identity(definition, stat, unit)
    except ValueError:
        raise f.fail("definition", "id@version") from None
    if expected != key:
        raise ReceiptError(f"{f.path}: {f.where}: its definition, stat and unit make the key {expected!r}")
    try:
        return Metric(
            id=id_, version=version, stat=stat, value=value, unit=unit, better=better,
            n=n, low=low, high=high, confidence=confidence, note=note,
        )  # fmt: skip
    except (OverflowError, ValueError):  # what is no finite number
        for name in ("value", "low", "high", "confidence"):
            f.number_or_none(name)
        raise


def _gate(f: Fields) -> Gate:
    passed = f.data.get("passed")
    if passed is not None and not isinstance(passed, bool):  # 0 is equal to False, and is not it
        raise f.fail("passed", "true, false or null")
    return Gate(
        id=f.text("id"),
        passed=passed,
        observed=f.data.get("observed"),
        limit=f.data.get("limit"),
        unit=f.text("unit", ""),
        severity=f.one_of("severity", "invalid", "provisional", "info"),
        message=f.text("message", ""),
    )


def _failure(f: Fields) -> Failure:
    return Failure(
        kind=f.text("kind"),
        phase=f.text("phase"),
        message=f.text("message"),
        causal_line=f.text("causal_line", ""),
        cause=f.text("cause", ""),
        remedy=f.text("remedy", ""),
        log=f.text("log", ""),
        exit_status=f.whole_or_none("exit_status"),
        traceback=f.text("traceback", ""),
        fatal=f.data.get("fatal") is True,
    )


def _resource(f: Fields) -> ResourceRef:
    return ResourceRef(
        id=f.text("id"),
        kind=f.text("kind"),
        spec=FrozenMap(f.tree("spec")),
        facts=FrozenMap(f.tree("facts", {})),
        boot_receipt=f.text("boot_receipt", ""),
    )


def decode_record(document: Json, path: Path) -> Record:
    """A closed `Record` from the JSON of `record.json`; an open one where `outcome` is null (in `open.json`).

    Raises `ReceiptError` naming `path` and the key that is wrong.
    """
    try:
        return _decode(document, path)
    except RecursionError:
        raise ReceiptError(f"{path}: expected a record, found something nested too deeply to be one") from None
    except (OverflowError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ReceiptError):
            raise
        raise ReceiptError(f"{path}: expected a record, found another form: {error}") from error


def _decode(document: Json, path: Path) -> Record:
    f = Fields(path, upgrade(Fields(path, document).data, path))
    outcome = None if f.data.get("outcome") is None else f.choice("outcome", Outcome)
    metrics = f.at("metrics")
    environment = f.at("environment")
    record = Record(
        session=f.text("session"),
        point=decode_point(f.at("point")),
        repeat=f.whole("repeat"),
        kind=f.one_of("kind", "point", "boot", "compile", "summary"),
        provenance=f.choice("provenance", Provenance),
        metrics={key: decode_metric(key, metrics.at(key)) for key in metrics.data},
        gates=[_gate(gate) for gate in f.each("gates")],
        resource=None if f.data.get("resource") is None else _resource(f.at("resource")),
        environment=Environment(facts=FrozenMap(environment.tree("facts")), key=environment.text("key")),
        error=None if f.data.get("error") is None else _failure(f.at("error")),
        reason=f.text("reason", ""),
        started_at=f.text("started_at"),
        workload=f.tree("workload", {}),
        tables={name: f.file("tables", file) for name, file in f.text_map("tables").items()},
        attachments=[f.file("attachments", file) for file in f.texts("attachments")],
        notes=f.texts("notes"),
        tags=f.text_map("tags"),
    )
    if f.text("name") != record.receipt_name:
        record.name = f.text("name")
    if outcome is not None:
        record.close(outcome, ended_at=f.text("ended_at"), duration_s=f.number_or_none("duration_s"))
    if f.choice("validity", Validity) is not record.validity:
        raise f.fail("validity", f"{record.validity.value!r}, which is what its outcome and gates say")
    return record
