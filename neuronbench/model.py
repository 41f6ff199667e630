"""The data everything else passes around: points, resource specs, metrics and gates (`observed`), records.

At the bottom of the import graph: standard library only, no I/O. Every type here is either a frozen value or (the one
exception) `Record`, which is filled while a repeat runs and becomes immutable once it is a receipt.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from neuronbench.canonical import FrozenMap, Json, canonical_json, closest, fingerprint, jsonable, slug
from neuronbench.observed import Better, Gate, Metric, unit_slug

__all__ = [
    "SCHEMA_VERSION",
    "Better",
    "Environment",
    "Failure",
    "Frozen",
    "FrozenMap",
    "Gate",
    "Json",
    "Metric",
    "Outcome",
    "Point",
    "Provenance",
    "Record",
    "RecordKind",
    "ResourceRef",
    "ResourceSpec",
    "Validity",
    "canonical_json",
    "closest",
    "fingerprint",
    "jsonable",
    "slug",
    "unit_slug",
    "verdict_of",
]

SCHEMA_VERSION: Final = 1
"""Version of `record.json`. A reader accepts this one and the one before."""


# --------------------------------------------------------------------------------------------------------------------
# what is asked for


@dataclass(frozen=True, kw_only=True)
class Point:
    """One benchmark × one backend × one set of parameters: one pytest item.

    `params` holds every parameter that was decided before the run, axes and shared settings alike. `axes` names those
    that vary in the grid; they alone make up the readable `id`.
    """

    benchmark: str
    """Where the benchmark is: `path/of/file.py::function`, relative to the root folder."""
    lane: str
    backend: str
    params: FrozenMap
    axes: tuple[str, ...] = ()
    source_hash: str = ""
    """Digest of the benchmark function's source: a changed benchmark is another benchmark."""
    id: str = ""
    """Readable and safe as a file name, unique within a session."""

    def __getitem__(self, key: str) -> Json:
        try:
            return self.params[key]
        except KeyError:
            known = ", ".join(sorted(self.params)) or "none"
            raise KeyError(f"point has no parameter {key!r}; it has: {known}") from None

    def get(self, key: str, default: Json = None) -> Json:
        return self.params.get(key, default)

    @property
    def fingerprint(self) -> str:
        """Identity across sessions: canonical spec, source of the benchmark and record schema."""
        return fingerprint(
            {
                "schema": SCHEMA_VERSION,
                "benchmark": self.benchmark,
                "lane": self.lane,
                "backend": self.backend,
                "params": self.params,
                "source": self.source_hash,
            }
        )

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "fingerprint": self.fingerprint,
            "benchmark": self.benchmark,
            "lane": self.lane,
            "backend": self.backend,
            "params": self.params.to_json(),
            "axes": list(self.axes),
            "source_hash": self.source_hash,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Point:
        return cls(
            benchmark=data["benchmark"],
            lane=data["lane"],
            backend=data["backend"],
            params=FrozenMap(data["params"]),
            axes=tuple(data.get("axes", ())),
            source_hash=data.get("source_hash", ""),
            id=data["id"],
        )


@dataclass(frozen=True, kw_only=True)
class ResourceSpec:
    """Describes an expensive live thing a point needs. Equal specs share one live resource."""

    kind: str
    """`endpoint`, `compiled_model`, `trainer`, or a kind a plugin brings."""
    backend: str
    provider: str
    """Name of the registered provider that can boot it."""
    settings: FrozenMap
    """Everything that makes the resource what it is (model, dtype, engine arguments, ...)."""
    cores: int = 1
    """Share of the backend's capacity it holds, in the backend's own unit."""

    @property
    def key(self) -> str:
        return fingerprint(self)

    @property
    def id(self) -> str:
        """Short readable name: `endpoint-1a2b3c4d`."""
        return f"{self.kind}-{self.key[:8]}"


# --------------------------------------------------------------------------------------------------------------------
# what is left behind


class Outcome(enum.StrEnum):
    """What became of a repeat. Validity is a separate question."""

    OK = "ok"
    SLO_MISS = "slo_miss"
    FAILED = "failed"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    CACHED = "cached"


class Validity(enum.StrEnum):
    """Whether the numbers may be quoted."""

    VALID = "valid"
    INVALID = "invalid"
    PROVISIONAL = "provisional"


class Provenance(enum.StrEnum):
    """Where the numbers come from. Anything but `measured` is marked wherever it is shown."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    IMPORTED = "imported"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a repeat has no result: its class, the causal line, and what to do about it."""

    kind: str
    """Class of the taxonomy, such as `port_in_use` or `host_oom`; `unclassified` when no rule matched."""
    phase: str
    """`collect`, `boot`, `warmup`, `window`, `reduce`, `check`, `teardown`."""
    message: str
    causal_line: str = ""
    """The earliest line of a log that explains the failure, verbatim; wrappers are never accepted as the cause."""
    cause: str = ""
    remedy: str = ""
    log: str = ""
    """The log the causal line stands in, relative to the receipt."""
    exit_status: int | None = None
    traceback: str = ""
    fatal: bool = False
    """Nothing can be measured on this host any more: the session ends here, the rest of its points are not run."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Facts of host, stack and harness, namespaced (`host.cpu_model`, `stack.vllm`), secrets redacted."""

    facts: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable
    key: str = ""
    """Digest of those facts that make two results comparable (see `neuronbench.environment`)."""


@dataclass(frozen=True, kw_only=True)
class ResourceRef:
    """How a record cites the resource it was measured on."""

    id: str
    kind: str
    spec: FrozenMap
    facts: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable
    """What became known at boot: weights' digests, versions, command line."""
    boot_receipt: str = ""
    """Receipt id of the boot or compile record, `<session>/<name>`."""


RecordKind: TypeAlias = Literal["point", "boot", "compile", "summary"]


class Frozen(RuntimeError):
    """A closed record was written to, or a metric was written twice."""


def verdict_of(gates: Iterable[Gate]) -> Validity:
    """The worst of what gates say; one that could not be evaluated says nothing."""
    failed = {gate.severity for gate in gates if gate.passed is False}
    if "invalid" in failed:
        return Validity.INVALID
    return Validity.PROVISIONAL if "provisional" in failed else Validity.VALID


@dataclass(kw_only=True)
class Record:
    """What a repeat leaves behind. Filled while it runs, closed exactly once, then written as a receipt."""

    session: str
    point: Point
    repeat: int = 1
    kind: RecordKind = "point"
    name: str = ""
    """Folder name of the receipt within the session; derived from point and repeat when empty."""
    outcome: Outcome | None = None
    provenance: Provenance = Provenance.MEASURED
    metrics: dict[str, Metric] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    resource: ResourceRef | None = None
    environment: Environment = Environment()
    error: Failure | None = None
    reason: str = ""
    """Why it was skipped, cached or expected to fail."""
    started_at: str = ""
    """UTC, ISO 8601 with microseconds."""
    ended_at: str = ""
    duration_s: float | None = None
    workload: dict[str, Json] = field(default_factory=dict)
    """Identity of the load: plan hash, arrivals, lengths asked for, warm-up, window."""
    tables: dict[str, str] = field(default_factory=dict)
    """Parquet tables beside the record: name → file name."""
    attachments: list[str] = field(default_factory=list)
    """Other files beside the record (logs, raw output), relative paths."""
    notes: list[str] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    _closed: bool = field(default=False, repr=False, compare=False)

    @property
    def receipt_name(self) -> str:
        return self.name or f"{slug(self.point.id or self.point.fingerprint)}--r{self.repeat}"

    @property
    def receipt_id(self) -> str:
        return f"{self.session}/{self.receipt_name}"

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def validity(self) -> Validity:
        """Worst verdict of the gates; a gate that could not be evaluated never makes a record invalid by itself.

        What did not come to its end (error, timeout, interrupted) has no numbers to quote, whatever its gates say.
        """
        if self.outcome in (Outcome.ERROR, Outcome.TIMEOUT, Outcome.INTERRUPTED):
            return Validity.INVALID
        return verdict_of(self.gates)

    def add(self, *metrics: Metric) -> None:
        """Add metrics; a key that is already there is an error, because a result is never overwritten."""
        self._writable()
        for metric in metrics:
            if metric.key in self.metrics:
                raise Frozen(f"metric {metric.key!r} is already recorded; results are added to, never overwritten")
            jsonable(metric.value)
            self.metrics[metric.key] = metric

    def gate(self, *gates: Gate) -> None:
        self._writable()
        self.gates.extend(gates)

    def close(self, outcome: Outcome, *, ended_at: str, duration_s: float | None) -> None:
        self._writable()
        self.outcome, self.ended_at, self.duration_s = outcome, ended_at, duration_s
        self._closed = True

    def _writable(self) -> None:
        if self._closed:
            raise Frozen(f"record {self.receipt_id} is closed")

    def to_json(self) -> dict[str, Json]:
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "session": self.session,
            "name": self.receipt_name,
            "point": self.point.to_json(),
            "repeat": self.repeat,
            "outcome": self.outcome.value if self.outcome else None,
            "validity": self.validity.value,
            "provenance": self.provenance.value,
            "reason": self.reason,
            "error": jsonable(self.error),
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "duration_s": self.duration_s,
            "metrics": {key: metric.to_json() for key, metric in self.metrics.items()},
            "gates": [jsonable(gate) for gate in self.gates],
            "workload": jsonable(self.workload),
            "resource": jsonable(self.resource),
            "environment": jsonable(self.environment),
            "tables": dict(self.tables),
            "attachments": list(self.attachments),
            "notes": list(self.notes),
            "tags": dict(self.tags),
        }
