"""The whole way, with real processes: spawn, sample, stop, read; and everything that can break it."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from neuronbench.processes import Process, spawn
from neuronbench.protocols import SamplerSpec
from neuronbench.telemetry.recorder import Recorder, Telemetry
from neuronbench.telemetry.summary import telemetry_gate, token_totals

SAMPLERS = """
import itertools, os, time

class Count:
    def __init__(self, step=1):
        self.numbers = itertools.count(0, step)
    def read(self):
        return {"n": next(self.numbers), "missing": None, "infinite": float("inf")}

class FailsEverySecond(Count):
    def read(self):
        values = super().read()
        if values["n"] % 2:
            raise OSError("sensor is busy")
        print("a banner that belongs nowhere")
        return values

class Hangs:
    def read(self):
        time.sleep(600)

class Dies:
    def read(self):
        os.kill(os.getpid(), 9)
"""


def until(condition: Callable[[], object], what: str, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SamplerSpec]:
    """Specs of samplers in a module that only this project can import."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own_samplers.py").write_text(SAMPLERS)
    monkeypatch.syspath_prepend(str(folder))

    def make(name: str, target: str = "Count", period_s: float = 0.05, **options: Any) -> SamplerSpec:
        return SamplerSpec(name=name, target=f"own_samplers:{target}", options=options, period_s=period_s)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "receipt"
    path.mkdir()
    return path


@pytest.fixture
def record(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    started: list[Recorder] = []

    def start(*samplers: SamplerSpec, **options: Any) -> Recorder:
        started.append(Recorder.start(samplers, folder, partial(spawn, pid_dir=tmp_path / "pids"), **options))
        return started[-1]

    yield start
    for recorder in started:
        recorder.stop()
    assert not list((tmp_path / "pids").iterdir())


def spilled(folder: Path, sampler: str) -> int:
    """Samples that have reached the file."""
    return (folder / "telemetry.spill").read_text().count(f'"{sampler}",{{')


def telemetry_rows(folder: Path, sampler: str) -> list[Any]:
    lines = (folder / "telemetry.spill").read_text().splitlines()
    return [row for row in map(json.loads, lines[:-1]) if isinstance(row, list) and row[2] == sampler]


def process_of(recorder: Recorder) -> Process:
    process = recorder._process
    assert isinstance(process, Process)
    return process


def test_from_start_to_table(own: Callable[..., SamplerSpec], folder: Path, record: Callable[..., Recorder]) -> None:
    before_ns = time.monotonic_ns()
    recorder = record(own("a"), own("b", step=10, period_s=0.1))
    assert recorder.problem == ""
    start_ns = time.monotonic_ns()
    until(lambda: spilled(folder, "b") > 5, "samples in the file")
    end_ns = time.monotonic_ns()
    telemetry = recorder.stop()
    assert recorder.stop() is telemetry
    assert telemetry.problem == ""
    assert telemetry.errors == {}
    assert [path.name for path in folder.iterdir()] == ["telemetry.parquet"]
    assert telemetry.table == folder / "telemetry.parquet"

    for sampler, step in (("a", 1), ("b", 10)):
        series = telemetry.get(f"{sampler}/n")
        assert list(series.values) == [float(step * i) for i in range(len(series.values))]  # none lost, in order
        assert before_ns < series.mono_ns[0] < start_ns  # `start` returned after the first
        assert series.mono_ns[-1] > end_ns  # the last was taken at the stop
        assert list(series.mono_ns) == sorted(series.mono_ns)
    assert telemetry_gate(telemetry, start_ns, end_ns).passed
    assert telemetry.counter_delta("telemetry/cpu_s", before_ns, end_ns).end_off_ns is not None
    assert telemetry.get("telemetry/errors/a").values[-1] == 0

    table = pq.read_table(folder / "telemetry.parquet").to_pylist()
    rows = [row for row in table if row["sampler"] == "a"]
    assert {row["series"] for row in rows} == {"n", "missing", "infinite"}
    assert {row["value"] for row in rows if row["series"] != "n"} == {None}
    again = Telemetry.read(folder / "telemetry.parquet")
    assert again.get("a/n") == telemetry.get("a/n")


def test_samples_keep_to_the_schedule(
    own: Callable[..., SamplerSpec], folder: Path, record: Callable[..., Recorder]
) -> None:
    before_ns = time.monotonic_ns()
    recorder = record(own("a", period_s=0.04))
    until(lambda: spilled(folder, "a") > 20, "samples in the file")
    telemetry = recorder.stop()
    times = telemetry.get("a/n").mono_ns
    # Slots are start + k × period: over many samples no delay adds up, and a slot that was missed is counted. So
    # however late each was taken, they and what was missed are all slots until the last (that of the stop has none).
    missed = telemetry.get("telemetry/missed/a").values[-1]
    slots = len(times) - 1 + missed
    assert slots > (times[-2] - times[0]) / 0.04e9
    assert (slots - 1) * 0.04e9 <= times[-1] - before_ns


def test_a_real_server_process_and_its_metrics(
    folder: Path, record: Callable[..., Recorder], metrics_server: Any
) -> None:
    count = iter(range(0, 10_000, 7))
    metrics_server.answer = lambda: (200, f'vllm:prompt_tokens_total{{engine="0"}} {next(count)}\n')
    with spawn([sys.executable, "-c", "while True: pass"], name="server") as server:
        recorder = record(
            SamplerSpec(
                name="server",
                target="neuronbench.telemetry.process_tree:ProcessTree",
                options={"pids": [server.pid]},
                period_s=0.1,
            ),
            SamplerSpec(
                name="metrics",
                target="neuronbench.telemetry.prometheus:Prometheus",
                options={"url": metrics_server.url, "prefixes": ["vllm:"], "api_key": "very secret"},
                period_s=0.1,
            ),
            SamplerSpec(name="host", target="neuronbench.telemetry.host:Host", period_s=0.1),
        )
        until(lambda: spilled(folder, "metrics") > 3 and spilled(folder, "server") > 3, "samples in the file")
        telemetry = recorder.stop()
    assert telemetry.problem == ""
    assert "very secret" not in (folder / "telemetry.parquet").read_bytes().decode("latin-1")
    window = telemetry.window(0, 1 << 62)
    assert (window.max("server/cpu_percent") or 0) > 0
    assert window.min("server/processes") == 1
    assert (window.min("server/rss_bytes") or 0) > 1 << 20
    assert window.n("host/ctxt") > 3
    scrapes = window.n('metrics/vllm:prompt_tokens_total{engine="0"}')
    assert token_totals(telemetry).prompt_tokens == 7 * (scrapes - 1)


def test_an_endpoint_that_hangs_and_then_vanishes(
    own: Callable[..., SamplerSpec], folder: Path, record: Callable[..., Recorder], metrics_server: Any
) -> None:
    metrics_server.answer = lambda: (200, "vllm:n 1\n")
    options = {"url": metrics_server.url, "timeout_s": 0.2}
    target = "neuronbench.telemetry.prometheus:Prometheus"
    recorder = record(SamplerSpec(name="metrics", target=target, options=options, period_s=0.05), own("a"))
    until(lambda: spilled(folder, "metrics") > 2, "good samples")
    metrics_server.hang.set()
    hung = time.monotonic_ns()
    until(lambda: '"vllm:n":null' in (folder / "telemetry.spill").read_text(), "null for what hangs")
    metrics_server.end()
    until(lambda: "refused" in (folder / "telemetry.spill").read_text(), "the error of a vanished endpoint")
    # (the telemetry process has been told of nothing, and goes on)
    seen = spilled(folder, "a")
    until(lambda: spilled(folder, "a") > seen + 4, "further samples of the other one")
    end_ns = time.monotonic_ns()
    telemetry = recorder.stop()
    assert telemetry.errors.keys() == {"metrics"}
    assert telemetry.errors["metrics"].count >= 2
    assert "refused" in telemetry.errors["metrics"].last
    assert "sampler 'metrics' failed" in telemetry.problem
    window = telemetry.window(hung + int(0.2e9), end_ns)
    assert window.n("metrics/vllm:n") == 0
    assert window.n("a/n") > 3  # the other one was not disturbed
    gate = telemetry_gate(telemetry, hung + int(0.2e9), end_ns)
    assert (gate.passed, gate.observed) == (False, 0)


def test_a_sampler_that_raises(own: Callable[..., SamplerSpec], folder: Path, record: Callable[..., Recorder]) -> None:
    recorder = record(own("bad", "FailsEverySecond"), own("good"))
    until(lambda: spilled(folder, "bad") > 6, "samples in the file")
    telemetry = recorder.stop()
    errors = telemetry.errors["bad"]
    assert errors.last == "OSError: sensor is busy"
    assert errors.count == telemetry.get("telemetry/errors/bad").values[-1]
    assert "sampler 'bad' failed" in telemetry.problem
    rows = [row for row in pq.read_table(folder / "telemetry.parquet").to_pylist() if row["sampler"] == "bad"]
    assert [row["value"] for row in rows if row["series"] == "n"][:4] == [0.0, None, 2.0, None]
    assert telemetry.window(0, 1 << 62).n("good/n") > 3
    assert "banner" in (folder / "telemetry.log").read_text()  # and not in the conversation


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("no_such_module:X", "ModuleNotFoundError"),
        ("own_samplers:Missing", "AttributeError"),
        ("own_samplers:Count", "unexpected keyword"),
    ],
)
def test_a_sampler_that_cannot_be_made(
    own: Callable[..., SamplerSpec], record: Callable[..., Recorder], target: str, what: str
) -> None:
    recorder = record(SamplerSpec(name="bad", target=target, options={"oops": 1}), own("good"))
    telemetry = recorder.stop()
    assert what in telemetry.errors["bad"].last
    assert "could not be made" in telemetry.problem
    assert telemetry.window(0, 1 << 62).n("good/n") >= 2


def test_a_sampler_that_hangs_delays_neither_start_nor_stop_for_long(
    own: Callable[..., SamplerSpec], record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuronbench.telemetry.recorder.STOP_S", 20.0)
    recorder = record(own("hung", "Hangs"), own("good"), deadline_s=20.0)
    assert recorder.problem == ""
    telemetry = recorder.stop()
    assert telemetry.problem == ""  # it ended by itself
    assert telemetry.window(0, 1 << 62).n("good/n") > 3
    assert "hung/n" not in telemetry.series()


def test_killed_in_the_middle(own: Callable[..., SamplerSpec], folder: Path, record: Callable[..., Recorder]) -> None:
    recorder = record(own("a"))
    start_ns = time.monotonic_ns()
    until(lambda: spilled(folder, "a") > 30, "samples in the file")
    kept = telemetry_rows(folder, "a")
    os.kill(process_of(recorder).pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    telemetry = recorder.stop()
    assert telemetry.problem == "the telemetry process ended early (exit status -9)"
    series = telemetry.get("a/n")
    assert len(series.values) >= len(kept) >= 30
    assert series.mono_ns[-1] >= kept[-1][1]
    assert telemetry.table is not None
    assert telemetry_gate(telemetry, start_ns, killed_ns).passed
    assert not telemetry_gate(telemetry, killed_ns, killed_ns + 10**9).passed


def test_a_process_that_dies_before_it_is_ready(
    own: Callable[..., SamplerSpec], record: Callable[..., Recorder]
) -> None:
    recorder = record(own("a", "Dies"))
    assert "ended before it was ready" in recorder.problem
    telemetry = recorder.stop()
    assert "exit status -9" in telemetry.problem
    assert not telemetry_gate(telemetry, 0, 1 << 62).passed


def test_not_ready_in_time(own: Callable[..., SamplerSpec], record: Callable[..., Recorder]) -> None:
    recorder = record(own("a"), deadline_s=0.0)
    assert recorder.problem == "telemetry was not ready within 0 s"
    assert recorder.stop().problem == recorder.problem


def test_an_interpreter_that_is_not_there(
    own: Callable[..., SamplerSpec], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **kwargs: Any) -> Process:
        raise FileNotFoundError("no such program")

    recorder = Recorder.start([own("a")], folder, failing)
    telemetry = recorder.stop()
    assert telemetry.problem.startswith("the telemetry process could not be started: no such program")
    assert telemetry.table is None
    assert len(telemetry) == 0


def test_a_full_disk_is_a_problem_and_keeps_the_samples(
    own: Callable[..., SamplerSpec], folder: Path, record: Callable[..., Recorder]
) -> None:
    (folder / "telemetry.parquet").mkdir()  # writing a file of that name fails
    telemetry = record(own("a")).stop()
    assert "telemetry.parquet could not be written" in telemetry.problem
    assert telemetry.table is None
    assert telemetry.window(0, 1 << 62).n("a/n") >= 2
    assert (folder / "telemetry.spill").exists()


def test_interrupted_while_starting(own: Callable[..., SamplerSpec], folder: Path, tmp_path: Path) -> None:
    children: list[Process] = []

    def interrupting(*args: Any, **kwargs: Any) -> Process:
        children.append(spawn(*args, **kwargs, pid_dir=tmp_path / "pids"))
        config = Path(args[0][-1])
        assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700  # options may hold a key
        assert json.loads(config.read_text())["samplers"][0]["name"] == "a"

        class Interrupts:
            def __getattr__(self, name: str) -> Any:
                if name == "stdout":
                    raise KeyboardInterrupt
                return getattr(children[0], name)

        return Interrupts()  # type: ignore[return-value]

    with pytest.raises(KeyboardInterrupt):
        Recorder.start([own("a")], folder, interrupting)
    assert children[0].poll() is not None
    assert not list((tmp_path / "pids").iterdir())


def test_names_of_samplers(own: Callable[..., SamplerSpec], folder: Path) -> None:
    with pytest.raises(ValueError, match="two samplers are called 'a'"):
        Recorder.start([own("a"), own("a")], folder, spawn)
    with pytest.raises(ValueError, match="has no '/'"):
        Recorder.start([own("a/b")], folder, spawn)
    with pytest.raises(TypeError, match="a set has no order"):
        Recorder.start([own("a", step={1})], folder, spawn)
