"""`record.json` back into a `Record`: validation at the file boundary, and upgrades of the previous schema.

Every complaint names the file, the key, what was expected and what was found.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

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


class ReceiptError(ValueError):
    """A receipt cannot be read or written: which file, which key, what was expected."""


E = TypeVar("E", bound=enum.StrEnum)
Document = dict[str, Json]


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
# a checked view of a JSON object


class Fields:
    """A JSON object that remembers where it stands, so that a complaint can say so."""

    def __init__(self, path: Path, data: Json, where: str = "") -> None:
        self.path, self.where = path, where
        if not isinstance(data, dict):
            raise ReceiptError(f"{path}: {where or 'document'}: expected an object, found {_kind(data)}")
        self.data: Document = data

    def fail(self, key: str, expected: str) -> ReceiptError:
        found = _kind(self.data[key]) if key in self.data else "nothing"
        return ReceiptError(f"{self.path}: {self.key(key)}: expected {expected}, found {found}")

    def key(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def text(self, key: str, default: str | None = None) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "text")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(key, "a whole number")
        return value

    def number_or_none(self, key: str) -> float | None:
        value = self.data.get(key)
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            raise self.fail(key, "a number or null")
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self.data.get(key) is None else self.whole(key)

    def mapping(self, key: str, default: Document | None = None) -> Document:
        value = self.data.get(key, default)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "a list of texts")
        return list(value)

    def text_map(self, key: str) -> dict[str, str]:
        value = self.mapping(key, {})
        if not all(isinstance(item, str) for item in value.values()):
            raise self.fail(key, "an object of texts")
        return dict(value)

    def choice(self, key: str, kind: type[E]) -> E:
        value = self.text(key)
        try:
            return kind(value)
        except ValueError:
            raise self.fail(key, "one of " + ", ".join(kind)) from None

    def one_of(self, key: str, *known: str) -> Any:
        value = self.text(key)
        if value not in known:
            raise self.fail(key, "one of " + ", ".join(known))
        return value

    def at(self, key: str) -> Fields:
        return Fields(self.path, self.data.get(key), self.key(key))

    def each(self, key: str) -> list[Fields]:
        value = self.data.get(key, [])
        if not isinstance(value, list):
            raise self.fail(key, "a list")
        return [Fields(self.path, item, f"{self.key(key)}[{index}]") for index, item in enumerate(value)]


def _kind(value: Json) -> str:
    if value is None:
        return "null"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."


# --------------------------------------------------------------------------------------------------------------------
# the parts of a record


def decode_point(f: Fields) -> Point:
    """The point of a record; raises `ReceiptError` naming the key."""
    return Point(
        id=f.text("id"),
        benchmark=f.text("benchmark"),
        lane=f.text("lane"),
        backend=f.text("backend"),
        params=FrozenMap(f.mapping("params")),
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
    return Metric(
        id=id_, version=version, stat=stat, value=value, unit=unit, better=better,
        n=n, low=low, high=high, confidence=confidence, note=note,
    )  # fmt: skip


def _gate(f: Fields) -> Gate:
    if f.data.get("passed") not in (True, False, None):
        raise f.fail("passed", "true, false or null")
    return Gate(
        id=f.text("id"),
        passed=f.data.get("passed"),
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
        spec=FrozenMap(f.mapping("spec")),
        facts=FrozenMap(f.mapping("facts", {})),
        boot_receipt=f.text("boot_receipt", ""),
    )


def decode_record(document: Json, path: Path) -> Record:
    """A closed `Record` from the JSON of `record.json`; an open one where `outcome` is null (in `open.json`).

    Raises `ReceiptError` naming `path` and the key that is wrong.
    """
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
        environment=Environment(facts=FrozenMap(environment.mapping("facts")), key=environment.text("key")),
        error=None if f.data.get("error") is None else _failure(f.at("error")),
        reason=f.text("reason", ""),
        started_at=f.text("started_at"),
        workload=f.mapping("workload", {}),
        tables=f.text_map("tables"),
        attachments=f.texts("attachments"),
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


def parse(path: Path) -> Document:
    """The JSON object in `path`; raises `ReceiptError` for one that is missing, truncated or not JSON."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ReceiptError(f"{path}: expected a file with a record, found none") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReceiptError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise ReceiptError(
            f"{path}: expected a JSON document, found something truncated or damaged: {error}"
        ) from error
    return Fields(path, document).data
