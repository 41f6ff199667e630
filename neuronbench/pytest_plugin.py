"""The pytest plugin: collection, markers, skips, fixtures, and records that close whatever happens.

The only module that imports pytest. It stays light (no numpy, no MLflow): what is heavy is imported when a benchmark
runs. A run without benchmarks never notices it.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
import warnings
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neuronbench import config as configuration
from neuronbench import grid as grids
from neuronbench import points
from neuronbench.bench import MARK
from neuronbench.measure import DeadlineExceeded, Measure, PointFailure, SloMiss
from neuronbench.model import Failure, Outcome, Point, ResourceRef, ResourceSpec
from neuronbench.plugins import Plugins, PluginWarning
from neuronbench.protocols import BootError, Endpoint
from neuronbench.pytest_terminal import Terminal
from neuronbench.session import OpenRecord, Session
from neuronbench.telemetry.request import TelemetryRequest

if TYPE_CHECKING:
    from types import FrameType

RESOURCE_FIXTURES = ("endpoint", "compiled_model", "trainer")
"""Fixtures that lease a resource; the name of the fixture is the kind of the resource."""
OWN_FIXTURES = (*RESOURCE_FIXTURES, "point", "measure", "telemetry", "nb")
DEADLINE_SLACK_S = 60.0
"""What a point's own deadline handling gets before the backstop raises."""

PLUGINS: pytest.StashKey[Plugins] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()
SETTINGS: pytest.StashKey[configuration.Settings] = pytest.StashKey()
ERRORS: pytest.StashKey[list[str]] = pytest.StashKey()
"""What is wrong with benchmarks or conftest hooks: a usage error once collection is done, for raising on the spot would
make an internal or a collection error of it."""
POINT: pytest.StashKey[Point] = pytest.StashKey()
REPEAT: pytest.StashKey[int] = pytest.StashKey()
NEEDS: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
SPEC: pytest.StashKey[ResourceSpec] = pytest.StashKey()
OPEN: pytest.StashKey[OpenRecord] = pytest.StashKey()


# -- options ----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("neuronbench", "benchmarks whose numbers can be quoted")
    add = group.addoption
    add("--nb-grid", metavar="SIZE", help="size of the grids: quick (default), full, or one that the grid files define; "
        "or the name of another grid, such as serving/long")  # fmt: skip
    add("--nb-set", metavar="KEY=V1,V2", action="append", default=[],
        help="values of an axis or a setting, over those of the grid: --nb-set concurrency=1,16 (repeatable)")  # fmt: skip
    add("--nb-repeats", metavar="N", type=int, help="repeats of every point; they interleave (default 1)")
    add("--nb-resume", metavar="SESSION", nargs="?", const="last", help="skip points that have a successful receipt of "
        "the same spec and environment, from any earlier session or from SESSION")  # fmt: skip
    add("--nb-stack", metavar="KIND=PATH", action="append", default=[],
        help="interpreter or venv to use for KIND (serving, compile, train, any)")  # fmt: skip
    add("--nb-tracking-uri", metavar="URI", help="MLflow store or server; 'off' for receipts only")
    add("--nb-traces", metavar="N", type=int, help="request traces kept per point in MLflow (default 30)")
    add("--nb-deadline", metavar="NAME=S", action="append", default=[],
        help="deadline in seconds: boot, point, request, first_token, stop (repeatable)")  # fmt: skip
    add("--nb-endpoint", metavar="URL", help="measure this running server instead of booting one")
    add("--nb-port", metavar="PORT", type=int, help="port for served models (default: a free one)")
    add("--nb-data-root", metavar="DIR", help="folder of receipts and the MLflow store (default mlruns)")
    parser.addini("neuronbench", "discover bench_*.py files and bench_* functions", type="bool", default=False)


def settings_of(config: pytest.Config) -> configuration.Settings:
    """The settings of this run; a wrong one is a usage error."""
    option = config.option
    try:
        return configuration.load(
            config.rootpath,
            overrides={
                "grid": option.nb_grid,
                "repeats": option.nb_repeats,
                "resume": option.nb_resume,
                "tracking_uri": option.nb_tracking_uri,
                "traces": option.nb_traces,
                "endpoint": option.nb_endpoint,
                "port": option.nb_port,
                "data_root": os.path.abspath(option.nb_data_root) if option.nb_data_root else None,
                "overrides": {key: tuple(value.split(",")) for key, value in pairs("--nb-set", option.nb_set)},
                "stacks": dict(pairs("--nb-stack", option.nb_stack)),
                "deadlines": {
                    key: configuration.seconds("--nb-deadline", key, value)
                    for key, value in pairs("--nb-deadline", option.nb_deadline)
                },
            },
        )
    except configuration.ConfigError as error:
        raise pytest.UsageError(str(error)) from error


def pairs(option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise pytest.UsageError(f"{option}: expected KEY=VALUE, found {text!r}")
        yield key.strip(), value.strip()


# -- plugins and markers ----------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getini("neuronbench"):
        config.addinivalue_line("python_files", "bench_*.py")
        config.addinivalue_line("python_functions", "bench_*")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # told in the header, once and in one line
        plugins = config.stash[PLUGINS] = Plugins()
    config.stash[ERRORS] = []
    config.stash[SETTINGS] = settings_of(config)
    config.addinivalue_line("markers", f"{MARK}(lane, grid, backends, params, slo): set by neuronbench.bench")
    _add_markers(config, plugins)
    config.pluginmanager.register(ConftestBridge(config), "neuronbench-conftest-bridge")
    config.pluginmanager.register(Terminal(config, session_or_none), "neuronbench-terminal")


def _add_markers(config: pytest.Config, plugins: Plugins, known: frozenset[str] = frozenset()) -> None:
    for backend in plugins.backends:  # type: ignore[attr-defined]
        for name in {backend.name, *backend.aliases} - known:
            config.addinivalue_line("markers", f"{name}: runs on {backend.title}")
    for lane in plugins.lanes:  # type: ignore[attr-defined]
        if lane.name not in known:
            config.addinivalue_line("markers", f"{lane.name}: lane: {lane.title}")


class ConftestBridge:
    """Lets a `conftest.py` carry hooks of neuronbench, with no packaging."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_plugin_registered(self, plugin: object) -> None:
        file = getattr(plugin, "__file__", None)
        if not isinstance(file, str) or Path(file).name != "conftest.py":
            return
        if not any(isinstance(getattr(value, "neuronbench_impl", None), dict) for value in vars(plugin).values()):
            return
        plugins = self._config.stash[PLUGINS]
        known = frozenset([*plugins.backends.names(), *plugins.lanes.names()])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            if not plugins.register(plugin, name=file, source="conftest"):
                self._config.stash[ERRORS].append(f"{file}: {plugins.reports[file].error}")
        _add_markers(self._config, plugins, known)


def session_or_none(config: pytest.Config) -> Session | None:
    return config.stash.get(SESSION, None)


def session_of(config: pytest.Config) -> Session:
    """The benchmark session, made when the first benchmark is collected."""
    session = config.stash.get(SESSION, None)
    if session is None:
        terminal = config.pluginmanager.get_plugin("neuronbench-terminal")
        progress = terminal.progress if isinstance(terminal, Terminal) else None
        session = config.stash[SESSION] = Session(config.stash[SETTINGS], config.stash[PLUGINS], progress=progress)
        session.plugins.configured(session)
    return session


# -- collection -------------------------------------------------------------------------------------------------------


def is_benchmark(name: str, marked: bool, fixtures: Sequence[str]) -> bool:
    """A benchmark is called `bench_*` or marked by `nb.bench`, and uses a fixture of neuronbench."""
    return (marked or name.startswith("bench_")) and any(fixture in fixtures for fixture in OWN_FIXTURES)


def mark_of(node: Any) -> dict[str, Any]:
    mark = node.get_closest_marker(MARK)
    return dict(mark.kwargs) if mark else {}


def lane_of(node: Any, plugins: Plugins, fixtures: Sequence[str]) -> str:
    """The lane: told by `nb.bench`, by a lane's marker, or by the kind of resource; else `custom`.

    Raises `LookupError` for a lane that no plugin has.
    """
    told = mark_of(node).get("lane")
    if told:
        return plugins.lanes[told].name
    for mark in node.iter_markers():
        if mark.name in plugins.lanes:
            return str(mark.name)
    for lane in plugins.lanes:  # type: ignore[attr-defined]
        if any(kind in fixtures for kind in lane.needs):
            return str(lane.name)
    return "custom"


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Backend and grid first, the function's own `parametrize` next, repeats last: `[cpu-c4-in64-...-r1]`."""
    node = metafunc.definition
    marked = node.get_closest_marker(MARK) is not None
    if not is_benchmark(metafunc.function.__name__, marked, metafunc.fixturenames):
        yield
        return
    session = session_of(metafunc.config)
    metafunc.parametrize("point", _seeds(session, metafunc), indirect=True)
    yield
    repeats = session.settings.repeats
    ids: list[Any] = [pytest.HIDDEN_PARAM] if repeats == 1 else [f"r{index}" for index in range(1, repeats + 1)]
    metafunc.parametrize("nb_repeat", range(1, repeats + 1), ids=ids, indirect=True)


def _seeds(session: Session, metafunc: pytest.Metafunc) -> list[Any]:
    """One parameter per backend and point of the grid, with the markers of both backend and lane."""
    node, plugins = metafunc.definition, session.plugins
    told = mark_of(node)
    seeds: list[Any] = []
    try:
        lane = lane_of(node, plugins, metafunc.fixturenames)
        lane_marks = [getattr(pytest.mark, lane)] if lane in plugins.lanes else []
        for backend in told.get("backends") or plugins.backends.names():
            marks = [getattr(pytest.mark, mark) for mark in (backend, *plugins.backends[backend].aliases)] + lane_marks
            for grid_point in points.grid_points(
                session.settings, grid=told.get("grid"), backend=backend, params=told.get("params") or {}
            ):
                label = f"{backend}-{grid_point.label}" if grid_point.label else backend
                seeds.append(pytest.param((lane, backend, grid_point), id=label, marks=marks))
    except (grids.GridError, LookupError) as error:
        metafunc.config.stash[ERRORS].append(f"{node.nodeid}: {error.args[0]}")
    return seeds


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    benches = [item for item in items if _is_bench_item(item)]
    if config.stash[ERRORS]:
        raise pytest.UsageError("\n".join(config.stash[ERRORS]))
    for item, point in zip(benches, points.unique_ids([_point_of(item) for item in benches]), strict=True):
        item.stash[POINT] = point
        item.stash[REPEAT] = item.callspec.params["nb_repeat"]  # type: ignore[attr-defined]
        item.stash[NEEDS] = tuple(kind for kind in RESOURCE_FIXTURES if kind in item.fixturenames)  # type: ignore[attr-defined]
    yield  # -m and -k take their pick here
    chosen = [item for item in items if POINT in item.stash]
    if not chosen:
        return
    if hasattr(config, "workerinput"):
        raise pytest.UsageError("benchmarks share the hardware and cannot run under pytest-xdist: use -n0")
    session = session_of(config)
    for item in chosen:
        _skip_or_resource(session, item)
    ordered = points.in_resource_order(
        chosen,
        resource=lambda item: item.stash[SPEC].key if SPEC in item.stash else None,
        repeat=lambda item: item.stash[REPEAT],
    )
    items[:] = points.into_slots(items, chosen, ordered)


def _is_bench_item(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "nb_repeat" in callspec.params


def _point_of(item: Any) -> Point:
    lane, backend, grid_point = item.callspec.params["point"]
    return points.make_point(
        function=item.function,
        benchmark=item.nodeid.partition("[")[0],
        lane=lane,
        backend=backend,
        grid_point=grid_point,
        extra={name: value for name, value in item.callspec.params.items() if name not in ("point", "nb_repeat")},
    )


def _skip_or_resource(session: Session, item: pytest.Item) -> None:
    """Skip what cannot run or need not, before anything boots; else note which resource it needs."""
    point, needs = item.stash[POINT], item.stash[NEEDS]
    try:
        verdict = session.unsupported(point, needs)
        if verdict is None:
            for kind in needs[:1]:
                item.stash[SPEC] = session.spec(point, kind)
    except ValueError as error:  # a parameter that the provider cannot use
        raise pytest.UsageError(f"{item.nodeid}: {error}") from error
    if verdict is not None and verdict.known_bad:
        item.add_marker(pytest.mark.xfail(reason=verdict.reason, strict=False))
    elif verdict is not None:
        item.add_marker(pytest.mark.skip(reason=verdict.reason))
    elif session.settings.resume:
        receipt = session.cached(point, item.stash[REPEAT])
        if receipt:
            item.add_marker(pytest.mark.skip(reason=f"cached: {receipt}"))


# -- running ----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """SIGTERM ends the run as Ctrl-C does, so that servers are stopped and the open record is closed."""
    benches = any(POINT in item.stash for item in session.items)
    if not benches or session.config.option.collectonly or threading.current_thread() is not threading.main_thread():
        return (yield)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"received {signal.Signals(signum).name}")

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return (yield)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    if POINT not in item.stash:
        return (yield)
    session = session_of(item.config)
    point = item.stash[POINT]
    opened = item.stash[OPEN] = session.open_record(
        point, repeat=item.stash[REPEAT], provenance=session.provenance(point.backend)
    )
    try:
        return (yield)
    except BaseException:
        # Ctrl-C, SIGTERM or an internal error: pytest makes no report of the phase it happened in.
        if not opened.record.closed:
            opened.record.error = Failure(
                kind="interrupted",
                phase="window",
                message="interrupted before the point had ended",
                traceback=traceback.format_exc(),
            )
            _finish(session, item, Outcome.INTERRUPTED)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Backstop: a point that hangs outside neuronbench's own deadlines is ended by an alarm."""
    free = threading.current_thread() is threading.main_thread() and not signal.getitimer(signal.ITIMER_REAL)[0]
    if POINT not in item.stash or not free:
        return (yield)
    deadline_s = session_of(item.config).settings.deadlines.point
    seconds = deadline_s + min(DEADLINE_SLACK_S, deadline_s)

    def expired(signum: int, frame: FrameType | None) -> None:
        failure = Failure(
            kind="point_timeout",
            phase="window",
            message=f"the benchmark did not end within {seconds:g} s",
            remedy="raise it with --nb-deadline point=SECONDS, or look where the traceback says it waits",
        )
        raise DeadlineExceeded(failure)

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    opened = item.stash.get(OPEN, None)
    if opened is None or opened.record.closed or (call.when == "setup" and report.passed):
        return report
    session = session_of(item.config)
    outcome = _outcome(report, call, opened)
    try:
        _finish(session, item, outcome)
    except Exception as error:
        del item.stash[OPEN]
        report.outcome = "failed"
        report.longrepr = f"the receipt of {opened.record.receipt_id} cannot be written: {type(error).__name__}: {error}"
        return report
    record = opened.record
    report.user_properties += [
        (key, metric.value) for key, metric in record.metrics.items() if metric.value is not None
    ]
    lanes = session.plugins.lanes
    keys = lanes[record.point.lane].headline if record.point.lane in lanes else ()
    report.user_properties += [
        ("neuronbench.outcome", record.outcome.value if record.outcome else ""),
        ("neuronbench.validity", record.validity.value),
        ("neuronbench.headline", Terminal.headline(record, keys)),
        ("neuronbench.receipt", str(session.receipts.get(record.receipt_id, ""))),
    ]
    return report


def _outcome(report: pytest.TestReport, call: pytest.CallInfo[None], opened: OpenRecord) -> Outcome:
    """Outcome of the phase that ended, its reason or failure written into the record."""
    record = opened.record
    if hasattr(report, "wasxfail"):
        record.reason = report.wasxfail
        if report.passed:
            return Outcome.OK
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        record.reason = reason.removeprefix("Skipped: ")
        return Outcome.CACHED if record.reason.startswith("cached: ") else Outcome.SKIPPED
    elif report.passed:
        return Outcome.OK
    error = call.excinfo.value if call.excinfo else None
    phase = {"setup": "boot", "call": "window"}.get(call.when, "teardown")
    if isinstance(error, (PointFailure, BootError)):
        record.error = error.failure
    else:
        message = f"{type(error).__name__}: {error}" if error else report.longreprtext
        kind = "slo_miss" if isinstance(error, SloMiss) else "assertion" if isinstance(error, AssertionError) else "exception"
        record.error = Failure(
            kind=kind,
            phase="check" if isinstance(error, AssertionError) else phase,
            message=message,
            causal_line=message.splitlines()[0] if message else "",
            traceback="" if isinstance(error, SloMiss) else report.longreprtext,
        )
    if hasattr(report, "wasxfail"):
        return Outcome.XFAILED
    if isinstance(error, SloMiss):
        return Outcome.SLO_MISS
    if isinstance(error, (DeadlineExceeded, TimeoutError)) or record.error.kind.endswith("timeout"):
        return Outcome.TIMEOUT
    if isinstance(error, (PointFailure, BootError)) or call.when != "call":
        return Outcome.ERROR
    return Outcome.FAILED


def _finish(session: Session, item: pytest.Item, outcome: Outcome) -> None:
    opened = item.stash[OPEN]
    if outcome not in (Outcome.SKIPPED, Outcome.CACHED):
        opened.record.environment = session.environment(opened.record.point.backend)
    session.commit(opened, outcome)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Release the resource as soon as the next item needs another, so that its end is charged to it."""
    if POINT not in item.stash:
        return
    session = session_of(item.config)
    following = nextitem.stash.get(SPEC, None) if nextitem is not None else None
    if session.has_pool and nextitem is not None:
        session.pool.release_unless(following.key if following else None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    own = session_or_none(session.config)
    if own is not None:
        own.close(int(exitstatus))


# -- fixtures ---------------------------------------------------------------------------------------------------------


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
    session = session_of(request.config)
    record = request.node.stash[OPEN].record
    spec = request.node.stash[SPEC] if SPEC in request.node.stash else session.spec(point, "endpoint")
    try:
        lease = session.pool.lease(spec)
        with lease:
            record.resource = session.reference(lease.resource)
            yield lease.resource
    finally:
        if record.resource is None and not record.closed:
            record.resource = ResourceRef(
                id=spec.id, kind=spec.kind, spec=spec.settings, boot_receipt=session.boot_receipt(spec)
            )


@pytest.fixture
def telemetry(point: Point) -> TelemetryRequest:
    """What is sampled while the window is open; add samplers before, read the series after."""
    return TelemetryRequest()


@pytest.fixture
def measure(request: pytest.FixtureRequest, point: Point, telemetry: TelemetryRequest) -> Measure:
    """Measures, checks and records: `measure.serve(...)`, `measure.check("ttft_p99_ms", at_most=500)`."""
    node = request.node
    return Measure(
        session_of(request.config), node.stash[OPEN], telemetry=telemetry, slo=mark_of(node).get("slo")
    )
