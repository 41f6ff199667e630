"""pytest-benchmark's rounds as a record: which calls they are, and the evidence of the host that a loop has too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neuronbench import config, measure_rounds
from neuronbench.measure_rounds import Watch
from neuronbench.model import FrozenMap, Gate, Point
from neuronbench.plugins import Plugins
from neuronbench.protocols import Floor
from neuronbench.pytest_plugin.benchmark_clock import WorkerClock
from neuronbench.session import Session
from neuronbench.telemetry.table import Telemetry
from neuronbench.worker.compiled import SingleCalls

MS = 1_000_000


class Model:
    """Calls of a fixed duration, of whose time a given share was had of the CPU."""

    host_bound = True
    floor = Floor()

    def __init__(self, clock: WorkerClock, cpu_share: float, cores: list[int] | None) -> None:
        self.spec = SimpleNamespace(id="made-up", settings={})
        self._clock, self._share, self._cores = clock, cpu_share, cores
        self._count = self._ns = self._cpu_ns = 0

    def pids(self) -> list[int]:
        return []

    def cores_of(self, index: int) -> list[int] | None:
        return self._cores

    def last_outputs(self) -> dict[str, Any]:
        return {"scores": np.zeros(2, dtype="f4")}

    def single_calls_escape(self) -> float | None:
        return 0.0

    def single_calls(self) -> SingleCalls:
        return SingleCalls(count=self._count, duration_ns=self._ns, cpu_ns=self._cpu_ns)

    def call(self, ms: int = 10, share: float | None = None) -> None:
        self._count += 1
        self._ns += ms * MS
        self._cpu_ns += round(ms * MS * (self._share if share is None else share))
        self._clock.advance(ms * MS)


class Sampled:
    """Telemetry without a process: what it would have seen is made up when it is asked for."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()

    def stop(self) -> Telemetry:
        return self.telemetry


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "pyproject.toml").write_text("")
    made = Session(config.load(tmp_path, environ={}), Plugins(entry_points=False))
    yield made
    made.close(0)


def timed(
    session: Session, monkeypatch: pytest.MonkeyPatch, *, share: float, cores: list[int] | None, samples: int = 4
) -> tuple[Any, Watch]:
    """A record of five rounds after a slow call that calibrates, and what was noted of them."""
    point = Point(
        lane="encoder", benchmark="bench_x.py::bench_call", backend="cpu", params=FrozenMap(), axes=(), id="call"
    )
    opened = session.open_record(point, repeat=1, provenance=session.provenance("cpu"))
    clock, sampled = WorkerClock(), Sampled()
    model = Model(clock, share, cores)

    def start(samplers: Any, folder: Path, spawn: Any) -> Sampled:
        assert next(sampler.name for sampler in samplers) == "host"
        return sampled

    monkeypatch.setattr("neuronbench.telemetry.recorder.Recorder.start", start)
    watch = clock.read = Watch(session, opened, model)
    data = []
    for number in range(6):
        before = clock()
        model.call(ms=500, share=0.1) if number == 0 else model.call()
        data.append(clock() - before)
    clock.read = None
    model.call(share=0.0)  # for its answer, and not timed
    spans = watch.rounds(5)
    for number in range(samples):
        at = spans[0].start_ns + (spans[-1].end_ns - spans[0].start_ns) * number // max(samples - 1, 1)
        sampled.telemetry.add(0, at, "host", {"cpu_percent": 50.0})
    watch.stop()
    rounds = SimpleNamespace(stats=SimpleNamespace(data=data[1:]), iterations=1, options={"timer": clock}, group=None)
    measure_rounds.record(opened, rounds, watch)
    return opened.record, watch


def gates(record: Any) -> dict[str, Gate]:
    return {gate.id: gate for gate in record.gates}


def test_calls_that_did_not_have_their_core_are_provisional_as_those_of_a_loop(session, monkeypatch) -> None:
    record, _ = timed(session, monkeypatch, share=0.5, cores=[1])
    gate = gates(record)["cores_contended"]
    assert (gate.passed, gate.severity, gate.observed, gate.limit) == (False, "provisional", 0.5, 0.9)
    assert "end them" in gate.message


def test_only_the_rounds_count_and_not_what_calibrates_before_or_answers_after_them(session, monkeypatch) -> None:
    record, watch = timed(session, monkeypatch, share=0.98, cores=[1])
    assert gates(record)["cores_contended"].observed == 0.98
    assert gates(record)["cores_contended"].passed is True
    assert [span.duration_ns for span in watch.rounds(5)] == [10 * MS] * 5
    window = record.workload["pytest_benchmark"]["window"]
    assert (window["start_ns"], window["end_ns"]) == (watch.rounds(5)[0].start_ns, watch.rounds(5)[-1].end_ns)


@pytest.mark.parametrize(("samples", "passed"), [(4, True), (2, False)])
def test_rounds_without_telemetry_inside_them_are_no_headline(session, monkeypatch, samples, passed) -> None:
    record, _ = timed(session, monkeypatch, share=1.0, cores=[1], samples=samples)
    gate = gates(record)["telemetry"]
    assert (gate.passed, gate.severity, gate.observed) == (passed, "provisional", samples)
    assert "worker_cpu_mean_pct" in record.metrics


@pytest.mark.parametrize("cores", [None, [0, 1]])
def test_copies_of_no_one_core_are_not_judged_by_it(session, monkeypatch, cores) -> None:
    record, _ = timed(session, monkeypatch, share=0.5, cores=cores)
    assert "cores_contended" not in gates(record)
