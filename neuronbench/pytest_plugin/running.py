"""Running: a record is opened for every point and closed whatever happens, signals and hangs included."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from neuronbench.model import Failure, Gate, Outcome, slug
from neuronbench.plugins import warn
from neuronbench.protocols import BootError, DeadlineExceeded, PointFailure
from neuronbench.pytest_plugin.collection import mark_of
from neuronbench.pytest_plugin.keys import LEASED, OPEN, POINT, REPEAT, SPEC, session_of, session_or_none
from neuronbench.pytest_plugin.not_run import CACHED
from neuronbench.pytest_plugin.terminal import Terminal
from neuronbench.recording import SloMiss
from neuronbench.records import OpenRecord, point_ended
from neuronbench.session import Session

if TYPE_CHECKING:
    from types import FrameType

DEADLINE_SLACK_S = 60.0
"""What a point's own deadline handling gets before the backstop raises."""
ALARM_AGAIN_S = 5.0
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that wait while a record is closed: one in the middle would leave it open."""


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """SIGTERM ends the run as Ctrl-C does, so that servers are stopped and the open record is closed."""
    benches = any(POINT in item.stash for item in session.items)
    if not benches or session.config.option.collectonly or threading.current_thread() is not threading.main_thread():
        return (yield)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"received {signal.Signals(signum).name}")

    own = session_of(session.config)
    try:
        own.plan([f"{slug(i.stash[POINT].id)}--r{i.stash[REPEAT]}" for i in session.items if POINT in i.stash])
    except OSError as error:
        raise pytest.UsageError(
            f"receipts cannot be written below {own.settings.data_root} ({error}); free or mount it, or name another "
            "folder with --nb-data-root"
        ) from error
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
    if item.config.getoption("setuponly", False) or item.config.getoption("setupplan", False):
        return (yield)  # nothing is measured: there is nothing to record
    session = session_of(item.config)
    point = item.stash[POINT]
    opened = item.stash[OPEN] = session.open_record(
        point, repeat=item.stash[REPEAT], provenance=session.provenance(point.backend)
    )
    if session.stopped:
        item.add_marker(pytest.mark.skip(reason=session.stopped))
    try:
        return (yield)
    except BaseException as error:
        # Ctrl-C, SIGTERM or an internal error: pytest makes no report of the phase it happened in.
        if not opened.record.closed:
            opened.record.error = Failure(
                kind="interrupted",
                phase="window",
                message="interrupted before the point had ended",
                traceback="" if isinstance(error, KeyboardInterrupt) else traceback.format_exc(),
            )
            _finish(session, item, Outcome.INTERRUPTED)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Backstop: a point that hangs outside neuronbench's own deadlines is ended by an alarm."""
    if POINT not in item.stash:
        return (yield)
    free = threading.current_thread() is threading.main_thread() and not signal.getitimer(signal.ITIMER_REAL)[0]
    if not free:
        return (yield from _called(item))
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
    signal.setitimer(signal.ITIMER_REAL, seconds, ALARM_AGAIN_S)  # again and again: a bare `except` may swallow one
    try:
        return (yield from _called(item))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _called(item: pytest.Item) -> Generator[None, object, object]:
    """Run the benchmark, and tell the resources that its fixtures leased that it has ended."""
    failed = True
    try:
        result = yield
        failed = False
    finally:
        for resource in item.stash.get(LEASED, ()):
            point_ended(item.stash[OPEN], resource, failed=failed)
    return result


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
        report.longrepr = (
            f"the receipt of {opened.record.receipt_id} cannot be written: {type(error).__name__}: {error}"
        )
        return report
    record = opened.record
    lanes = session.plugins.lanes
    keys = lanes[record.point.lane].headline if record.point.lane in lanes else ()
    properties: list[tuple[str, object]] = [
        (key, metric.value) for key, metric in record.metrics.items() if metric.value is not None
    ]
    properties += [
        ("neuronbench.outcome", record.outcome.value if record.outcome else ""),
        ("neuronbench.validity", record.validity.value),
        ("neuronbench.headline", Terminal.headline(record, keys)),
        ("neuronbench.receipt", str(session.receipts.get(record.receipt_id, ""))),
    ]
    report.user_properties += properties
    item.user_properties += properties  # JUnit reads them from the report of the teardown
    strict = item.config.option.nb_strict
    if strict and outcome == Outcome.OK and report.passed:
        refusal = _refusal(opened, strict)
        if refusal:
            report.outcome, report.longrepr = "failed", refusal
    return report


def _refusal(opened: OpenRecord, strict: str) -> str:
    """Why `--nb-strict` fails a point that was measured; empty when its numbers stand."""
    record = opened.record
    refused = ("invalid",) if strict == "invalid" else ("invalid", "provisional")
    if record.validity.value not in refused:
        return ""
    said = [_said(gate) for gate in record.gates if gate.passed is False and gate.severity in refused]
    return "\n  ".join([f"{record.receipt_name}: measured, but {record.validity.value} (--nb-strict={strict})", *said])


def _said(gate: Gate) -> str:
    """`id (severity): observed 3, limit 2; message`, without what the gate does not have."""
    numbers = (("observed", gate.observed), ("limit", gate.limit))
    known = ", ".join(f"{name} {value}" for name, value in numbers if value is not None)
    unit = f" {gate.unit}" if known and gate.unit else ""
    return f"{gate.id} ({gate.severity}): " + ("; ".join(filter(None, (known + unit, gate.message))) or "failed")


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
        return Outcome.CACHED if record.reason.startswith(CACHED) else Outcome.SKIPPED
    elif report.passed:
        return Outcome.OK
    error = call.excinfo.value if call.excinfo else None
    traced = report.longreprtext
    if isinstance(error, (PointFailure, BootError, SloMiss)):
        report.longrepr = f"{record.receipt_name}: {error}"  # what it says is the message; our own frames are not
    phase = {"setup": "boot", "call": "window"}.get(call.when, "teardown")
    if isinstance(error, (PointFailure, BootError)):
        record.error = error.failure
    else:
        message = f"{type(error).__name__}: {error}" if error else report.longreprtext
        kind = (
            "slo_miss"
            if isinstance(error, SloMiss)
            else "assertion"
            if isinstance(error, AssertionError)
            else "exception"
        )
        record.error = Failure(
            kind=kind,
            phase="check" if isinstance(error, AssertionError) else phase,
            message=message,
            causal_line=message.splitlines()[0] if message else "",
            traceback="" if isinstance(error, SloMiss) else traced,
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        _close(session, item, outcome)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close(session: Session, item: pytest.Item, outcome: Outcome) -> None:
    opened = item.stash[OPEN]
    if outcome not in (Outcome.SKIPPED, Outcome.CACHED):
        point = opened.record.point
        opened.record.environment = session.environment(point.backend, external="endpoint" in point.params)
        if outcome == Outcome.OK and opened.record.kind == "point" and not opened.record.metrics:
            opened.record.gate(
                Gate(id="measured", passed=False, severity="provisional", message="the benchmark recorded no metric")
            )
    session.commit(opened, outcome)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Release the resource as soon as the next item needs another, so that its end is charged to it."""
    if POINT not in item.stash:
        return
    session = session_of(item.config)
    if session.has_pool and nextitem is not None:
        following = nextitem.stash.get(SPEC, None)  # None: no benchmark, or one that is skipped
        own = mark_of(nextitem).get("leases", ()) if following else ()
        for error in session.pool.release_unless(*([following.key] if following else []), kinds=own):
            warn(f"a resource did not stop: {error}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    own = session_or_none(session.config)
    if own is not None:
        own.close(int(exitstatus))
