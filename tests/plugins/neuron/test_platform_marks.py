"""What a record of a Neuron host says beyond its numbers: strangers, sources that disagree, rules set aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuronbench.model import Environment, FrozenMap, Point, Record, ResourceRef, Validity
from neuronbench.testing.neuron import FakeBox, neuron_monitor

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

import neuronbench_neuron
from neuronbench_neuron.hardware import look
from neuronbench_neuron.marks import mark


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


def test_a_host_without_a_monitor_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else tells apart a device that did nothing wrong from one that nobody looked at."""
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        monkeypatch.setenv("PATH", str(box.bin))
        host = look(box.root, environ=box.environ())

        def notes(**fields: Any) -> list[str]:
            params = FrozenMap(fields.pop("params", {}))
            record = Record(
                session="s", environment=Environment(facts=FrozenMap()),
                point=Point(benchmark="b", lane="l", backend="inf2", params=params, id="p"),
                resource=ResourceRef(id="r", kind="endpoint", spec=FrozenMap(), facts=FrozenMap(fields)),
            )  # fmt: skip
            mark(record, host)
            return list(record.notes)

        (note,) = notes()
        assert note.startswith("neuron-monitor is not on this host: nothing is known")
        assert notes(external=True) == notes(params={"monitor": False}) == []
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "neuron-monitor").write_text("#!/bin/sh\n", encoding="utf-8")
        (elsewhere / "neuron-monitor").chmod(0o755)
        monkeypatch.setenv("PATH", f"{elsewhere}:{box.bin}")
        assert notes() == [note]  # a tool of another host looks at other devices
        neuron_monitor.install(box)
        assert notes() == []
