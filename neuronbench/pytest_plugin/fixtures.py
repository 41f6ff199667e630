"""The fixtures: thin leases on resources, and what measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from neuronbench.measure import Measure
from neuronbench.model import Point, ResourceRef
from neuronbench.protocols import Endpoint, Resource
from neuronbench.pytest_plugin.collection import mark_of
from neuronbench.pytest_plugin.keys import LEASED, OPEN, POINT, SPEC, session_of
from neuronbench.records import shown
from neuronbench.session import Session
from neuronbench.telemetry.request import TelemetryRequest


@pytest.fixture(scope="session")
def nb(pytestconfig: pytest.Config) -> Session:
    """The benchmark session: settings, plugins, receipts, pool."""
    return session_of(pytestconfig)


@pytest.fixture
def nb_repeat(request: pytest.FixtureRequest) -> int:
    """Which repeat of the point this is, from 1."""
    return int(request.param)


@pytest.fixture
def point(request: pytest.FixtureRequest, nb_repeat: int) -> Point:
    """The frozen parameters of this point: `point["concurrency"]`."""
    return request.node.stash[POINT]  # type: ignore[no-any-return]


@pytest.fixture
def endpoint(request: pytest.FixtureRequest, point: Point) -> Iterator[Endpoint]:
    """A served model, verified and ready; shared by all points that need the same one."""
    with leased(request, point, "endpoint") as resource:
        yield cast(Endpoint, resource)


@contextmanager
def leased(request: pytest.FixtureRequest, point: Point, kind: str) -> Iterator[Resource]:
    """Lease what `point` needs of `kind`; the record cites it, also when it cannot be made."""
    session = session_of(request.config)
    record = request.node.stash[OPEN].record
    spec = request.node.stash.get(SPEC, None)
    if spec is None or spec.kind != kind:
        spec = session.spec(point, kind)
    try:
        lease = session.pool.lease(spec)
        with lease:
            record.resource = session.reference(lease.resource)
            request.node.stash.setdefault(LEASED, []).append(lease.resource)
            yield lease.resource
    finally:
        if record.resource is None and not record.closed:
            record.resource = ResourceRef(
                id=spec.id, kind=spec.kind, spec=shown(spec), boot_receipt=session.boot_receipt(spec)
            )


@pytest.fixture
def telemetry(point: Point) -> TelemetryRequest:
    """What is sampled while the window is open; add samplers before, read the series after."""
    return TelemetryRequest()


@pytest.fixture
def measure(request: pytest.FixtureRequest, point: Point, telemetry: TelemetryRequest) -> Iterator[Measure]:
    """Measures, checks and records: `measure.serve(...)`, `measure.check("ttft_p99_ms", at_most=500)`."""
    node = request.node
    made = Measure(session_of(request.config), node.stash[OPEN], telemetry=telemetry, slo=mark_of(node).get("slo"))
    try:
        yield made
    finally:
        made.close()
