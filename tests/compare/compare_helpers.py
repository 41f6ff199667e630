"""Receipts to compare: real ones, made through the store."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuronbench import environment
from neuronbench.compare import Selector, Side
from neuronbench.compare.protocol import Protocol
from neuronbench.compare.reading import MetricKind, Reading, Value
from neuronbench.compare.selecting import side
from neuronbench.definitions import metric
from neuronbench.model import (
    Environment,
    Failure,
    FrozenMap,
    Gate,
    Metric,
    Outcome,
    Point,
    Provenance,
    Record,
    ResourceRef,
    Validity,
)
from neuronbench.receipts import ReceiptStore

FACTS = {
    "backend.name": "cpu", "host.arch": "x86_64", "host.cpu_model": "EPYC", "host.cores": 2, "stack.vllm": "0.31.0",
    "git.commit": "a" * 40,
}  # fmt: skip
SAME = Protocol(fields={})
_SECONDS = itertools.count()


def point(
    concurrency: int = 8, *, lane: str = "serving", backend: str = "cpu", source: str = "abc", **params: Any
) -> Point:
    return Point(
        benchmark=f"benchmarks/{lane}/bench_loop.py::bench_loop",
        lane=lane,
        backend=backend,
        params=FrozenMap({"concurrency": concurrency, "window_s": 12.0, **params}),
        axes=("concurrency",),
        source_hash=source,
        id=f"{lane}.loop-{backend}-c{concurrency}",
    )


class Bench:
    """Writes sessions of receipts into a store, and reads them back as sides."""

    def __init__(self, root: Path) -> None:
        self.store = ReceiptStore(root)

    def session(self, name: str) -> str:
        """A session's folder by a plain name of the right form: `1` is `20261101-000001-0001`."""
        session = f"20261101-{int(name):06d}-{int(name):04x}"
        (self.store.root / session).mkdir(parents=True, exist_ok=True)
        return session

    def put(
        self,
        session: str,
        *metrics: Metric,
        at: Point | None = None,
        repeat: int = 1,
        outcome: Outcome = Outcome.OK,
        gates: Sequence[Gate] = (),
        facts: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        workload: Mapping[str, Any] | None = None,
        provenance: Provenance = Provenance.MEASURED,
        error: Failure | None = None,
        reason: str = "",
        tags: Mapping[str, str] | None = None,
        kind: str = "point",
        name: str = "",
    ) -> Path:
        known = FrozenMap({**FACTS, **(facts or {})})
        at = at or point()
        stamp = next(_SECONDS)
        record = Record(
            session=session,
            point=at,
            repeat=repeat,
            kind=kind,  # type: ignore[arg-type]
            name=name,
            provenance=provenance,
            started_at=f"2026-11-01T{stamp // 3600:02d}:{stamp // 60 % 60:02d}:{stamp % 60:02d}.000000+00:00",
            environment=Environment(facts=known, key=environment.key_of(known)),
            error=error,
            reason=reason,
            workload={"digest": f"digest-r{repeat}", "arrivals": {"kind": "closed"}, **(workload or {})},
            tags=dict(tags or {}),
        )
        asked = {"model": "m", "compiler_flags": {"-O": "2"}, **(spec or {})}
        record.resource = ResourceRef(id="endpoint-1", kind="endpoint", spec=FrozenMap(asked))
        record.add(*metrics)
        record.gate(*gates)
        staging = self.store.open(record)
        record.close(outcome, ended_at="2026-11-01T12:00:09.000000+00:00", duration_s=9.0)
        return self.store.commit(record, staging)

    def series(
        self, session: str, values: Sequence[float], id_: str = "latency", stat: str = "p50", **fields: Any
    ) -> str:
        """One receipt per value: the repeats of a point in a session."""
        for repeat, value in enumerate(values, start=1):
            self.put(session, metric(id_, value, stat=stat, n=500), repeat=repeat, **fields)
        return session

    def selector(self, **fields: Any) -> Selector:
        return Selector(store=self.store, **fields)

    def sides(self, a: str, b: str) -> tuple[Side, Side]:
        selector = self.selector()
        found = selector.side(a), selector.side(b)
        assert not selector.problems
        return found


def readings(
    values: Sequence[float], *, id_: str = "latency", stat: str = "p50", at: Point | None = None, session: str = "s"
) -> list[Reading]:
    """Repeats without receipts, for what takes thousands of them."""
    made = metric(id_, 1.0, stat=stat)
    kind = MetricKind(key=made.key, id=id_, version=1, stat=stat, unit=made.unit, better=made.better)
    at = at or point()
    return [
        Reading(
            path=Path(f"/{session}/{at.id}--r{repeat}"), session=session, name=f"{at.id}--r{repeat}", kind="point",
            point=at, fingerprint=at.fingerprint, repeat=repeat, outcome=Outcome.OK, validity=Validity.VALID,
            provenance=Provenance.MEASURED, started_at="2026-11-01T00:00:00+00:00", environment_key="e",
            values={kind.key: Value(kind, float(value), 500, "")}, failed=(), error="", reason="", protocol=SAME,
            digest="", context={}, tags={}, artifact="",
        )
        for repeat, value in enumerate(values, start=1)
    ]  # fmt: skip


def of(*groups: Sequence[Reading], label: str = "x") -> Side:
    return side(label, [reading for group in groups for reading in group])
