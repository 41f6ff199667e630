"""Making a resource for a session: its boot or compile is a record of its own, whatever comes of it.

The session opens the record first, so that points can cite the receipt also of a boot that failed.
"""

from __future__ import annotations

import contextlib
import traceback as traceback_module
from typing import TYPE_CHECKING, Final

from neuronbench.model import Failure, FrozenMap, Outcome, Point, RecordKind, ResourceRef, ResourceSpec, slug
from neuronbench.protocols import BootContext, BootError, Resource
from neuronbench.records import OpenRecord, copy_logs, shown

if TYPE_CHECKING:
    from neuronbench.session import Session

EXTERNAL: Final = "external"
"""Provider of a server that somebody else runs: nothing is booted, and nothing of it is known but what it says."""


def open_boot(session: Session, spec: ResourceSpec) -> OpenRecord:
    """The record that `boot` fills. When an equal spec is booted again in the session, its name gets a number."""
    kind = record_kind(spec.kind)
    point = Point(
        benchmark="",
        lane=_lane_of(session, spec),
        backend=spec.backend,
        params=shown(spec),
        id=f"{kind}-{spec.id}" + (f"-{slug(session.settings.part)}" if session.settings.part else ""),
    )
    earlier = sum(record.kind == kind and record.point.id == point.id for record in session.records)
    name = f"{point.id}-{earlier + 1}" if earlier else point.id
    return session.open_record(
        point,
        kind=kind,
        name=name,
        provenance=session.provenance(spec.backend),
        resource=ResourceRef(id=spec.id, kind=spec.kind, spec=shown(spec)),
        environment=session.environment(spec.backend, external=spec.provider == EXTERNAL),
    )


def boot(session: Session, spec: ResourceSpec, opened: OpenRecord) -> Resource:
    """Boot `spec` and commit its record, `opened`, whatever comes of it.

    Raises `BootError` when it does not come up, also where the provider raised something else: a defect of it.
    """
    record, name = opened.record, opened.record.name
    # The server goes on writing its log after the boot record is closed, and receipts are never rewritten: it
    # writes to the session's folder, and the record gets a copy.
    live = session.folder / "resources" / name
    live.mkdir(parents=True)
    context = BootContext(
        backend=session.plugins.backend(spec.backend),
        settings=session.settings,
        folder=live,
        deadline_s=session.settings.deadlines.boot,
        progress=session.progress,
        spawn=session.spawn,
    )
    try:
        resource = _booted(session, spec, context)
    except BootError as error:
        error.facts["boot_receipt"] = record.receipt_id
        record.error = error.failure
        record.add(*error.metrics)
        record.resource = ResourceRef(id=spec.id, kind=spec.kind, spec=shown(spec), facts=FrozenMap(error.facts))
        timed_out = error.failure.kind.endswith("timeout")
        copy_logs(live, opened.folder)
        session.commit(opened, Outcome.TIMEOUT if timed_out else Outcome.ERROR)
        raise
    except KeyboardInterrupt:
        record.error = Failure(kind="interrupted", phase="boot", message="interrupted while booting")
        copy_logs(live, opened.folder)
        session.commit(opened, Outcome.INTERRUPTED)
        raise
    except BaseException as error:
        failure = Failure(
            kind="provider_error",
            phase="boot",
            message=f"{type(error).__name__}: {error}",
            causal_line=f"{type(error).__name__}: {error}",
            remedy=f"this is a defect of the provider {spec.provider!r}; the traceback is in the receipt",
            traceback=traceback_module.format_exc(),
        )
        record.error = failure
        copy_logs(live, opened.folder)
        session.commit(opened, Outcome.ERROR)
        raise BootError(failure) from error
    try:
        record.add(*resource.boot_metrics)
        record.resource = ResourceRef(id=spec.id, kind=spec.kind, spec=shown(spec), facts=FrozenMap(resource.facts))
        copy_logs(live, opened.folder)
        session.commit(opened, Outcome.OK)
    except BaseException:  # nobody holds it yet, so nobody else could stop it
        with contextlib.suppress(Exception):
            resource.stop()
        raise
    return resource


def _booted(session: Session, spec: ResourceSpec, context: BootContext) -> Resource:
    if spec.provider == EXTERNAL:
        from neuronbench.serving.openai_server import attach

        return attach(spec, context)
    return session.plugins.boot(spec, context)


def _lane_of(session: Session, spec: ResourceSpec) -> str:
    for lane in session.plugins.lanes:
        if spec.kind in lane.needs:
            return str(lane.name)
    return spec.kind


def record_kind(resource_kind: str) -> RecordKind:
    """How the record of making a resource is called: what is compiled has a record of its compile."""
    return "compile" if resource_kind == "compiled_model" else "boot"
