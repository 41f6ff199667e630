"""The probe of trn1, trn2 and inf2 against made-up hosts: a folder in place of `/`, and a tool that says what is told.

The tool's answers are documented and published ones (`tests/data/neuron_ls`); no Neuron hardware is involved.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from neuronbench import Backend, Probe, config
from neuronbench.plugins import Plugins

neuronbench_neuron = pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import hardware, neuron_ls  # noqa: E402
from neuronbench_neuron.backend import NeuronBackend  # noqa: E402

SAMPLES = Path(__file__).parent.parent / "data" / "neuron_ls"


class FakeHost:
    """A tree to look at in place of `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir()
        self.empty_path = root / "empty"
        self.empty_path.mkdir()

    def write(self, name: str, text: str) -> FakeHost:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return self

    def product(self, name: str) -> FakeHost:
        return self.write("sys/devices/virtual/dmi/id/product_name", name + "\n")

    def devices(self, count: int) -> FakeHost:
        for index in range(count):
            self.write(f"dev/neuron{index}", "")
        return self.write("proc/devices", "Character devices:\n  1 mem\n240 neuron\n").write(
            "sys/module/neuron/version", "2.26.5.0\n"
        )

    def tool(self, body: str) -> FakeHost:
        """`neuron-ls` where its package puts it: a Python program that notes that it ran."""
        self.write("opt/aws/neuron/bin/neuron-ls", f"#!{sys.executable}\nimport sys, pathlib\n"
                   f"pathlib.Path({str(self.ran)!r}).touch()\n{body}\n")  # fmt: skip
        (self.root / "opt/aws/neuron/bin/neuron-ls").chmod(0o755)
        return self

    def answers(self, sample: str) -> FakeHost:
        text = (SAMPLES / sample).read_text(encoding="utf-8").rstrip("\n")  # the tool prints no newline at the end
        return self.tool(f"assert sys.argv[1:] == ['-j']; sys.stdout.write({text!r})")

    @property
    def ran(self) -> Path:
        return self.root / "tool-ran"

    def backend(self, name: str, environ: Mapping[str, str] | None = None) -> NeuronBackend:
        info = Plugins(entry_points=False)
        info.register(neuronbench_neuron, name="neuron", source="test", strict=True)
        return NeuronBackend(
            info.backends[name], root=self.root, search_path=str(self.empty_path), environ=environ or {}
        )

    def probe(self, name: str, environ: Mapping[str, str] | None = None) -> Probe:
        return self.backend(name, environ).probe()


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    root = tmp_path / "root"
    root.mkdir()
    return FakeHost(root)


def test_three_backends_of_one_family() -> None:
    plugins = Plugins(entry_points=False)
    assert plugins.register(neuronbench_neuron, name="neuron", source="test", strict=True)
    assert plugins.registered("neuron")["backends"] == ["trn1", "trn2", "inf2"]
    assert {plugins.backends[name].family for name in ("trn1", "trn2", "inf2")} == {"neuron"}
    for name in ("trn1", "trn2", "inf2"):
        backend = plugins.backend(name)
        assert isinstance(backend, Backend)
        assert backend.info.name == name


@pytest.mark.parametrize("name", ["trn1", "trn2", "inf2"])
def test_a_host_without_devices_names_itself_and_starts_nothing(host: FakeHost, name: str) -> None:
    host.product("m7i.large").answers("inf2_xlarge.json")
    found = host.probe(name)
    assert not found.available
    assert found.reason == "no Neuron device (/dev/neuron0 absent); this host is a m7i.large"
    assert found.cores == 0
    assert not host.ran.exists()


def test_a_host_that_does_not_say_what_it_is(host: FakeHost) -> None:
    host.write("proc/cpuinfo", "processor: 0\nmodel name  : Some  CPU @ 3 GHz\n")
    reason = host.probe("inf2").reason
    assert reason == "no Neuron device (/dev/neuron0 absent); this host is without a product name (Some CPU @ 3 GHz)"


def test_a_host_of_the_family_whose_driver_is_not_loaded(host: FakeHost) -> None:
    host.product("inf2.xlarge")
    reason = host.probe("inf2").reason
    assert "although this host is an inf2.xlarge" in reason
    assert "modprobe neuron" in reason


def test_a_container_without_the_devices(host: FakeHost) -> None:
    host.product("inf2.xlarge").write("proc/devices", "Character devices:\n240 neuron\n")
    assert "--device=/dev/neuron0" in host.probe("inf2").reason


def test_another_family_without_devices(host: FakeHost) -> None:
    host.product("trn1.2xlarge")
    assert host.probe("inf2").reason == "no Neuron device (/dev/neuron0 absent), and this host is a trn1.2xlarge"


@pytest.mark.parametrize(
    ("product", "sample", "backend", "devices", "cores", "gib"),
    [
        ("inf2.xlarge", "inf2_xlarge.json", "inf2", 1, 2, 32.0),
        ("trn1.2xlarge", "trn1_2xlarge.json", "trn1", 1, 2, 32.0),
        ("", "trn2_3xlarge.json", "trn2", 1, 4, 96.0),  # a newer tool says the instance type itself
        ("trn2.48xlarge", "trn2_busy_three_devices.json", "trn2", 3, 12, 288.0),
    ],
)
def test_devices_and_cores(
    host: FakeHost, product: str, sample: str, backend: str, devices: int, cores: int, gib: float
) -> None:
    host.devices(devices).answers(sample)
    if product:
        host.product(product)
    found = host.probe(backend)
    assert (found.available, found.reason, found.cores) == (True, "", cores)
    assert found.facts["neuron.devices"] == devices
    assert found.facts["neuron.device_memory_gib"] == gib
    assert found.facts["driver"] == "2.26.5.0"
    assert found.facts["neuron.family"] == backend
    for other in {"trn1", "trn2", "inf2"} - {backend}:
        assert f"are {backend}" in host.probe(other).reason


def test_busy_devices_are_counted_and_identifiers_are_not_kept(host: FakeHost) -> None:
    facts = host.devices(3).product("trn2.48xlarge").answers("trn2_busy_three_devices.json").probe("trn2").facts
    assert facts["neuron.processes_at_start"] == 1  # one, on three devices
    assert facts["neuron.logical_core_config"] == 2
    assert "i-0" not in str(dict(host.devices(1).answers("trn2_3xlarge.json").probe("trn2").facts))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            'sys.stderr.write(\'level=fatal msg="Failed to load MLA system information" '
            'error="failed to discover Neuron devices"\'); sys.exit(1)',
            "ended with status 1: Failed to load MLA system information: failed to discover Neuron devices",
        ),
        ("print('unknown flag: -j'); sys.exit(1)", "ended with status 1: unknown flag: -j"),
        ("sys.exit(3)", "ended with status 3: no message"),
        ("print('instance-type: inf2.xlarge')", "expected JSON, found 'instance-type: inf2.xlarge'"),
        ("print('[]')", "lists no device"),
        ("print('[1, 2]')", "expected a list with an object per device"),
        ("print('[{\"neuron_device\": 0}]')", "names no cores"),
    ],
)
def test_a_tool_that_fails_is_quoted(host: FakeHost, body: str, why: str) -> None:
    found = host.devices(1).product("inf2.xlarge").tool(body).probe("inf2")
    assert not found.available
    assert found.reason.startswith("/dev/neuron0 is there, but ")
    assert why in found.reason


def test_a_tool_that_hangs_has_a_deadline(host: FakeHost) -> None:
    host.devices(1).tool("import time; time.sleep(600)")
    with pytest.raises(neuron_ls.NeuronLsError, match=r"did not answer within 0\.2 s"):
        neuron_ls.ask(host.root / "opt/aws/neuron/bin/neuron-ls", timeout_s=0.2)


def test_a_tool_that_cannot_be_run(host: FakeHost) -> None:
    host.devices(1).write("opt/aws/neuron/bin/neuron-ls", "")
    assert "cannot be run: Permission denied" in host.probe("inf2").reason


def test_the_search_path_comes_before_the_usual_place(host: FakeHost) -> None:
    host.devices(1).product("inf2.xlarge").tool("sys.exit(9)")
    mine = host.root / "bin" / "neuron-ls"
    host.write("bin/neuron-ls", f"#!{sys.executable}\nprint({(SAMPLES / 'inf2_xlarge.json').read_text()!r})\n")
    mine.chmod(0o755)
    found = hardware.look(host.root, search_path=str(mine.parent))
    assert (found.tool, found.cores) == (mine, 2)


def test_without_the_tool_the_driver_is_asked(host: FakeHost) -> None:
    sysfs = "sys/devices/virtual/neuron_device/neuron0"
    host.devices(1)
    assert "install aws-neuronx-tools" in host.probe("inf2").reason
    host.write(f"{sysfs}/core_count", "2\n").write(f"{sysfs}/info/architecture/instance_type", "Inf2\n")
    found = host.probe("inf2")
    assert (found.available, found.cores) == (True, 2)
    assert found.facts["instance_type"] is None
    assert "are inf2 (by its driver)" in host.probe("trn1").reason


def test_an_unknown_instance_type_can_be_told(host: FakeHost) -> None:
    host.devices(1).answers("inf2_xlarge.json")
    assert "set NEURONBENCH_INSTANCE_TYPE" in host.probe("inf2").reason
    told = {"NEURONBENCH_INSTANCE_TYPE": "inf2.xlarge"}
    assert host.probe("inf2", told).available
    assert "are inf2 (inf2.xlarge)" in host.probe("trn1", told).reason


@pytest.mark.parametrize(
    ("name", "family"),
    [("trn1.2xlarge", "trn1"), ("trn1n.32xlarge", "trn1"), ("trn2u.48xlarge", "trn2"), ("inf2.xlarge", "inf2"),
     ("trn3.48xlarge", "trn3"), ("m7i.large", ""), ("HVM domU", ""), ("", "")],
)  # fmt: skip
def test_family_of_an_instance_type(name: str, family: str) -> None:
    assert hardware.family_of(name) == family


def test_numbers_as_text_and_missing_keys_are_read() -> None:
    (device,) = neuron_ls.parse('{"devices": [{"neuron_device": "3", "nc_count": "2", "neuron_processes": null}]}')
    assert (device.index, device.cores, device.memory_bytes, device.processes) == (3, 2, None, ())


def test_stacks_are_looked_for_among_the_images_environments(host: FakeHost, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    host.write("opt/aws_neuronx_venv_pytorch_inference_vllm/marker", "")
    backend = host.backend("inf2")
    with pytest.raises(LookupError) as caught:
        backend.stack("serving", config.load(project, environ={}))
    assert "aws_neuronx_venv_pytorch_inference_vllm" in str(caught.value)
    assert "--nb-stack serving=PATH" in str(caught.value)
    with pytest.raises(LookupError, match="has no stack for 'cooking'"):
        backend.stack("cooking", config.load(project, environ={}))
