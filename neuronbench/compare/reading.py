"""What a comparison needs of a receipt, and nothing more: ten thousand of them fit into memory and into seconds.

A `Reading` is checked like a record (`neuronbench.receipts`), but keeps no table, no log and no metric's prose. Parts
that repeat from receipt to receipt (point, environment, resource) are kept once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from neuronbench.compare import protocol
from neuronbench.compare.protocol import Protocol
from neuronbench.model import Better, FrozenMap, Outcome, Point, Provenance, RecordKind, Validity, canonical_json
from neuronbench.receipts.codec import Document, Fields, ReceiptError, decode_metric, metric_identity, parse, upgrade
from neuronbench.receipts.evidence import GATE, artifact_hash
from neuronbench.receipts.receipt import RECORD

LIMIT_BYTES: Final = 64 << 20
"""A record of ours has some ten kilobytes; what is larger than this is no record."""
MEASURED: Final = (Outcome.OK, Outcome.SLO_MISS)
"""Outcomes that come with numbers to compare."""


class Value(NamedTuple):
    """One metric of one repeat."""

    value: float | None
    n: int
    note: str


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """What the values under one key of one definition are; one object for all of them."""

    key: str
    id: str
    version: int
    stat: str
    unit: str
    better: Better

    @property
    def definition(self) -> str:
        return f"{self.id}@{self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One repeat of one point, as a comparison sees it."""

    path: Path
    session: str
    name: str
    kind: RecordKind
    point: Point
    fingerprint: str
    """As written: a later schema computes others."""
    repeat: int
    outcome: Outcome
    validity: Validity
    provenance: Provenance
    started_at: str
    environment_key: str
    values: Mapping[str, tuple[MetricKind, Value]]
    failed: tuple[tuple[str, str], ...]
    """Gates that failed: severity and id."""
    error: str
    """Class and causal line of what went wrong; empty when nothing did."""
    reason: str
    protocol: Protocol
    digest: str
    """Of the requests that were sent, which differ from repeat to repeat; empty where there is none."""
    context: Mapping[str, Any]
    """Facts that tell results apart but do not forbid to compare them: commit, host, versions of the harness."""
    tags: Mapping[str, str]
    artifact: str
    """Hash of the compiled artifact when an accuracy record of it would settle the validity, else empty."""

    @property
    def receipt_id(self) -> str:
        return f"{self.session}/{self.name}"

    @property
    def measured(self) -> bool:
        return self.outcome in MEASURED


@dataclass
class Reader:
    """Reads receipts, sharing what they have in common. `on_error` is told of each that cannot be read."""

    on_error: Callable[[ReceiptError], None]
    _kinds: dict[tuple[str, Any, Any, Any, Any], MetricKind] = field(default_factory=dict)
    _points: dict[str, tuple[Document, Point]] = field(default_factory=dict)
    _environments: dict[str, tuple[Document, Mapping[str, str], Mapping[str, Any]]] = field(default_factory=dict)
    _resources: dict[str, tuple[Document, Mapping[str, str], str]] = field(default_factory=dict)
    _protocols: dict[str, Protocol] = field(default_factory=dict)

    def read(self, folders: Iterable[Path], *, wanted: frozenset[str] | None = None) -> list[Reading]:
        """Readings of the receipts in `folders`; with `wanted`, only those of points with such a fingerprint.

        Receipts that cannot be read are told to `on_error` and left out.
        """
        found = []
        for folder in folders:
            try:
                reading = self.one(folder, wanted=wanted)
            except ReceiptError as error:
                self.on_error(error)
            else:
                if reading is not None:
                    found.append(reading)
        return found

    def one(self, folder: Path, *, wanted: frozenset[str] | None = None) -> Reading | None:
        """The reading of one receipt, None when it is not `wanted`. Raises `ReceiptError` naming file and key."""
        path = folder / RECORD
        try:
            document = _load(path)
            if wanted is not None and (document.get("point") or {}).get("fingerprint") not in wanted:
                return None
            return self._reading(folder, Fields(path, upgrade(document, path)))
        except ReceiptError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise ReceiptError(f"{path}: expected a record, found another form: {error}") from error

    def _reading(self, folder: Path, f: Fields) -> Reading:
        if f.data.get("outcome") is None:
            raise f.fail("outcome", "the outcome of a closed record")
        outcome, validity = f.choice("outcome", Outcome), f.choice("validity", Validity)
        point, fingerprint = self._point(f.at("point"))
        environment, context, key = self._environment(f.at("environment"))
        resource, artifact = self._resource(f)
        workload, digest = protocol.of_workload(f.mapping("workload", {}))
        failed = tuple(
            (gate.text("severity"), gate.text("id")) for gate in f.each("gates") if gate.data.get("passed") is False
        )
        hard = [name for severity, name in failed if severity != "info"]
        error = None if f.data.get("error") is None else f.at("error")
        fields = {**environment, **resource, **workload}
        if point.source_hash:
            fields["benchmark.source"] = point.source_hash
        return Reading(
            path=folder,
            session=f.text("session"),
            name=f.text("name"),
            kind=f.one_of("kind", "point", "boot", "compile", "summary"),
            point=point,
            fingerprint=fingerprint,
            repeat=f.whole("repeat"),
            outcome=outcome,
            validity=validity,
            provenance=f.choice("provenance", Provenance),
            started_at=f.text("started_at"),
            environment_key=key,
            values=self._values(f.at("metrics")),
            failed=tuple(one for one in failed if one[0] != "info"),
            error="" if error is None else _told(error),
            reason=f.text("reason", ""),
            protocol=self._shared(fields),
            digest=digest,
            context=context,
            tags=f.text_map("tags"),
            artifact=artifact if hard == [GATE] and outcome in MEASURED else "",
        )

    def _point(self, f: Fields) -> tuple[Point, str]:
        fingerprint = f.text("fingerprint")
        known = self._points.get(fingerprint)
        if known is not None and known[0] == f.data:
            return known[1], fingerprint
        point = Point(
            id=f.text("id"),
            benchmark=f.text("benchmark"),
            lane=f.text("lane"),
            backend=f.text("backend"),
            params=FrozenMap(f.mapping("params")),
            axes=tuple(f.texts("axes")),
            source_hash=f.text("source_hash", ""),
        )
        self._points[fingerprint] = (f.data, point)
        return point, fingerprint

    def _environment(self, f: Fields) -> tuple[Mapping[str, str], Mapping[str, Any], str]:
        key, facts = f.text("key"), f.mapping("facts")
        known = self._environments.get(key)
        if known is None or known[0] != facts:
            known = (facts, protocol.of_environment(facts), protocol.context_of(facts))
            self._environments[key] = known
        return known[1], known[2], key

    def _resource(self, f: Fields) -> tuple[Mapping[str, str], str]:
        if f.data.get("resource") is None:
            return {}, ""
        at = f.at("resource")
        key = at.text("id")
        known = self._resources.get(key)
        if known is None or known[0] != at.data:
            facts = at.mapping("facts", {})
            known = (at.data, protocol.of_resource(at.mapping("spec"), facts), artifact_hash(facts))
            self._resources[key] = known
        return known[1], known[2]

    def _shared(self, fields: Mapping[str, str]) -> Protocol:
        text = canonical_json(fields)
        return self._protocols.setdefault(text, Protocol(fields=fields))

    def _values(self, f: Fields) -> dict[str, tuple[MetricKind, Value]]:
        found: dict[str, tuple[MetricKind, Value]] = {}
        for key, data in f.data.items():
            try:
                identity = (key, data["definition"], data["stat"], data["unit"], data["better"])
                kind = self._kinds.get(identity)
                value, n, note = data["value"], data["n"], data["note"]
                fit = value is None or (type(value) is float and math.isfinite(value))
                if kind is not None and fit and type(n) is int and type(note) is str:
                    found[key] = (kind, Value(value, n, note))
                    continue
            except (KeyError, TypeError):
                pass
            metric = decode_metric(key, f.at(key))  # in full: checks, and says what is wrong
            version = metric_identity(data["definition"], metric.stat, metric.unit)[1]
            kind = MetricKind(
                key=key, id=metric.id, version=version, stat=metric.stat, unit=metric.unit, better=metric.better
            )
            identity = (key, data["definition"], metric.stat, metric.unit, metric.better)
            found[key] = (self._kinds.setdefault(identity, kind), Value(metric.value, metric.n, metric.note))
        return found


def _told(error: Fields) -> str:
    line = error.text("causal_line", "") or error.text("message")
    return f"{error.text('kind')}: {' '.join(line.split())[:200]}"


def _load(path: Path) -> Document:
    import orjson

    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise ReceiptError(f"{path}: expected a record of some kilobytes, found {path.stat().st_size >> 20} MiB")
        document = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        document = parse(path)  # says what is wrong, or copes where the fast parser does not
    return Fields(path, document).data
