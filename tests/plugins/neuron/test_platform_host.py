"""What is found on a Neuron host: sources in order, contradictions named, silent services, made-up roots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuronbench import Backend, BackendInfo, config
from neuronbench.environment import describe
from neuronbench.session import Session
from neuronbench.testing.neuron import SHAPES, FakeBox

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import hardware, ids, metadata
from neuronbench_neuron.backend import NeuronBackend


def look(box: FakeBox, **more: str) -> hardware.Hardware:
    return hardware.look(box.root, environ=box.environ(**more))


def backend(name: str, box: FakeBox, **more: str) -> NeuronBackend:
    info = BackendInfo(name=name, title=name, family="neuron", target="neuronbench_neuron.backend:NeuronBackend")
    return NeuronBackend(info, environ=box.environ(**more))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_recognised(name: str, tmp_path: Path) -> None:
    with FakeBox(name, tmp_path / "box") as box:
        found = look(box)
        probes = {family: backend(family, box).probe() for family in ("trn1", "trn2", "inf2")}
    shape = box.shape
    assert found.problem == ""
    assert found.contradictions == ()
    assert found.instance_type == name
    assert found.core_ids == found.visible == tuple(range(shape.cores))
    assert found.logical_core_config == shape.logical_core_config
    assert found.core_version == shape.instance.core_version
    assert (found.metadata.region, found.metadata.life_cycle) == ("us-west-2", "on-demand")
    assert {family for family, probe in probes.items() if probe.available} == {shape.instance.family}
    assert probes[shape.instance.family].cores == shape.cores


# -- made-up hosts are never measured ----------------------------------------------------------------------------------


def test_a_made_up_host_is_simulated_and_has_an_environment_key_of_its_own(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        mine = backend("inf2", box)
        assert isinstance(mine, Backend)
        assert mine.probe().facts["simulated"] is True
        settings = config.load(tmp_path, environ={})
        environment = describe(mine, {}, settings, {}, environ={})

        class Real(NeuronBackend):
            def facts(self) -> Any:
                return {name: value for name, value in super().facts().items() if name != "simulated"}

        real = describe(Real(mine.info, environ=box.environ()), {}, settings, {}, environ={})
    assert environment.facts["backend.simulated"] is True
    assert "backend.simulated" not in real.facts
    assert environment.key != real.key


def test_records_of_a_made_up_host_are_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronbench.plugins import Plugins

    with FakeBox("trn2.3xlarge", tmp_path / "box") as box:
        for name, value in box.environ().items():
            monkeypatch.setenv(name, value)
        session = Session(config.load(tmp_path / "box", environ={}), Plugins())
        assert session.probe("trn2").available
        assert session.provenance("trn2") == "simulated"
        assert session.provenance("cpu") == "measured"


def test_a_root_that_is_handed_over_counts_too(tmp_path: Path) -> None:
    box = FakeBox("inf2.xlarge", tmp_path / "box")
    info = BackendInfo(name="inf2", title="", family="neuron", target="")
    assert NeuronBackend(info, root=box.root, environ={}).probe().facts["simulated"] is True


def test_a_root_that_was_left_in_the_environment_is_named(tmp_path: Path) -> None:
    info = BackendInfo(name="inf2", title="", family="neuron", target="")
    nothing = {hardware.ROOT_VARIABLE: str(tmp_path / "gone")}
    reason = NeuronBackend(info, environ=nothing).probe().reason
    assert reason == f"{tmp_path}/gone is no folder to look at in place of / (below {tmp_path}/gone, because " + (
        "NEURONBENCH_NEURON_ROOT is set)"
    )
    with FakeBox("trn1.2xlarge", tmp_path / "box") as box:
        assert f"(below {box.root}, because NEURONBENCH_NEURON_ROOT is set)" in backend("inf2", box).probe().reason


def test_a_metadata_service_of_this_host_s_own_makes_it_made_up() -> None:
    assert metadata.is_stand_in({metadata.ENDPOINT_VARIABLE: "http://127.0.0.1:1338"})
    assert metadata.is_stand_in({metadata.ENDPOINT_VARIABLE: "http://localhost:1338"})
    assert metadata.is_stand_in({metadata.ENDPOINT_VARIABLE: "http://[::1]:1338"})
    assert not metadata.is_stand_in({})
    assert not metadata.is_stand_in({metadata.ENDPOINT_VARIABLE: "http://[fd00:ec2::254]"})


def test_a_real_host_s_tool_does_not_speak_for_a_made_up_root(tmp_path: Path) -> None:
    outside = tmp_path / "bin" / "neuron-ls"
    outside.parent.mkdir()
    outside.write_text('#!/bin/sh\necho \'[{"neuron_device": 0, "nc_count": 64}]\'\n')
    outside.chmod(0o755)
    with FakeBox("inf2.xlarge", tmp_path / "box", tools=False) as box:
        found = look(box, PATH=str(outside.parent))
    assert found.tool is None
    assert found.cores == 2  # by the driver's files


def test_how_an_instance_was_bought_chooses_its_price(tmp_path: Path) -> None:
    settings = config.load(tmp_path, environ={})
    bought = {"region": "sa-east-1", "life_cycle": "capacity-block"}
    with FakeBox("trn2.3xlarge", tmp_path / "block", **bought) as box:  # type: ignore[arg-type]
        facts = describe(backend("trn2", box), {}, settings, {}, environ={}).facts
    assert (facts["backend.price_block_usd"], facts["backend.price_usd_per_hour"]) == (53.64, 2.235)
    with FakeBox("trn2.3xlarge", tmp_path / "spot", life_cycle="spot") as box:
        facts = describe(backend("trn2", box), {}, settings, {}, environ={}).facts
    assert "no published spot price of trn2.3xlarge in us-west-2" in str(facts["backend.price_missing"])
    assert "backend.price_usd_per_hour" not in facts


# -- precedence and contradictions -------------------------------------------------------------------------------------


def test_sources_of_the_instance_type_in_order(tmp_path: Path) -> None:
    product = "sys/devices/virtual/dmi/id/product_name"
    with FakeBox("trn2.3xlarge", tmp_path / "box") as box:
        assert look(box).instance_source == "neuron-ls"
        for device in (devices := box.devices):
            del device["instance_type"]
        box.neuron_ls(devices=devices)
        assert look(box).instance_source == "the firmware"
        box.write(product, "HVM domU\n")
        assert look(box).instance_source == "the metadata service"
        box.imds.fault = "not_found"
        found = look(box, NEURONBENCH_INSTANCE_TYPE="trn2.48xlarge")
        assert (found.instance_type, found.instance_source) == ("trn2.48xlarge", "NEURONBENCH_INSTANCE_TYPE")
        found = look(box)
        assert (found.instance_type, found.family, found.core_version) == ("", "trn2", "v3")


def test_sources_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    with FakeBox("trn1.2xlarge", tmp_path / "box") as box:
        box.imds.values["instance-type"] = "trn1.32xlarge"
        found = look(box)
        assert found.instance_type == "trn1.2xlarge"
        assert "the firmware says trn1.2xlarge, but the metadata service says trn1.32xlarge" in found.contradictions
        assert "trn1.32xlarge" in str(backend("trn1", box).facts()["neuron.contradictions"])
        box.write("sys/devices/virtual/neuron_device/neuron0/info/architecture/instance_type", "Inf2\n")
        assert any("the driver's devices are inf2" in text for text in look(box).contradictions)


def test_devices_that_are_missing_are_named(tmp_path: Path) -> None:
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box:
        box.remove("dev/neuron5")
        box.neuron_ls(devices=box.devices[:4])
        found = look(box)
    assert found.cores == 8
    assert "5 of the 6 devices of inf2.24xlarge are here" in found.contradictions
    assert "neuron-ls lists 4 devices, but there are 5 nodes /dev/neuron*" in found.contradictions


def test_memory_that_is_not_the_instance_s_is_named(tmp_path: Path) -> None:
    with FakeBox("trn2.3xlarge", tmp_path / "box") as box:
        (device,) = box.devices
        box.neuron_ls(devices=[{**device, "memory_size": 512 * 2**30}])
        found = look(box)
    assert found.contradictions == ("device 0 has 512 GiB by neuron-ls, one of a trn2.3xlarge has 96",)


@pytest.mark.parametrize(
    ("shape", "shown", "variables", "cores", "group", "said"),
    [
        ("trn2.3xlarge", 8, {}, 8, 1, ""),
        ("trn2.3xlarge", 4, {}, 4, 2, ""),
        ("trn2.3xlarge", 8, {"NEURON_LOGICAL_NC_CONFIG": "2"}, 4, 2, "is 2, but neuron-ls shows 1 cores a group"),
        ("trn2.3xlarge", 4, {"NEURON_LOGICAL_NC_CONFIG": "1"}, 8, 1, "is 1, but neuron-ls shows 2 cores a group"),
        ("inf2.xlarge", 4, {}, 4, 1, "device 0 has 4 cores of 1, one of a inf2.xlarge has 2"),
        ("trn2.3xlarge", 3, {}, 3, 2, "device 0 has 3 cores of 2, one of a trn2.3xlarge has 8"),
    ],
)
def test_a_tool_that_does_not_say_the_grouping_is_read_by_its_number_of_cores(
    shape: str, shown: int, variables: dict[str, str], cores: int, group: int, said: str, tmp_path: Path
) -> None:
    with FakeBox(shape, tmp_path / "box") as box:
        (device,) = box.devices
        device.pop("logical_neuroncore_config", None)
        box.neuron_ls(devices=[{**device, "nc_count": shown, "neuroncore_ids": list(range(shown))}])
        found = look(box, **variables)
    assert (found.cores, found.logical_core_config, found.problem) == (cores, group, "")
    assert said in "; ".join(found.contradictions)
    assert bool(found.contradictions) == bool(said)


# -- grouping and visible cores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "group", "variables", "cores", "config_", "said"),
    [
        ("trn2.3xlarge", None, {}, 4, 2, ""),
        ("trn2.3xlarge", 1, {}, 8, 1, ""),
        ("trn2.48xlarge", 1, {}, 128, 1, ""),
        ("trn2.3xlarge", None, {"NEURON_LOGICAL_NC_CONFIG": "1"}, 8, 1, "NEURON_LOGICAL_NC_CONFIG is 1, but neuron-ls"),
        ("trn2.3xlarge", None, {"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 8, 1, "NEURON_RT_VIRTUAL_CORE_SIZE is 1, but"),
        (
            "trn2.3xlarge", None, {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 4, 2,
            "NEURON_LOGICAL_NC_CONFIG is 2; NEURON_RT_VIRTUAL_CORE_SIZE is 1",
        ),
        ("inf2.xlarge", None, {"NEURON_LOGICAL_NC_CONFIG": "1"}, 2, 1, ""),
    ],
)  # fmt: skip
def test_how_cores_are_grouped(
    shape: str, group: int | None, variables: dict[str, str], cores: int, config_: int, said: str, tmp_path: Path
) -> None:
    with FakeBox(shape, tmp_path / "box", logical_core_config=group) as box:
        found = look(box, **variables)
    assert (found.cores, found.logical_core_config, found.problem) == (cores, config_, "")
    assert found.core_ids == tuple(range(cores))
    assert said in "; ".join(found.contradictions)
    assert bool(found.contradictions) == bool(said)


@pytest.mark.parametrize(
    ("shape", "variables", "message"),
    [
        ("inf2.xlarge", {"NEURON_LOGICAL_NC_CONFIG": "2"}, "NEURON_LOGICAL_NC_CONFIG=2: expected 1 on inf2.xlarge"),
        ("trn2.3xlarge", {"NEURON_LOGICAL_NC_CONFIG": "3"}, "expected 2 or 1 on trn2.3xlarge"),
        ("inf2.xlarge", {"NEURON_RT_VISIBLE_CORES": "0-5"}, "this host has the cores 0-1, not 2-5"),
        ("inf2.xlarge", {"NEURON_RT_VISIBLE_CORES": "zero"}, "expected ids and ranges such as 0-3,5, found 'zero'"),
        ("inf2.xlarge", {"NEURON_RT_VISIBLE_CORES": "1-0"}, "expected a range from low to high"),
        ("inf2.xlarge", {"NEURON_VISIBLE_DEVICES": "0,0"}, "found 0 more than once"),
        ("inf2.xlarge", {"NEURON_RT_VISIBLE_CORES": "0-99999"}, "expected ids of cores, found 99999"),
        ("inf2.xlarge", {"NEURON_RT_NUM_CORES": "3"}, "NEURON_RT_NUM_CORES=3: this host has 2 cores"),
        ("inf2.xlarge", {"NEURON_RT_NUM_CORES": "all"}, "NEURON_RT_NUM_CORES: expected a whole number, found 'all'"),
    ],
)
def test_variables_that_the_hardware_cannot_follow(
    shape: str, variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    with FakeBox(shape, tmp_path / "box") as box:
        probe = backend(shape[:4], box, **variables).probe()
    assert not probe.available
    assert message in probe.reason


@pytest.mark.parametrize(
    ("variables", "visible", "source"),
    [
        ({"NEURON_RT_VISIBLE_CORES": "0-3,5"}, (0, 1, 2, 3, 5), "NEURON_RT_VISIBLE_CORES"),
        ({"NEURON_VISIBLE_DEVICES": "4"}, (4,), "NEURON_VISIBLE_DEVICES"),
        ({"NEURON_RT_NUM_CORES": "3"}, (0, 1, 2), "NEURON_RT_NUM_CORES"),
        ({"NEURON_RT_NUM_CORES": "0"}, tuple(range(12)), ""),
        ({"NEURON_RT_VISIBLE_CORES": "2-3", "NEURON_RT_NUM_CORES": "1"}, (2, 3), "NEURON_RT_VISIBLE_CORES"),
    ],
)
def test_cores_that_may_be_used(
    variables: dict[str, str], visible: tuple[int, ...], source: str, tmp_path: Path
) -> None:
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box:
        found = look(box, **variables)
        assert backend("inf2", box, **variables).probe().cores == len(visible)
    assert (found.visible, found.visible_source) == (visible, source)
    assert len(found.core_ids) == 12


def test_lists_of_ids_go_both_ways() -> None:
    assert ids.parse("0-3,5") == (0, 1, 2, 3, 5)
    assert ids.show([5, 0, 1, 2, 3]) == "0-3,5"
    assert ids.show([]) == ""
    assert ids.contiguous((2, 3, 4))
    assert not ids.contiguous((3, 2))
    assert not ids.contiguous(())


# -- the metadata service ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("timeout", "no answer within"),
        ("hop_limit", "the hop limit of the instance may be 1"),
        ("unauthorized", "refused instance-type (status 401)"),
        ("not_found", "refused instance-type (status 404)"),
        ("disabled", "switched off for this instance (status 403)"),
    ],
)
def test_a_metadata_service_that_does_not_answer_costs_facts_and_nothing_else(
    fault: Any, problem: str, tmp_path: Path
) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        box.imds.fault = fault
        mine = backend("inf2", box)
        probe = mine.probe()
    assert probe.available
    facts = dict(mine.facts())
    assert (facts["region"], facts["availability_zone"], facts["life_cycle"]) == (None, None, None)
    assert problem in str(facts["neuron.metadata_problem"])
    assert facts["instance_type"] == "inf2.xlarge"  # by the firmware


def test_a_service_that_is_not_there_or_not_to_be_asked(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        url = box.imds.url
        assert "is true" in metadata.ask({metadata.ENDPOINT_VARIABLE: url, "AWS_EC2_METADATA_DISABLED": "true"}).problem
        assert box.imds.requests == []
    assert "cannot be reached" in metadata.ask({metadata.ENDPOINT_VARIABLE: url}).problem
    assert "expected http://HOST" in metadata.ask({metadata.ENDPOINT_VARIABLE: "ftp://x"}).problem


def test_it_is_not_asked_about_a_host_without_devices(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        box.remove("dev/neuron0")
        look(box)
        assert box.imds.requests == []


def test_ids_of_the_account_s_things_are_not_asked_for_nor_kept(tmp_path: Path) -> None:
    with FakeBox("trn2.3xlarge", tmp_path / "box") as box:
        facts = backend("trn2", box).facts()
        asked = {path for _, path, _ in box.imds.requests}
    assert not any(word in path for path in asked for word in ("instance-id", "ami-id", "identity", "iam", "network"))
    text = json.dumps(dict(facts))
    assert "i-0123456789abcdef0" not in text
    assert "ami-" not in text
    assert "face000000000000" not in text  # serial numbers of devices


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "why"),
    [("no_device", "failed to discover Neuron devices"), ("crash", "ended with status 2: panic"),
     ("garbage", "expected JSON"), ("truncated", "expected JSON")],
)  # fmt: skip
def test_a_tool_that_fails_is_the_reason(fault: Any, why: str, tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        box.neuron_ls(fault)
        probe = backend("inf2", box).probe()
    assert not probe.available
    assert why in probe.reason


def test_without_the_tool_grouped_cores_are_counted_from_the_driver_s(tmp_path: Path) -> None:
    with FakeBox("trn2.3xlarge", tmp_path / "box", tools=False) as box:
        assert look(box).visible == (0, 1, 2, 3)
        assert look(box, NEURON_LOGICAL_NC_CONFIG="1").cores == 8


def test_the_runtime_is_that_of_the_system_s_packages(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        assert backend("inf2", box).facts()["runtime"] is None
        box.write(
            "var/lib/dpkg/status",
            "Package: aws-neuronx-tools\nVersion: 2.28.23.0\n\nPackage: aws-neuronx-runtime-lib\nStatus: install ok\n"
            "Version: 2.30.51.0-f2a8e6b\n",
        )
        assert backend("inf2", box).facts()["runtime"] == "2.30.51.0-f2a8e6b"


def test_doctor_shows_the_host_and_never_a_token(tmp_path: Path) -> None:
    token = "hf_" + "Q" * 30
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        box.hold([0], pid=1, command=f"python other.py --token {token}")
        (tmp_path / "neuronbench.toml").write_text("")
        program = Path(sys.executable).with_name("neuronbench")
        done = subprocess.run(
            [program, "doctor"], env=box.environ(HF_TOKEN=token, COLUMNS="200"), cwd=tmp_path, capture_output=True,
            text=True, timeout=200,
        )  # fmt: skip
    assert "inf2.xlarge (by the firmware), us-west-2" in done.stdout, done.stdout + done.stderr
    assert "made up: what is measured here is recorded as simulated" in done.stdout
    assert "pid 1 (python other.py" in done.stdout
    assert "0.7582 USD/h on_demand in us-west-2" in done.stdout
    assert "no neuron-monitor on PATH or in /opt/aws/neuron/bin: records have no utilisation" in done.stdout
    assert "no neuron-explorer or neuron-profile" in done.stdout
    assert "no neuron-ls" not in done.stdout
    assert "set (HF_TOKEN)" in done.stdout
    assert token not in done.stdout + done.stderr
