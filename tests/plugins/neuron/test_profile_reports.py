"""Summaries of profilers in both forms, spoilt in every way, and the tools that make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuronbench_neuron.profile import record as records
from neuronbench_neuron.profile import tools
from neuronbench_neuron.profile.report import ProfileError, parse

from neuronbench import config
from neuronbench.model import FrozenMap, Point, Record
from neuronbench.plugins import Plugins
from neuronbench.protocols import PointFailure
from neuronbench.session import Session
from neuronbench.testing.neuron import FakeBox
from neuronbench.testing.neuron.neuron_profiler import install, summary

TABLE: dict[str, Any] = summary(0.05482, odd=False)


@pytest.mark.parametrize(
    "document", [{"profile_0": TABLE}, {"anything": TABLE, "b": 1}, {"summary": [TABLE], "instruction": []}]
)
def test_both_forms_are_the_same_table(document: dict[str, Any]) -> None:
    found = parse(json.dumps(document))
    assert found.metrics["mfu_estimated_percent"] == 0.1045  # a fraction, whatever its name says
    assert found.metrics["total_time"] == 0.05482
    assert found.versions["profiler_version"] == "2.29.10.0"
    assert found.throttled is True
    assert "instance_type" not in found.metrics
    assert found.odd == ()


def test_a_share_above_all_is_null_and_named() -> None:
    found = parse(json.dumps({"profile_0": {**TABLE, "throttle_activity_0_active_time_nc0_percent": 253.0}}))
    assert found.metrics["throttle_activity_0_active_time_nc0_percent"] is None
    assert found.odd == ("throttle_activity_0_active_time_nc0_percent = 25300 %",)
    assert found.metrics["mbu_estimated_percent"] == 0.3199


@pytest.mark.parametrize(
    ("limits", "throttled"), [({"a": 1.0}, False), ({"a": 1.0, "b": 0.9}, True), ({"a": None}, None), ({}, None)]
)
def test_throttling_is_said_or_unknown(limits: dict[str, float | None], throttled: bool | None) -> None:
    table = {"total_time": 1.0, **{f"throttle_avg_util_limit_{name}_percent": value for name, value in limits.items()}}
    assert parse(json.dumps({"p": table})).throttled is throttled


@pytest.mark.parametrize(
    "text", ["", "total_time: 3", "[]", "{}", '{"summary": []}', '{"p": {}}', '{"p": 3}', "null", "[" * 50_000]
)
def test_what_is_no_summary(text: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(text)
    assert caught.value.kind == "profile_unreadable"


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True, allow_infinity=True), st.text(max_size=6),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@given(name=st.sampled_from(sorted(TABLE)), value=ODD)
def test_a_spoilt_metric_is_null_or_what_it_says(name: str, value: Any) -> None:
    found = parse(json.dumps({"profile_0": {**TABLE, name: value}}))
    got = found.metrics.get(name)
    assert got is None or got == value
    if name.endswith("_percent") and got is not None:
        assert -1e-6 <= got <= 1 + 1e-6
    others = {key: number for key, number in found.metrics.items() if key != name}
    assert others == {key: number for key, number in parse(json.dumps({"p": TABLE})).metrics.items() if key != name}


# -- tools


def captured(folder: Path, version: int = 3) -> Path:
    """What the runtime leaves of one trace."""
    folder.mkdir(parents=True)
    (folder / "neff_abc.neff").write_bytes(b"NEFF")
    told = json.dumps({"total_time": 0.02, "ntff_version": version})
    (folder / "abc_instid_0_vnc_0.ntff").write_text(told, encoding="utf-8")
    (folder / "other_instid_0_vnc_0.ntff").write_text(told, encoding="utf-8")  # its NEFF is not there
    return folder


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBox:
    made = FakeBox("trn1.2xlarge", tmp_path / "box")
    monkeypatch.setenv("PATH", f"{made.bin}:/bin:/usr/bin")
    return made


def a_record() -> Record:
    point = Point(benchmark="b.py::f", lane="lora_sft", backend="trn1", params=FrozenMap(), id="p")
    return Record(session="s", point=point, repeat=1)


@pytest.mark.parametrize("name", tools.NAMES)
@pytest.mark.parametrize("form", ["summary", "json"])
def test_a_profile_becomes_part_of_the_record(tmp_path: Path, box: FakeBox, name: str, form: str) -> None:
    install(box, name, form=form, odd=True)
    record, into = a_record(), tmp_path / "receipt"
    into.mkdir()
    records.leave(record, captured(tmp_path / "captured"), into, box.root)
    told = record.workload["profile"]
    assert (told["tool"], told["version"]) == (name, "2.29.10.0%kaena-tools")
    (trace,) = told["traces"]
    assert trace["metrics"]["mfu_estimated_percent"] == 0.1045
    assert trace["metrics"]["throttle_activity_0_active_time_nc0_percent"] is None
    assert trace["versions"]["runtime_version"] == "2.29.1"
    assert sorted(path.name for path in (into / "profile").iterdir()) == [
        "abc_instid_0_vnc_0.json", "abc_instid_0_vnc_0.ntff", "neff_abc.neff"
    ]  # fmt: skip
    gates = {gate.id: gate for gate in record.gates}
    assert (gates["profiled"].passed, gates["profiled"].severity) == (False, "invalid")
    assert gates["profile_plausible"].passed is False
    assert "25300 %" in gates["profile_plausible"].message


@pytest.mark.parametrize(
    ("fault", "version", "kind", "said"),
    [
        ("", 4, "profile_version", "NTFF version 4 is not supported"),
        ("crash", 3, "profile_failed", "ended with status 1: level=fatal"),
        ("garbage", 3, "profile_unreadable", "expected JSON"),
    ],
)
def test_a_profile_that_cannot_be_read_is_a_clear_failure(
    tmp_path: Path, box: FakeBox, fault: str, version: int, kind: str, said: str
) -> None:
    install(box, fault=fault)
    record, into = a_record(), tmp_path / "receipt"
    into.mkdir()
    with pytest.raises(PointFailure, match=said) as caught:
        records.leave(record, captured(tmp_path / "captured", version), into, box.root)
    assert caught.value.failure.kind == kind
    if kind == "profile_version":
        assert "upgrade aws-neuronx-tools" in caught.value.failure.remedy
    assert [gate.passed for gate in record.gates] == [False]  # its times are no result all the same


def test_without_a_tool_or_a_trace(tmp_path: Path, box: FakeBox) -> None:
    with pytest.raises(PointFailure, match="neither neuron-explorer nor neuron-profile"):
        records.leave(a_record(), captured(tmp_path / "captured"), tmp_path, box.root)
    install(box)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(PointFailure, match="captured no trace"):
        records.leave(a_record(), tmp_path / "nothing", tmp_path, box.root)


def test_what_nothing_can_profile_is_skipped_and_not_measured(tmp_path: Path) -> None:
    session = Session(config.load(tmp_path), Plugins(entry_points=False))
    point = Point(benchmark="b.py::f", lane="lora_sft", backend="cpu", params=FrozenMap(profile=True), id="p")
    verdict = session.unsupported(point, ["trainer"])
    assert verdict is not None
    assert verdict.reason == "profile: nothing captures profiles on cpu; leave --nb-profile out"


def test_the_newer_tool_is_taken(box: FakeBox) -> None:
    install(box, "neuron-profile")
    assert tools.find(box.root).name == "neuron-profile"
    install(box, "neuron-explorer")
    assert tools.find(box.root).name == "neuron-explorer"
