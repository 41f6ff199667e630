"""Answers of `neuron-ls -j`: every known sample, and any mutation of one, is read or refused; none is guessed at."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench.testing.neuron import SHAPES, shape_of

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import neuron_ls

OWN = sorted((Path(__file__).parents[2] / "data" / "neuron_ls").glob("*.json"))
SHARED = sorted(
    Path(os.environ.get("NEURONBENCH_SHARED", "/nonexistent"), "reference/samples").glob("neuron_ls_*.json")
)
DOCUMENTS = [json.loads(path.read_text(encoding="utf-8")) for path in (*OWN, *SHARED)] + [
    [shape_of(name).device(index, says_instance=True) for index in range(shape_of(name).instance.devices)]
    for name in SHAPES
]


@pytest.mark.parametrize("path", [*OWN, *SHARED], ids=lambda path: path.name)
def test_every_sample_is_read(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    devices = neuron_ls.parse(text)
    for device, entry in zip(devices, json.loads(text), strict=True):
        assert device.core_ids == tuple(entry["neuroncore_ids"])
        assert device.memory_bytes == entry["memory_size"]
        assert device.logical_core_config == entry.get("logical_neuroncore_config")
        assert device.connected_to == tuple(entry["connected_to"] or ())
        assert [process.pid for process in device.processes] == [p["pid"] for p in entry["neuron_processes"]]


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.lists(st.integers()),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), st.just("12"), st.just([None]), st.just({}),
).map(copy.deepcopy)  # fmt: skip
"""Each drawn afresh: what is drawn is changed, and one list for all examples would end up within itself."""


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_mutated_sample_is_an_error_or_null_never_a_crash_or_a_zero(data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    entry = document[data.draw(st.integers(0, len(document) - 1))]
    keys = st.sampled_from([*entry, "neuron_processes.0"])
    for _ in range(data.draw(st.integers(1, 3))):
        key, how = data.draw(keys), data.draw(st.sampled_from(["drop", "junk", "new"]))
        if key == "neuron_processes.0":
            if isinstance(entry.get("neuron_processes"), list):
                entry["neuron_processes"].insert(0, data.draw(JUNK))
        elif how == "drop":
            entry.pop(key, None)
        elif how == "junk":
            entry[key] = data.draw(JUNK)
        else:
            entry[data.draw(st.text(min_size=1, max_size=6))] = data.draw(JUNK)
    read(json.dumps(document))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_truncated_sample_is_an_error(data: st.DataObject) -> None:
    text = json.dumps(data.draw(st.sampled_from(DOCUMENTS)))
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with pytest.raises(neuron_ls.NeuronLsError, match="expected JSON"):
        neuron_ls.parse(cut)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=40), JUNK.map(json.dumps), st.lists(JUNK, max_size=3).map(json.dumps)))
def test_anything_at_all_is_read_or_refused(text: str) -> None:
    read(text)


def read(text: str) -> None:
    refused = ""
    devices: list[neuron_ls.Device] = []
    try:
        devices = neuron_ls.parse(text)
    except neuron_ls.NeuronLsError as error:
        refused = str(error)
    assert bool(devices) != bool(refused)
    if refused:
        assert refused.startswith("neuron-ls -j")
        assert "\n" not in refused
    seen: list[int] = []
    for device in devices:
        assert device.cores > 0
        seen += device.core_ids
        for number in (device.memory_bytes, device.logical_core_config):
            assert number is None or number > 0  # what is not told is None, never 0
        assert all(process.pid > 0 for process in device.processes)
    assert len(seen) == len(set(seen))
    assert len({device.index for device in devices}) == len(devices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neuroncore_ids": [0, "x"]}, "neuroncore_ids: expected a list of whole numbers"),
        ({"neuroncore_ids": "0,1"}, "neuroncore_ids: expected a list of whole numbers"),
        ({"neuroncore_ids": [0, 0]}, "core 0 is listed more than once"),
        ({"nc_count": 3}, "nc_count is 3, but 2 ids are listed"),
        ({"neuroncore_ids": None, "nc_count": None}, "names no cores"),
        ({"neuroncore_ids": [], "nc_count": 0}, "names no cores"),
        ({"neuroncore_ids": None, "nc_count": 10**9}, "1000000000 cores cannot be"),
        ({"neuron_device": "first"}, "neuron_device: expected a whole number, found 'first'"),
    ],
)
def test_what_devices_and_cores_there_are_must_be_told(change: dict[str, Any], message: str) -> None:
    entry = shape_of("inf2.xlarge").device(0, says_instance=False)
    with pytest.raises(neuron_ls.NeuronLsError) as caught:
        neuron_ls.parse(json.dumps([{**entry, **change}]))
    assert message in str(caught.value)


def test_two_devices_of_one_number_are_refused() -> None:
    shape = shape_of("inf2.24xlarge")
    first, second = shape.device(0, says_instance=False), shape.device(1, says_instance=False)
    with pytest.raises(neuron_ls.NeuronLsError, match="device 0 is listed more than once"):
        neuron_ls.parse(json.dumps([first, {**second, "neuron_device": 0}]))


def test_without_ids_cores_count_on_from_device_to_device() -> None:
    devices = neuron_ls.parse('[{"neuron_device": 0, "nc_count": 2}, {"neuron_device": 1, "nc_count": 2}]')
    assert [device.core_ids for device in devices] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("memory", [None, 0, "", "much", -1, True, 3.5, [1]])
def test_memory_that_is_not_told_is_none(memory: Any) -> None:
    entry = {**shape_of("inf2.xlarge").device(0, says_instance=False), "memory_size": memory}
    assert neuron_ls.parse(json.dumps([entry]))[0].memory_bytes is None
