"""What a comparison needs of a receipt, and nothing more: ten thousand of them fit into memory and into seconds.

A `Reading` is checked like a record (`neuronbench.receipts`), but keeps no table, no log and no metric's prose. Parts
that repeat from receipt to receipt (point, environment, resource) are kept once.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from neuronbench.compare import protocol
from neuronbench.compare.protocol import Protocol
from neuronbench.model import Better, Outcome, Point, Provenance, RecordKind, Validity
from neuronbench.receipts.codec import decode_metric, decode_point, metric_identity, upgrade
from neuronbench.receipts.documents import Document, Fields, ReceiptError, parse
from neuronbench.receipts.evidence import GATE, artifact_hash
from neuronbench.receipts.receipt import RECORD

MEASURED: Final = (Outcome.OK, Outcome.SLO_MISS)
"""Outcomes that come with numbers to compare."""


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


Keep = Callable[[RecordKind, str, Collection[str]], Iterable[str]]


class Value(NamedTuple):
    """One metric of one repeat."""

    kind: MetricKind
    value: float | None
    n: int
    note: str


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
    values: Mapping[str, Value]
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
    keep: Keep | None = None
    """Which metrics are wanted, of those that a record of that kind and lane has; all of them by default."""
    _kinds: dict[tuple[str, Any, Any, Any, Any], MetricKind] = field(default_factory=dict)
    _points: dict[str, tuple[Document, Point]] = field(default_factory=dict)
    _environments: dict[str, tuple[Document, Mapping[str, str], Mapping[str, Any]]] = field(default_factory=dict)
    _resources: dict[str, tuple[Document, Mapping[str, str], str]] = field(default_factory=dict)
    _workloads: dict[str, tuple[Document, Mapping[str, str]]] = field(default_factory=dict)
    _parts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _protocols: dict[tuple[int, int, int, str], Protocol] = field(default_factory=dict)

    def read(self, folders: Iterable[Path], *, wanted: frozenset[str] | None = None) -> list[Reading]:
        """Readings of the receipts in `folders`; with `wanted`, only those of points with such a fingerprint.

        Receipts that cannot be read are told to `on_error` and left out.
        """
        found = []
        with _without_collector():
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
            document = parse(path)
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
        kind = f.one_of("kind", "point", "boot", "compile", "summary")
        point, fingerprint = self._point(f.at("point"))
        environment, context, key = self._environment(f.at("environment"))
        resource, artifact = self._resource(f)
        load = f.mapping("workload", {})
        workload, digest = self._workload(fingerprint, load), load.get("digest")
        failed = _failed(f)
        hard = [name for severity, name in failed if severity != "info"]
        error = None if f.data.get("error") is None else f.at("error")
        return Reading(
            path=folder,
            session=f.text("session"),
            name=f.text("name"),
            kind=kind,
            point=point,
            fingerprint=fingerprint,
            repeat=f.whole("repeat"),
            outcome=outcome,
            validity=validity,
            provenance=f.choice("provenance", Provenance),
            started_at=f.text("started_at"),
            environment_key=key,
            values=self._values(f.at("metrics"), kind, point.lane),
            failed=tuple(one for one in failed if one[0] != "info"),
            error="" if error is None else _told(error),
            reason=f.text("reason", ""),
            protocol=self._protocol(environment, resource, workload, point.source_hash),
            digest=digest if isinstance(digest, str) else "",
            context=context,
            tags=f.text_map("tags"),
            artifact=artifact if hard == [GATE] and outcome in MEASURED else "",
        )

    def _point(self, f: Fields) -> tuple[Point, str]:
        fingerprint = f.text("fingerprint")
        known = self._points.get(fingerprint)
        if known is not None and known[0] == f.data:
            return known[1], fingerprint
        point = decode_point(f)
        self._points[fingerprint] = (f.data, point)
        return point, fingerprint

    def _environment(self, f: Fields) -> tuple[Mapping[str, str], Mapping[str, Any], str]:
        key, facts = f.text("key"), f.mapping("facts")
        known = self._environments.get(key)
        if known is None or known[0] != facts:
            facts = f.tree("facts")
            known = (facts, self._part(protocol.of_environment(facts)), protocol.context_of(facts))
            self._environments[key] = known
        return known[1], known[2], key

    def _resource(self, f: Fields) -> tuple[Mapping[str, str], str]:
        if f.data.get("resource") is None:
            return self._part({}), ""
        at = f.at("resource")
        key = at.text("id")
        known = self._resources.get(key)
        if known is None or known[0] != at.data:
            facts = at.mapping("facts", {})
            told = protocol.of_resource(at.mapping("spec"), facts)
            known = (at.data, self._part(told), artifact_hash(facts))
            self._resources[key] = known
        return known[1], known[2]

    def _workload(self, fingerprint: str, load: Document) -> Mapping[str, str]:
        identity = protocol.identity_of(load)
        known = self._workloads.get(fingerprint)
        if known is None or known[0] != identity:
            known = (identity, self._part(protocol.of_workload(identity)))
            self._workloads[fingerprint] = known
        return known[1]

    def _part(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        """One object for all equal parts of protocols, so that equal protocols are found by what they consist of."""
        return self._parts.setdefault(protocol.plain(fields), fields)

    def _protocol(
        self, environment: Mapping[str, str], resource: Mapping[str, str], workload: Mapping[str, str], source: str
    ) -> Protocol:
        key = (id(environment), id(resource), id(workload), source)
        if key not in self._protocols:
            own = {"benchmark.source": protocol.plain(source)} if source else {}
            self._protocols[key] = Protocol(fields={**environment, **resource, **workload, **own})
        return self._protocols[key]

    def _values(self, f: Fields, record: RecordKind, lane: str) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for key in f.data if self.keep is None else self.keep(record, lane, f.data):
            data = f.data[key]
            try:
                identity = (key, data["definition"], data["stat"], data["unit"], data["better"])
                kind = self._kinds.get(identity)
                value, n, note = data["value"], data["n"], data["note"]
                fit = value is None or (type(value) is float and math.isfinite(value))
                if kind is not None and fit and type(n) is int and type(note) is str:
                    found[key] = Value(kind, value, n, note)
                    continue
            except (KeyError, TypeError):
                pass
            metric = decode_metric(key, f.at(key))  # in full: checks, and says what is wrong
            version = metric_identity(data["definition"], metric.stat, metric.unit)[1]
            kind = MetricKind(
                key=key, id=metric.id, version=version, stat=metric.stat, unit=metric.unit, better=metric.better
            )
            identity = (key, data["definition"], metric.stat, metric.unit, metric.better)
            found[key] = Value(self._kinds.setdefault(identity, kind), metric.value, metric.n, metric.note)
        return found


@contextmanager
def _without_collector() -> Iterator[None]:
    """What is read stays, and none of it is a cycle: the garbage collector would look at all of it again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _failed(f: Fields) -> tuple[tuple[str, str], ...]:
    """Severity and id of the gates that failed."""
    gates = f.data.get("gates", [])
    if isinstance(gates, list) and all(isinstance(gate, dict) and gate.get("passed") is not False for gate in gates):
        return ()  # nearly always
    return tuple(
        (gate.text("severity"), gate.text("id")) for gate in f.each("gates") if gate.data.get("passed") is False
    )


def _told(error: Fields) -> str:
    line = error.text("causal_line", "") or error.text("message")
    return f"{error.text('kind')}: {' '.join(line.split())[:200]}"
