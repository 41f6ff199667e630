"""pytest-benchmark on device time: a timer that advances by what the worker measured, and receipts of what it timed.

A benchmark that uses both `benchmark` and `compiled_model` gets the mark `benchmark(timer=worker_clock)` unless it has
a timer of its own, so pytest-benchmark's table, JSON and comparisons are of the device's time and not of the way to
the worker. With `--nb-record-benchmarks` every other test that uses `benchmark` leaves a receipt as well.

Everything here is an optional hook or looks for the fixture by name: without pytest-benchmark it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

from neuronbench.pytest_plugin.keys import OPEN, PLUGINS, POINT, SETTINGS, session_of

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord

LANE: Final = "microbench"
BACKEND: Final = "cpu"
"""What a test that leases nothing runs on."""


class WorkerClock:
    """A timer in seconds for pytest-benchmark: stands still but for what workers measured.

    Each reading moves it by a nanosecond, its resolution: pytest-benchmark finds the precision of a timer by waiting
    for it to move.
    """

    __name__ = "worker_clock"

    def __init__(self) -> None:
        self._ns = 0
        self.read: Callable[[], None] | None = None
        """Called before each reading: at the beginning and at the end of every round."""

    def advance(self, duration_ns: int) -> None:
        """Move on by a duration that a worker measured."""
        self._ns += duration_ns

    def __call__(self) -> float:
        if self.read is not None:
            self.read()
        self._ns += 1
        return self._ns / 1e9


worker_clock: Final = WorkerClock()


class BenchmarkIntegration:
    """Registered as a plugin of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._told: dict[str, dict[str, Any]] = {}
        """Node id → what its entry in pytest-benchmark's JSON says of the receipt."""
        self._machine: dict[str, Any] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            names = getattr(item, "fixturenames", ())
            if "benchmark" in names and "compiled_model" in names:
                mark = item.get_closest_marker("benchmark")
                options = {"timer": worker_clock, **(mark.kwargs if mark else {})}
                item.add_marker(pytest.mark.benchmark(**options), append=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """What `benchmark` timed goes into the point's record, also when the test fails afterwards."""
        opened = item.stash.get(OPEN, None)
        fixtures = getattr(item, "funcargs", {})
        watch = None
        model = fixtures.get("compiled_model") if "benchmark" in fixtures else None
        if opened is not None and hasattr(model, "single_calls"):  # else it is none whose calls move the clock
            from neuronbench.measure_rounds import Watch

            watch = worker_clock.read = Watch(session_of(self._config), opened, model, fixtures.get("telemetry"))
        try:
            return (yield)
        finally:
            worker_clock.read = None
            if watch is not None:
                watch.stop()
            stats = _stats(item)
            if opened is not None and not opened.record.closed and stats is not None:
                from neuronbench import measure_rounds

                on_device = stats.options.get("timer") is worker_clock
                measure_rounds.record(opened, stats, watch if on_device else None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" and POINT not in item.stash and self._config.option.nb_record_benchmarks:
            stats = _stats(item)
            if stats is not None:
                self._record(item, stats, report, call)
        return report

    def _record(self, item: pytest.Item, stats: Any, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
        """A receipt of a test that is no benchmark of ours."""
        from neuronbench import measure_rounds, points
        from neuronbench.grid import GridPoint
        from neuronbench.model import Failure, FrozenMap, Outcome

        session = session_of(self._config)
        callspec = getattr(item, "callspec", None)
        point = points.make_point(
            function=getattr(item, "function", type(item)),
            benchmark=item.nodeid.partition("[")[0],
            lane=LANE,
            backend=BACKEND,
            grid_point=GridPoint(params=FrozenMap(), axes=()),
            extra=dict(callspec.params) if callspec is not None else {},
        )
        opened: OpenRecord = session.open_record(point, repeat=1, provenance=session.provenance(BACKEND))
        record = opened.record
        if record.receipt_id in session.receipts:
            record.name = f"{record.receipt_name}-{point.fingerprint[:6]}"
        record.environment = session.environment(BACKEND)
        measure_rounds.record(opened, stats, None)
        outcome = Outcome.OK
        if report.failed and call.excinfo is not None:
            outcome = Outcome.FAILED
            message = f"{call.excinfo.typename}: {call.excinfo.value}"
            record.error = Failure(
                kind="exception", phase="window", message=message, causal_line=message.splitlines()[0],
                traceback=report.longreprtext,
            )  # fmt: skip
        session.commit(opened, outcome)
        self._told[item.nodeid] = {"receipt": record.receipt_id, "fingerprint": point.fingerprint}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = dict(report.user_properties)
        if report.when == "call" and "neuronbench.receipt" in said:
            self._told[report.nodeid] = {key: said[f"neuronbench.{key}"] for key in ("outcome", "validity", "receipt")}

    # -- hooks of pytest-benchmark ------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(
        self, config: pytest.Config, machine_info: MutableMapping[str, Any]
    ) -> None:
        """What the hardware is and which versions the stacks have: two machines that differ in these do not compare."""
        if self._machine is None:
            self._machine = _machine(config)
        machine_info["neuronbench"] = self._machine

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(
        self, config: pytest.Config, benchmarks: Sequence[Any], output_json: MutableMapping[str, Any]
    ) -> None:
        """Each entry that has a receipt cites it."""
        for entry in output_json.get("benchmarks", ()):
            told = self._told.get(entry.get("fullname", ""))
            if told:
                entry["extra_info"] = {**entry.get("extra_info", {}), "neuronbench": told}


def _stats(item: pytest.Item) -> Any:
    """What pytest-benchmark measured in this test: its metadata; None when it measured nothing."""
    fixture = getattr(item, "funcargs", {}).get("benchmark")
    stats = getattr(fixture, "stats", None)
    return stats if stats is not None and getattr(stats, "stats", None) else None


def _machine(config: pytest.Config) -> dict[str, Any]:
    from neuronbench.environment import host_facts

    host = host_facts()
    machine: dict[str, Any] = {name: host[f"host.{name}"] for name in ("cpu_model", "cores", "memory_gib")}
    plugins, settings = config.stash[PLUGINS], config.stash[SETTINGS]
    backends = machine["backends"] = {}
    for info in plugins.backends:
        try:
            backend = plugins.backend(info.name)
            if not backend.probe().available:
                continue
            facts = dict(backend.facts())
        except Exception:  # a backend that cannot even be asked is none that anything was measured on
            continue
        try:
            facts["stack"] = backend.stack("compile", settings).packages.to_json()
        except LookupError:
            facts["stack"] = None
        backends[info.name] = facts
    return machine


__all__ = ["BenchmarkIntegration", "WorkerClock", "worker_clock"]
