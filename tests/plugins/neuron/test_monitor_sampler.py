"""The sampler over a (fake) `neuron-monitor` that runs: what fake runtimes did, and what befalls the tool."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from neuronbench_neuron.monitor.sampler import NeuronMonitor, NeuronMonitorError
from neuronbench_neuron.monitor.sysfs import Sysfs

from neuronbench import SamplerSpec, processes
from neuronbench.telemetry.accelerator import accelerator
from neuronbench.telemetry.recorder import Recorder, Telemetry
from neuronbench.testing.neuron import FakeBox
from neuronbench.testing.neuron.neuron_monitor import Runtime, install, report

LIMIT_S = 15.0
Make = Callable[..., NeuronMonitor]


@pytest.fixture
def box(tmp_path: Path) -> FakeBox:
    return FakeBox("trn2.3xlarge", tmp_path / "box")


@pytest.fixture
def monitor(box: FakeBox) -> Iterator[Make]:
    made: list[NeuronMonitor] = []

    def make(fault: str = "", *, after: int = 1, cores: list[int] | None = None, **options: object) -> NeuronMonitor:
        made.append(NeuronMonitor(str(install(box, fault=fault, after=after)), cores, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def until(monitor: NeuronMonitor, enough: Callable[[Mapping[str, float | None]], bool]) -> Mapping[str, float | None]:
    """The first sample that is enough."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        values = monitor.read()
        if enough(values):
            return values
        time.sleep(0.02)
    raise AssertionError("no such sample came")


def test_nothing_attached_has_no_utilisation(monitor: Make) -> None:
    values = until(monitor(cores=[0]), bool)
    assert values["utilization_percent"] is None
    assert values["device_bytes"] is None
    assert values["runtimes"] == 0.0
    assert values["ecc/0/mem_ecc_uncorrected"] == 0.0


def test_executions_are_counted_once_and_only_of_our_cores(box: FakeBox, monitor: Make) -> None:
    runtime = Runtime(box.root, [0, 1], device_bytes=1 << 30)
    sampler = monitor(cores=[0, 1, 2])
    until(sampler, bool)
    for _ in range(5):
        runtime.executed(0.02)
    values = until(sampler, lambda values: bool(values.get("outcome/completed")))
    assert values["outcome/completed"] == 5.0
    assert values["core/0/utilization_percent"] == pytest.approx(10.0, abs=2.0)  # 0.1 s of a second
    assert values["core/0/nc_v3.1/utilization_percent"] == values["core/0/utilization_percent"]
    assert values["utilization_percent"] == pytest.approx(
        values["core/0/utilization_percent"] * 2 / 3
    )  # core 2 is idle
    assert values["execution_s"] == 0.02
    assert values["device_bytes"] == float(1 << 30)
    later = until(sampler, bool)
    assert later["outcome/completed"] == 5.0
    assert later["core/0/utilization_percent"] == 0.0
    runtime.close()


def test_other_runtimes_are_seen_and_left_out(box: FakeBox, monitor: Make) -> None:
    runtime = Runtime(box.root, [3])
    values = until(monitor(cores=[0]), bool)
    assert (values["runtimes"], values["other_runtimes"]) == (0.0, 1.0)
    assert values["utilization_percent"] is None
    runtime.close()


def test_a_read_without_a_new_report_gives_nothing(monitor: Make) -> None:
    sampler = monitor(cores=[0])
    until(sampler, bool)
    assert sampler.read() == {}


def test_the_period_follows_long_executions(box: FakeBox, monitor: Make) -> None:
    runtime = Runtime(box.root, [0])
    sampler = monitor(cores=[0])
    until(sampler, bool)
    runtime.executed(0.15)
    values = until(sampler, lambda values: values.get("execution_s") is not None)
    assert values["execution_s"] == 0.15
    assert sampler._period_s == 2.0
    assert values["restarts"] == 0.0  # that is no death
    runtime.close()


def test_a_tool_that_dies_is_an_error_and_started_again_once(monitor: Make) -> None:
    sampler = monitor("dies", cores=[0])
    with pytest.raises(
        NeuronMonitorError, match=r"ended with status 1 after 1 reports: .*lost the driver.*started again"
    ):
        until(sampler, lambda values: False)
    assert until(sampler, bool)["restarts"] == 1.0
    with pytest.raises(NeuronMonitorError, match="left alone now") as caught:
        until(sampler, lambda values: False)
    assert "i-0123456789abcdef0" not in str(caught.value)
    with pytest.raises(NeuronMonitorError, match="left alone now"):
        sampler.read()


def test_a_tool_that_says_nothing_is_dead(monitor: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuronbench_neuron.monitor.sampler.QUIET_S", 0.1)
    monkeypatch.setattr("neuronbench_neuron.monitor.sampler.QUIET_PERIODS", 1.5)
    with pytest.raises(NeuronMonitorError, match=r"has said nothing for .* its period is 1 s; it was started again"):
        until(monitor("stalls", cores=[0]), lambda values: False)


@pytest.mark.parametrize("fault", ["truncated", "garbage"])
def test_lines_that_are_no_report_are_counted_and_give_nothing(monitor: Make, fault: str) -> None:
    sampler = monitor(fault, cores=[0])
    first = until(sampler, bool)
    assert first["unreadable"] == 0.0
    if fault == "truncated":  # the line after it is whole again
        assert until(sampler, bool)["unreadable"] == 1.0
    else:
        deadline = time.monotonic() + 60
        while not sampler._counters["unreadable"] and time.monotonic() < deadline:
            assert sampler.read() == {}
            time.sleep(0.02)
        assert sampler._counters["unreadable"] >= 1.0


def test_a_tool_that_is_not_there() -> None:
    sampler = NeuronMonitor("/nowhere/neuron-monitor", [0])
    with pytest.raises(NeuronMonitorError, match="cannot be run: No such file or directory; install aws-neuronx-tools"):
        sampler.read()
    sampler.close()


def test_nothing_runs_after_the_end(box: FakeBox, monitor: Make) -> None:
    sampler = monitor(cores=[0])
    until(sampler, bool)
    assert sampler._running is not None
    process = sampler._running._process
    sampler.close()
    assert process.returncode is not None


def test_the_fake_refuses_what_the_tool_refuses(box: FakeBox) -> None:
    done = subprocess.run([install(box), "--json"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "not defined: --json" in done.stdout  # on standard output, as the real one


def test_the_fake_credits_an_execution_to_the_period_of_its_end(box: FakeBox) -> None:
    config = {"neuron_runtimes": [{"metrics": [{"type": "neuroncore_counters"}]}], "system_metrics": []}
    runtime = Runtime(box.root, [0])
    runtime.executed(2.9, end_ns=2_900_000_000)
    shares = []
    for second in range(4):
        (told,) = report(box.root, config, second * 10**9, (second + 1) * 10**9)["neuron_runtime_data"]
        shares.append(told["report"]["neuroncore_counters"]["neuroncores_in_use"]["0"]["neuroncore_utilization"])
    assert shares == [0.0, 0.0, 100.0, 0.0]
    runtime.close()


# -- sysfs


def test_sysfs_of_a_box(box: FakeBox) -> None:
    values = Sysfs(root=str(box.root)).read()
    folder = "sys/devices/virtual/neuron_device/neuron0"
    box.write(f"{folder}/stats/power/utilization", "POWER_STATUS_VALID,1789180860,1.00,30.00,12.50")
    box.write(f"{folder}/neuron_core0/stats/memory_usage/device_mem/present", "4096\n")
    box.write(f"{folder}/neuron_core0/stats/status/hw_error/total", "not a number")
    later = Sysfs([0], root=str(box.root)).read()
    assert later["0/power_percent"] == 12.5
    assert later["0/power_epoch_s"] == 1789180860.0
    assert later["0/core/0/memory_bytes"] == 4096.0
    assert later["0/core/0/hw_error"] is None
    assert set(values) <= set(later)


@pytest.mark.parametrize(
    "text", ["", "POWER_STATUS_NO_DATA,0,0,0,0", "POWER_STATUS_VALID,1,2", "POWER_STATUS_VALID,1,0,0,400"]
)
def test_power_that_is_not_known(box: FakeBox, text: str) -> None:
    box.write("sys/devices/virtual/neuron_device/neuron0/stats/power/utilization", text)
    assert Sysfs([0], root=str(box.root)).read()["0/power_percent"] is None


def test_no_driver_no_values(tmp_path: Path) -> None:
    assert Sysfs(root=str(tmp_path)).read() == {}


def test_the_fake_tool_needs_no_package(box: FakeBox) -> None:
    config = box.write("config.json", json.dumps({"period": "100ms", "neuron_runtimes": [], "system_metrics": []}))
    process = subprocess.Popen([install(box), "-c", config], stdout=subprocess.PIPE, text=True, env={"PATH": "/bin"})
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.terminate()
    process.wait(10)
    process.stdout.close()
    assert all(line["neuron_runtime_data"] == [] for line in lines)


# -- in the telemetry process


def test_a_monitor_that_dies_in_a_window_is_in_the_record_and_never_a_flat_line(box: FakeBox, tmp_path: Path) -> None:
    tool = install(box, fault="dies", after=1)
    spec = SamplerSpec(
        name="accelerator", target="neuronbench_neuron.monitor.sampler:NeuronMonitor",
        options={"tool": str(tool), "cores": [0]}, period_s=0.1,
    )  # fmt: skip
    runtime = Runtime(box.root, [0])
    begun_ns = time.monotonic_ns()
    recorder = Recorder.start([spec], tmp_path, processes.spawn)
    deadline = time.monotonic() + 60.0
    spill = tmp_path / "telemetry.spill"
    while not spill.exists() or "left alone now" not in spill.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sampled = recorder.stop()
    runtime.close()
    assert "left alone now" in sampled.errors["accelerator"].last
    assert sampled.errors["accelerator"].count >= 2
    _, gates = accelerator(sampled, begun_ns, time.monotonic_ns())
    gate = next(gate for gate in gates if gate.id == "accelerator_monitored")
    assert gate.passed is False
    assert "ended with status 1" in gate.message
    table = Telemetry.read(tmp_path / "telemetry.parquet")
    seen = table.get("accelerator/utilization_percent")
    assert len(seen.values) <= 4  # of two tools that lived for a report or two; nothing is repeated after that
