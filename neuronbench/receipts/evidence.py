"""Whether a compiled artifact or a served model is known to answer right: which record says so, found by its hash.

A performance record of one is provisional until an accuracy record of the same artifact stands beside it.
Receipts are never rewritten: what a later record has shown is found when a report is made, by `accuracy_evidence` and
`validity_now`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from neuronbench.model import Gate, Json, Outcome, Record, Validity, fingerprint

if TYPE_CHECKING:
    from neuronbench.receipts.receipt import Header
    from neuronbench.receipts.store import ReceiptStore

GATE: Final = "accuracy_evidence"
PART: Final = "accuracy"
"""Of a record's workload: a list, one entry per comparison with a reference, each with `artifact` and `passed`."""
_ANSWER: Final = {"compiled_model": "measure.accuracy", "endpoint": "measure.token_accuracy"}
"""Kinds of resource that answer, rightly or not → the call that judges their answers."""
_TIMES: Final = frozenset({"ns", "us", "µs", "ms", "s"})


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the youngest conclusive accuracy record of an artifact says."""

    receipt: str
    """Its receipt id."""
    passed: bool
    at: str
    """When it was measured: UTC, ISO 8601."""


def artifact_hash(facts: Mapping[str, Json]) -> str:
    """Identity of the artifact a resource with these facts runs; empty when its provider does not say.

    It is a digest over the digests of its files (`facts["artifact"]["sha256"]`); where there are none, the key it was
    made by: of a server, that of its weights and configuration (`serving.identity`).
    """
    artifact = facts.get("artifact")
    if not isinstance(artifact, Mapping):
        return ""
    files = artifact.get("sha256")
    if isinstance(files, Mapping) and files:
        return fingerprint(dict(files), digest_bytes=12)
    return str(artifact.get("key") or "")


def conclusion(workload: Mapping[str, Json]) -> tuple[str, bool | None]:
    """The artifact that the accuracy parts of a workload are about, and whether all of them passed; None: unclear."""
    parts = workload.get(PART)
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, Mapping) for part in parts) or not parts:
        return "", None
    passed = [part.get("passed") for part in parts]
    artifact = str(parts[0].get("artifact") or "")
    return artifact, False if False in passed else True if all(each is True for each in passed) else None


def shown(header: Header) -> Evidence | None:
    """What a receipt shows about the artifact its accuracy part is about; None when it shows nothing."""
    return _evidence(header.receipt_id, header.started_at, header.accuracy_passed, header.outcome, header.validity)


def shown_by(record: Record) -> Evidence | None:
    """The same of a record at hand; an open one counts as if it ended well."""
    _, passed = conclusion(record.workload)
    outcome = record.outcome or Outcome.OK
    return _evidence(record.receipt_id, record.started_at, passed, outcome, record.validity)


def _evidence(receipt: str, at: str, passed: bool | None, outcome: Outcome, validity: Validity) -> Evidence | None:
    if passed is False:
        return Evidence(receipt=receipt, passed=False, at=at)
    if passed and outcome in (Outcome.OK, Outcome.SLO_MISS) and validity is Validity.VALID:
        return Evidence(receipt=receipt, passed=True, at=at)
    return None


def accuracy_evidence(store: ReceiptStore, artifact: str, *, before: str | None = None) -> Evidence | None:
    """What the youngest accuracy record of an artifact shows; None when there is none that is conclusive.

    `before`: in sessions older than that one only. Sessions are read from the youngest on and no further than needed.
    """
    if not artifact:
        return None
    for header in store.about(artifact, before=before):
        found = shown(header)
        if found is not None:
            return found
    return None


def is_performance(record: Record) -> bool:
    """Whether a record has a time or a rate of a compiled or served model to quote."""
    if record.kind != "point" or record.resource is None or record.resource.kind not in _ANSWER:
        return False
    return any(
        metric.value is not None and (metric.unit in _TIMES or metric.unit.endswith("/s"))
        for metric in record.metrics.values()
    )


def evidence_gate(
    artifact: str, evidence: Evidence | None, *, external: bool = False, kind: str = "compiled_model"
) -> Gate:
    """The gate of a performance record: provisional without evidence, invalid when the evidence is against it.

    `kind`: of the resource that answers; how its answers are judged is part of the remedy.
    `external`: of a server that somebody else runs; nobody here can say what it has loaded.
    """
    if external and not artifact:
        why = "no evidence that it answers right: somebody else runs the server, and its weights are not known here"
        return Gate(id=GATE, passed=False, severity="provisional", message=why)
    if evidence is None:
        what = f"artifact {artifact}" if artifact else "this model, whose artifact its provider does not identify"
        return Gate(
            id=GATE,
            passed=False,
            severity="provisional",
            message=f"no accuracy record of {what}: run a benchmark with {_ANSWER[kind]} on it",
        )
    against = "" if evidence.passed else f"artifact {artifact} does not answer right: {evidence.receipt}"
    return Gate(
        id=GATE,
        passed=evidence.passed,
        observed=evidence.receipt,
        severity="provisional" if evidence.passed else "invalid",
        message=against,
    )


def validity_now(record: Record, store: ReceiptStore) -> Validity:
    """The validity of a record with what accuracy records have shown since it was written."""
    return validities_now([record], store).get(record.receipt_id, record.validity)


def validities_now(records: Iterable[Record], store: ReceiptStore) -> dict[str, Validity]:
    """Receipt id → validity of those records whose validity is another one by now; the store is asked once for each
    artifact."""
    known: dict[str, Evidence | None] = {}
    found: dict[str, Validity] = {}
    for record in records:
        failed = [gate for gate in record.gates if gate.passed is False and gate.severity != "info"]
        ended = record.outcome not in (Outcome.ERROR, Outcome.TIMEOUT, Outcome.INTERRUPTED)
        if [gate.id for gate in failed] != [GATE] or record.resource is None or not ended:
            continue
        artifact = artifact_hash(record.resource.facts)
        if artifact not in known:
            known[artifact] = accuracy_evidence(store, artifact)
        evidence = known[artifact]
        if evidence is not None:
            now = Validity.VALID if evidence.passed else Validity.INVALID
            if now is not record.validity:
                found[record.receipt_id] = now
    return found
