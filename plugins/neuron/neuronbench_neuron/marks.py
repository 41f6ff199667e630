"""What a record of a Neuron host must not keep to itself: strangers, sources that disagree, rules set aside."""

from __future__ import annotations

from neuronbench import Gate, Record
from neuronbench_neuron.hardware import Hardware
from neuronbench_neuron.monitor.hooks import TOOL
from neuronbench_neuron.profile.record import mark as profiled
from neuronbench_neuron.tools import find_tool


def mark(record: Record, host: Hardware | None = None) -> None:
    """Add to an open record of a point: a gate when others were on the devices, notes on what is not certain.

    `host`: where it was measured; None where nobody knows it, and nothing is said of its tools then.
    """
    spec = record.resource.spec if record.resource is not None else {}
    asked = record.resource is not None and (spec.get("profile") or record.point.get("profile"))
    compiles = record.kind != "point" and record.resource is not None and record.resource.kind == "compiled_model"
    if asked and not compiles:  # a compile runs without the profiler
        profiled(record)
    if record.kind != "point":
        return
    facts = record.environment.facts
    processes = facts.get("neuron.processes_at_start")
    if record.resource is not None and isinstance(processes, int) and not record.resource.facts.get("external"):
        record.gate(
            Gate(
                id="device_shared",
                passed=processes == 0,
                observed=processes,
                limit=0,
                unit="processes",
                severity="provisional",
                message=""
                if processes == 0
                else "others were on the devices when the session began: their memory, "
                "links and power are not this run's; end them and measure again",
            )
        )
    measured = record.resource is not None and not record.resource.facts.get("external")
    watched = measured and record.point.get("monitor") is not False
    if watched and host is not None and host.nodes and find_tool(TOOL, host.root) is None:
        record.notes.append(
            f"{TOOL} is not on this host: nothing is known of the cores' utilisation, executions and memory errors; "
            "install aws-neuronx-tools"
        )
    contradictions = facts.get("neuron.contradictions")
    if contradictions:
        record.notes.append(f"sources disagree about this host: {contradictions}")
    resource = record.resource.facts if record.resource is not None else {}
    for name, text in (("compat.warning", "{}"), ("compat.set_aside", "rules were set aside: {}")):
        if resource.get(name):
            record.notes.append(text.format(resource[name]))
