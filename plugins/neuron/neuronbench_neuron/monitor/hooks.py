"""Which samplers watch a point on Neuron, and over which cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuronbench import Point, Resource, SamplerSpec
from neuronbench.telemetry.names import ACCELERATOR, ACCELERATOR_POWER
from neuronbench_neuron.hardware import Hardware
from neuronbench_neuron.tools import find_tool

TOOL: Final = "neuron-monitor"
READ_S: Final = 0.25
"""How often the sampler looks whether a report has come; what a report is of is the tool's own period."""
POWER_S: Final = 1.0
"""Files of the driver: read often enough to show that they were; it makes a new mean once a minute."""


def samplers(point: Point, resource: Resource, host: Hardware) -> list[SamplerSpec]:
    """`accelerator` where the tool is, `accelerator_power` where there is a driver.

    Parameters of a point: `monitor_period_s` (a fixed period of the tool; by default it follows the executions),
    `monitor` (false: none of it).
    """
    if not host.nodes or point.get("monitor") is False:
        return []
    taken = held(resource)
    found = []
    tool = find_tool(TOOL, host.root)
    if tool is not None:
        period_s = point.get("monitor_period_s")
        options: dict[str, Any] = {"tool": str(tool), "cores": taken}
        if period_s is not None:
            options.update(period_s=float(period_s), adapt=False)
        found.append(
            SamplerSpec(
                name=ACCELERATOR, target="neuronbench_neuron.monitor.sampler:NeuronMonitor", options=options,
                period_s=READ_S, live={"utilization_percent": "cores"},
            )
        )  # fmt: skip
    devices = sorted({device.index for device in host.devices if set(device.core_ids) & set(taken or device.core_ids)})
    found.append(
        SamplerSpec(
            name=ACCELERATOR_POWER, target="neuronbench_neuron.monitor.sysfs:Sysfs",
            options={"devices": devices or None, "root": str(host.root)}, period_s=POWER_S,
        )
    )  # fmt: skip
    return found


def held(resource: Any) -> list[int] | None:
    """Cores that a resource has, by their ids; None where it does not say: then all that are in use count."""
    facts = getattr(resource, "facts", None) or {}
    for source in (resource, facts, facts.get("neuron")):
        for name in ("core_ids", "cores"):
            value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
            if isinstance(value, Sequence) and not isinstance(value, str) and all(type(core) is int for core in value):
                return [int(core) for core in value]
    return None
