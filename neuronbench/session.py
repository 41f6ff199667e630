"""A benchmark session: what is shared by its points, from the probe of the hardware to the last receipt.

Knows nothing of pytest. The pytest plugin drives it; so could anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.booting import EXTERNAL, boot, open_boot
from neuronbench.model import (
    Environment,
    FrozenMap,
    Json,
    Outcome,
    Point,
    Provenance,
    Record,
    ResourceRef,
    ResourceSpec,
)
from neuronbench.plugins import Plugins, warn
from neuronbench.protocols import Probe, Progress, Resource, Sink, Unsupported
from neuronbench.records import OpenRecord, redacted, shown

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.pool import Pool
    from neuronbench.receipts import Evidence, ReceiptStore

FLOOR: Final = "floor"
"""Part of the workload of the record that says what the host can do at best."""
PROFILE: Final = "profile"
"""Parameter of a point (`--nb-profile`): have the hardware's runtime capture a profile. A backend that can names its
tools in `profilers`; a provider that does not know the parameter has to refuse it."""


def wanted_provider(point: Point, kind: str) -> str:
    """Which provider of a kind the point asks for, where a family has several (`trainer_provider = "nxd"`)."""
    return str(point.get(f"{kind}_provider") or "")


class Session:
    """Settings, plugins, receipts, pool and sinks of one run."""

    def __init__(self, settings: Settings, plugins: Plugins, *, progress: Progress | None = None) -> None:
        self.settings = settings
        self.plugins = plugins
        self.progress: Progress = progress or (lambda text: None)
        self.records: list[Record] = []
        """Closed records of this session, in order, boots among them."""
        self.receipts: dict[str, Path] = {}
        self.pending: dict[str, str] = {}
        """Receipt id → why a sink could not take it."""
        self._id = ""
        self._store: ReceiptStore | None = None
        self._pool: Pool | None = None
        self._sinks: list[Sink] | None = None
        self._probes: dict[str, Probe] = {}
        self._environments: dict[str, Environment] = {}
        self._boot_receipts: dict[str, str] = {}
        self._older_evidence: dict[str, Evidence | None] = {}
        self.host_floor = ""
        """Receipt id of the record that says what this host can do at best, once the session has one."""
        self.stopped = ""
        """Why no more points are run: a failure that makes the host useless. Empty while they are."""
        self._closed = False

    # -- receipts -----------------------------------------------------------------------------------------------------

    @property
    def store(self) -> ReceiptStore:
        if self._store is None:
            from neuronbench.receipts import ReceiptStore

            self._store = ReceiptStore(self.settings.receipts_dir)
        return self._store

    @property
    def id(self) -> str:
        """Name of the session's folder; the folder is made on first use.

        What a killed run left open becomes `interrupted` receipts then.
        """
        if not self._id:
            from neuronbench.receipts import recover

            self._id = self.store.begin_session(self.settings)
            recover(
                self.settings.receipts_dir,
                on_error=lambda error: warn(f"cannot be recovered: {error}"),
            )
        return self._id

    def plan(self, points: Sequence[str]) -> None:
        """Note in the manifest which points the session is going to run: a killed one then shows what is missing."""
        self.store.update_session(self.id, planned=tuple(points))

    @property
    def folder(self) -> Path:
        return self.settings.receipts_dir / self.id

    def open_record(self, point: Point, *, repeat: int = 1, **fields: Any) -> OpenRecord:
        return OpenRecord(Record(session=self.id, point=point, repeat=repeat, **fields), self.store)

    def commit(self, open_record: OpenRecord, outcome: Outcome) -> Path:
        """Close, write, forward to the sinks, tell the observers. A sink's failure leaves the receipt pending."""
        record = open_record.record
        if record.error is not None:
            record.error = redacted(record.error)
        if outcome != Outcome.SKIPPED:
            self._cite(record, outcome)
            self.plugins.finish_record(record, record.point)
        receipt = open_record.commit(outcome)
        record = open_record.record
        outcome = record.outcome or outcome
        self.records.append(record)
        self.receipts[record.receipt_id] = receipt
        if record.error is not None and record.error.fatal and not self.stopped:
            self.stopped = (
                f"not run: {record.error.kind} ended the session at {record.receipt_name}: "
                f"{record.error.causal_line or record.error.message}"
            )
        if outcome not in (Outcome.SKIPPED, Outcome.CACHED):
            self._forward(record, receipt)
        self.plugins.point_recorded(record, str(receipt))
        return receipt

    def _cite(self, record: Record, outcome: Outcome) -> None:
        """Add what earlier records say about this one: whether its artifact answers right, what the host can do."""
        from neuronbench.receipts import evidence

        if record.kind != "point" or outcome == Outcome.CACHED:
            return
        if FLOOR in record.workload:
            if outcome == Outcome.OK and not self.host_floor:
                self.host_floor = record.receipt_id
        elif self.host_floor:
            record.workload["host_floor"] = self.host_floor
        if evidence.is_performance(record) and record.resource is not None:
            artifact = evidence.artifact_hash(record.resource.facts)
            external = bool(record.resource.facts.get("external"))
            found, kind = self._evidence(artifact, record), record.resource.kind
            record.gate(evidence.evidence_gate(artifact, found, external=external, kind=kind))

    def _evidence(self, artifact: str, record: Record) -> Evidence | None:
        """What the youngest accuracy record of an artifact shows: this very one, one of the session, an older one."""
        from neuronbench.receipts import evidence

        if not artifact:
            return None
        for one in (record, *reversed(self.records)):
            if evidence.conclusion(one.workload)[0] == artifact:
                found = evidence.shown_by(one)
                if found is not None:
                    return found
        if artifact not in self._older_evidence:
            self._older_evidence[artifact] = evidence.accuracy_evidence(self.store, artifact, before=self.id)
        return self._older_evidence[artifact]

    def _forward(self, record: Record, receipt: Path) -> None:
        for sink in self.sinks:
            try:
                delivery = sink.write(receipt)
            except Exception as error:  # a third party's sink may break its promise; the point must not
                warn(f"sink {sink.name!r} raised {type(error).__name__}: {error}")
                self.pending[record.receipt_id] = f"{sink.name}: {type(error).__name__}: {error}"
                continue
            if delivery.state == "pending":
                self.pending[record.receipt_id] = f"{sink.name}: {delivery.reason}"

    @property
    def sinks(self) -> list[Sink]:
        if self._sinks is None:
            self._sinks = []
            for name in self.plugins.sinks.names():
                if name == "mlflow" and not self.settings.mlflow_uri:
                    continue
                try:
                    self._sinks.append(self.plugins.sink(name, self.settings))
                except Exception as error:
                    warn(f"sink {name!r} cannot start, receipts only: {type(error).__name__}: {error}")
        return self._sinks

    def cached(self, point: Point, repeat: int, spec: ResourceSpec | None = None) -> str:
        """Receipt id of an earlier success of the same spec in the same environment; empty when there is none."""
        session = None if self.settings.resume == "last" else self.settings.resume
        environment = self.environment(point.backend, external="endpoint" in point.params)
        found = self.store.find(
            point.fingerprint,
            environment.key,
            repeat=repeat,
            session=session,
            resource="" if spec is None else spec.id,
        )
        return found.record.receipt_id if found is not None else ""

    # -- hardware -----------------------------------------------------------------------------------------------------

    def probe(self, backend: str) -> Probe:
        """What is there of `backend` on this host; asked once."""
        if backend not in self._probes:
            try:
                self._probes[backend] = self.plugins.backend(backend).probe()
            except Exception as error:
                owner = self.plugins.backends.owner(backend)
                reason = f"plugin {owner!r} failed to probe for {backend}: {type(error).__name__}: {error}"
                self._probes[backend] = Probe(available=False, reason=reason)
        return self._probes[backend]

    def environment(self, backend: str, *, external: bool = False) -> Environment:
        """Facts of host, stack and harness for records on `backend`; gathered once.

        A server that somebody else runs (`external`) has no stack here: the local one is left out then.
        """
        key = f"{backend} external" if external else backend
        if key not in self._environments:
            from neuronbench import environment

            instance = self.plugins.backend(backend)
            self._environments[key] = environment.describe(
                instance,
                self.plugins.describe_environment(instance),
                self.settings,
                {"endpoint": "external"} if external else None,
            )
        return self._environments[key]

    def at_endpoint(self, point: Point) -> Point:
        """`point` as it is asked of the running server of `--nb-endpoint`.

        Parameters that tell a provider what to boot (model, dtype, ...) are not applied then, so they are no part of
        it; the URL is.
        """
        from neuronbench.redaction import redact

        info = self.plugins.provider_for("endpoint", point.backend)
        given: set[str] = set()
        if info is not None:
            provider = self.plugins.provider(info.name)
            given = set(provider.spec(point, self.plugins.backend(point.backend), self.settings).settings)
        kept = {
            name: value
            for name, value in point.params.items()
            if name not in given or name in point.axes or name == PROFILE
        }
        return replace(point, params=FrozenMap({**kept, "endpoint": redact(self.settings.endpoint)}))

    def unsupported(
        self, point: Point, needs: Sequence[str], *, asked: dict[ResourceSpec, Unsupported | None] | None = None
    ) -> Unsupported | None:
        """Why `point` cannot run here, found without booting anything; None when it can.

        `asked` keeps what providers said of resources: with the same table for many points they are asked once of each.
        """
        asked = {} if asked is None else asked
        info = self.plugins.backends[point.backend]
        probe = self.probe(point.backend)
        if not probe.available:
            return Unsupported(reason=f"{point.backend}: {probe.reason or 'not available on this host'}")
        backend = self.plugins.backend(point.backend)
        if point.get(PROFILE) and not getattr(backend, "profilers", ()):
            return Unsupported(
                reason=f"{PROFILE}: nothing captures profiles on {point.backend}; leave --nb-profile out"
            )
        for kind in needs:
            if kind == "endpoint" and self.settings.endpoint:
                if point.get(PROFILE):
                    return Unsupported(
                        reason=f"{PROFILE}: the server of --nb-endpoint was started by somebody else, and only a start "
                        "of its own can be captured; leave --nb-profile or --nb-endpoint out"
                    )
                continue
            provider_info = self.plugins.provider_for(kind, point.backend, wanted_provider(point, kind))
            if provider_info is None:
                reason = f"{point.backend}: no installed plugin offers an {kind!r} for the {info.family!r} family"
                if wanted_provider(point, kind):
                    known = ", ".join(each.name for each in self.plugins.providers_for(kind, point.backend)) or "none"
                    found = wanted_provider(point, kind)
                    reason = f"{kind}_provider: expected one of {known} for {point.backend}, found {found!r}"
                return Unsupported(reason=reason)
            provider = self.plugins.provider(provider_info.name)
            spec = provider.spec(point, backend, self.settings)
            if spec not in asked:
                asked[spec] = provider.check(spec, backend, self.settings)
            if (verdict := asked[spec]) is not None:
                return verdict
        return self.plugins.check_point(point, info)

    def spec(self, point: Point, kind: str) -> ResourceSpec:
        """The resource `point` needs; raises `LookupError` when no plugin provides it."""
        if kind == "endpoint" and self.settings.endpoint:
            given: dict[str, Json] = {"url": self.settings.endpoint, "model": point.get("served_model")}
            if self.settings.tokenizer is not None:
                given["tokenizer"] = str(self.settings.tokenizer)
            return ResourceSpec(kind=kind, backend=point.backend, provider=EXTERNAL, settings=FrozenMap(given), cores=0)
        info = self.plugins.provider_for(kind, point.backend, wanted_provider(point, kind))
        if info is None:
            raise LookupError(f"no installed plugin offers an {kind!r} for backend {point.backend!r}")
        return self.plugins.provider(info.name).spec(point, self.plugins.backend(point.backend), self.settings)

    # -- resources ----------------------------------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            from neuronbench.pool import Pool

            self._pool = Pool(boot=self._boot, capacity=lambda backend: self.probe(backend).cores)
        return self._pool

    @property
    def has_pool(self) -> bool:
        """Whether anything was leased yet."""
        return self._pool is not None

    @property
    def spawn(self) -> Callable[..., Any]:
        """`processes.spawn` that leaves its pid files in this session's folder."""
        from neuronbench.processes import spawn

        return partial(spawn, pid_dir=self.folder / "pids")

    def _boot(self, spec: ResourceSpec) -> Resource:
        opened = open_boot(self, spec)
        self._boot_receipts[spec.key] = opened.record.receipt_id
        return boot(self, spec, opened)

    def reference(self, resource: Resource) -> ResourceRef:
        """How a record cites `resource`; what has a part of the machine only says how many cores that is."""
        spec = resource.spec
        part = 0 < spec.cores < self.probe(spec.backend).cores
        return ResourceRef(
            id=spec.id,
            kind=spec.kind,
            spec=shown(spec),
            facts=FrozenMap({**resource.facts, "leased_cores": spec.cores} if part else resource.facts),
            boot_receipt=self._boot_receipts.get(spec.key, ""),
        )

    def boot_receipt(self, spec: ResourceSpec) -> str:
        """Receipt id of the boot record of `spec`; empty when it was never tried."""
        return self._boot_receipts.get(spec.key, "")

    def provenance(self, backend: str) -> Provenance:
        """`simulated` when the backend says that its hardware is not real."""
        return Provenance.SIMULATED if self.probe(backend).facts.get("simulated") else Provenance.MEASURED

    # -- end ----------------------------------------------------------------------------------------------------------

    def close(self, status: int) -> None:
        """Stop every resource, close the manifest, finish the sinks (they send it on). Runs to the end; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._pool is not None:
                for error in self._pool.close():
                    warn(f"a resource did not stop: {error}")
        finally:
            if self._id:
                try:
                    self.store.end_session(self._id, status)
                except Exception as error:  # a full disk must not cost the summary
                    warn(f"the manifest of {self._id} cannot be closed: {error}")
            for sink in self._sinks or []:
                try:
                    sink.close()
                except Exception as error:
                    warn(f"sink {sink.name!r} failed to close: {error}")
            self.plugins.session_finished(self, status)
