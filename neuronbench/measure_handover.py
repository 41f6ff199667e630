"""From a trainer to a server: resources leased one after another, weights shipped by digest, answers looked at.

Each part ends in the record: which resources the point used, in order; what was shipped, with every file's hash; and
that the weights a server loaded are those that were shipped, or the point fails with both hashes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.definitions import metric
from neuronbench.model import Failure, FrozenMap, Gate, Json, ResourceRef, ResourceSpec, jsonable
from neuronbench.protocols import Endpoint, PointFailure, Resource
from neuronbench.records import point_ended, shown
from neuronbench.serving import http
from neuronbench.weights import Manifest, Shipped, StoreError, store

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session

LEASES: Final = "leases"
"""Part of the workload that lists the resources a benchmark leased itself, in order."""
SHIPPED: Final = "shipped"
ANSWERS: Final = "answers.jsonl"
ANSWER_TIMEOUT_S: Final = 120.0


@contextmanager
def lease(
    session: Session, opened: OpenRecord, kind: str, changes: Mapping[str, Json], *, beside: bool = False
) -> Iterator[Resource]:
    """Lease a resource for part of a point; see `Measure.lease`."""
    record = opened.record
    point = record.point
    if changes:
        point = replace(point, params=FrozenMap({**point.params, **changes}))
    verdict = session.unsupported(point, (kind,))
    if verdict is not None:
        text = f"{kind}: {verdict.reason}"
        raise PointFailure(Failure(kind="unsupported", phase="boot", message=text, causal_line=verdict.reason))
    spec = session.spec(point, kind)
    if beside:
        spec = replace(spec, cores=0)
    if changes and kind == "endpoint" and session.settings.endpoint:
        text = f"this point serves what it makes ({_named(changes)}), and --nb-endpoint names a server of somebody else"
        raise PointFailure(
            Failure(kind="unsupported", phase="boot", message=text, causal_line=text, remedy="leave --nb-endpoint out")
        )
    cited = ResourceRef(id=spec.id, kind=spec.kind, spec=shown(spec))
    try:
        with session.pool.lease(spec) as leased:
            cited = session.reference(leased.resource)
            failed = True
            try:
                yield leased.resource
                failed = False
            finally:
                point_ended(opened, leased.resource, failed=failed)
    finally:
        cite(session, opened, spec, cited)


def cite(session: Session, opened: OpenRecord, spec: ResourceSpec, cited: ResourceRef) -> None:
    """Note in the record that it used a resource; the first is the record's own."""
    record = opened.record
    if record.closed:
        return
    if not cited.boot_receipt:
        cited = replace(cited, boot_receipt=session.boot_receipt(spec))
    record.workload.setdefault(LEASES, []).append(jsonable(cited))
    if record.resource is None:
        record.resource = cited


def ship(
    session: Session,
    opened: OpenRecord,
    folder: Path,
    *,
    into: Path,
    place: str,
    files: Mapping[str, Json] | None,
) -> Shipped:
    """Put a model into a store and get it out again; see `Measure.ship`."""
    record = opened.record
    label = record.point.id

    def say(text: str) -> None:
        session.progress(f"{label}: {text}")

    try:
        stored = store(place, root=session.settings.root)
        put = stored.put(folder, expected=None if files is None else Manifest.from_json(files), progress=say)
        got = stored.get(put.manifest.digest, into, progress=say)
    except StoreError as error:
        record.gate(
            Gate(
                id="shipped_whole", passed=False, observed=error.found or None, limit=error.expected or None,
                message=error.message,
            )
        )  # fmt: skip
        raise PointFailure(error.failure()) from error
    record.gate(Gate(id="shipped_whole", passed=True, observed=got.manifest.digest, limit=put.manifest.digest))
    record.add(metric("ship_time", put.wall_s + got.wall_s, n=1, note=f"through {put.store}"))
    record.workload[SHIPPED] = {**put.facts(), "get_s": got.wall_s}
    return got


def same_weights(opened: OpenRecord, endpoint: Endpoint, shipped: Shipped) -> None:
    """Whether a server loaded what was shipped; see `Measure.same_weights`."""
    model = endpoint.facts.get("model")
    facts: Mapping[str, Any] = model if isinstance(model, Mapping) else {}
    expected, found = shipped.manifest.weights_digest, str(facts.get("weights_digest") or "")
    passed = bool(expected) and expected == found
    opened.record.gate(
        Gate(
            id="served_is_trained", passed=passed, observed=found or None, limit=expected,
            message="" if passed else "the server has other weights than were trained",
        )
    )  # fmt: skip
    if passed:
        return
    theirs = facts.get("files") or {}
    ours = {name: entry.sha256 for name, entry in shipped.manifest.files.items()}
    differing = sorted(name for name in theirs if theirs[name] != ours.get(name))
    where = f" ({', '.join(differing)})" if differing else ""
    text = (
        f"the server's weights are not the ones that were trained{where}: "
        f"expected digest {expected or 'of any weights'}, found {found or 'none, the server does not say'}"
    )
    raise PointFailure(
        Failure(
            kind="weights_mismatch", phase="window", message=text, causal_line=text,
            cause="the server was started on another folder, or its files were changed in between",
            remedy="compare the files' hashes in the receipt (workload.shipped) with those of the resource",
        )
    )  # fmt: skip


def answers(
    session: Session, opened: OpenRecord, endpoint: Endpoint, prompts: Sequence[str], *, max_tokens: int
) -> list[str]:
    """Greedy answers of a chat model; see `Measure.answers`."""
    record = opened.record
    given: list[str] = []
    until = time.monotonic() + session.settings.deadlines.point
    for number, prompt in enumerate(prompts, start=1):
        session.progress(f"{record.point.id}: asking {number} of {len(prompts)}")
        payload = {
            "model": endpoint.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
            "max_tokens": max_tokens, "stream": False,
        }  # fmt: skip
        try:
            answer = http.request(
                endpoint.base_url, "/v1/chat/completions", payload=payload, api_key=endpoint.api_key,
                timeout_s=min(ANSWER_TIMEOUT_S, until - time.monotonic()),
            )  # fmt: skip
        except http.Unreachable as error:
            raise _unanswered(endpoint, str(error)) from error
        try:
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            content = answer.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise _unanswered(endpoint, f"{error}: {answer.text[:300]!r}") from error
        given.append(str(content or ""))
    with (opened.folder / ANSWERS).open("a", encoding="utf-8") as file:
        for prompt, text in zip(prompts, given, strict=True):
            file.write(json.dumps({"model": endpoint.model, "prompt": prompt, "answer": text}) + "\n")
    return given


def _unanswered(endpoint: Endpoint, why: str) -> PointFailure:
    found = None if endpoint.alive() else endpoint.diagnose("window")
    text = f"the server did not answer a question: {why}"
    return PointFailure(found or Failure(kind="generation_failed", phase="window", message=text, causal_line=text))


def _named(changes: Mapping[str, Json]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes.items())
