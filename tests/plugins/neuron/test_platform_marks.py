"""What a record of a Neuron host says beyond its numbers: strangers, sources that disagree, rules set aside."""

from __future__ import annotations

from typing import Any

import pytest

from neuronbench.model import Environment, FrozenMap, Point, Record, ResourceRef, Validity

neuronbench_neuron = pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")


def finished(facts: dict[str, Any], resource: dict[str, Any] | None = None, **fields: Any) -> Record:
    backend = fields.pop("backend", "inf2")
    record = Record(
        session="s", point=Point(benchmark="b", lane="serving", backend=backend, params=FrozenMap(), id="p"),
        environment=Environment(facts=FrozenMap(facts)), **fields,
    )  # fmt: skip
    if resource is not None:
        record.resource = ResourceRef(id="r", kind="endpoint", spec=FrozenMap(), facts=FrozenMap(resource))
    neuronbench_neuron.finish_record(record)
    return record


def test_strangers_on_the_devices_make_a_record_provisional() -> None:
    record = finished({"neuron.processes_at_start": 2}, {})
    (gate,) = record.gates
    assert (gate.id, gate.passed, gate.observed, gate.severity) == ("device_shared", False, 2, "provisional")
    assert record.validity is Validity.PROVISIONAL
    assert finished({"neuron.processes_at_start": 0}, {}).gates[0].passed is True


@pytest.mark.parametrize(
    ("facts", "resource", "fields"),
    [
        ({"neuron.processes_at_start": None}, {}, {}),  # nobody knows
        ({"neuron.processes_at_start": 2}, {"external": True}, {}),  # not on this host
        ({"neuron.processes_at_start": 2}, None, {}),  # of the host, not of its devices
        ({"neuron.processes_at_start": 2}, {}, {"kind": "boot"}),
        ({"neuron.processes_at_start": 2}, {}, {"backend": "cpu"}),
    ],
)
def test_where_it_does_not_matter_there_is_no_gate(
    facts: dict[str, Any], resource: dict[str, Any] | None, fields: dict[str, Any]
) -> None:
    record = finished(facts, resource, **fields)
    assert record.gates == []
    assert record.notes == []


def test_what_is_not_certain_is_noted() -> None:
    record = finished(
        {"neuron.contradictions": "the firmware says a, but neuron-ls says b"},
        {"compat.warning": "unlisted combination: x", "compat.set_aside": "rule-1 (VARIABLE)"},
    )
    assert record.notes == [
        "sources disagree about this host: the firmware says a, but neuron-ls says b",
        "unlisted combination: x",
        "rules were set aside: rule-1 (VARIABLE)",
    ]
