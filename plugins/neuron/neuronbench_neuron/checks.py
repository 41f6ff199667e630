"""What `neuronbench doctor` says of a Neuron host beyond its devices: what lanes would stumble over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neuronbench import Stack
from neuronbench.costs import price_facts
from neuronbench.model import Json
from neuronbench.protocols import Check
from neuronbench_neuron import compat, cores, ids, stacks
from neuronbench_neuron.hardware import Hardware
from neuronbench_neuron.monitor.hooks import TOOL
from neuronbench_neuron.profile import tools as profiler
from neuronbench_neuron.tools import find_tool


def of_host(backend: str, found: Hardware, facts: Mapping[str, Json], settings: Any) -> Iterator[Check]:
    """Instance, price, contradictions, and who is on the devices."""
    where = found.metadata.region or f"region unknown: {found.metadata.problem}"
    catalogued = "" if found.instance else ", which is not in the catalogue: no peaks, no memory check"
    named = f"{found.instance_type or 'unknown type'} (by {found.instance_source or 'its driver'})"
    yield Check(
        name=f"{backend} instance",
        status="ok" if found.instance else "warn",
        found=f"{named}, {where}{catalogued}",
        remedy="" if found.instance else "set NEURONBENCH_INSTANCE_TYPE, for example inf2.xlarge",
    )
    visible = f" of {len(found.core_ids)} ({found.visible_source})" if found.visible_source else ""
    group = found.logical_core_config or 1
    count = len(found.devices)
    grouped = f", {group} physical cores each" if group > 1 else ""
    yield Check(
        name=f"{backend} cores",
        status="ok",
        found=f"{ids.show(found.visible)}{visible} on {count} device{'s' * (count != 1)}{grouped}",
    )
    for text in found.contradictions:
        yield Check(
            name=f"{backend} facts", status="warn", found=text,
            remedy="see which is right; the first is taken, and records carry the contradiction",
        )  # fmt: skip
    yield from _tools(backend, found)
    for holder in (*cores.strangers(found), *cores.holders(found)):
        yield Check(
            name=f"{backend} cores in use", status="warn", found=str(holder),
            remedy="wait for it, or end it: what is measured beside it is not what the host can do",
        )  # fmt: skip
    given = {name if "." in name else f"backend.{name}": value for name, value in facts.items()}
    price = price_facts(given, settings.price)
    missing = price.get("backend.price_missing")
    if missing:
        found_price, _, remedy = str(missing).partition("; tell yours: ")
        yield Check(name=f"{backend} price", status="info", found=f"costs will be null: {found_price}", remedy=remedy)
    elif price:
        block = price.get("backend.price_block_usd")
        of_block = f" (a block of {block} USD)" if block else ""
        yield Check(
            name=f"{backend} price",
            status="ok",
            found=f"{price['backend.price_usd_per_hour']} USD/h {price['backend.price_kind']}{of_block} in "
            f"{price['backend.price_region']}, {price['backend.price_date']}: {price['backend.price_source']}",
        )


def _tools(backend: str, found: Hardware) -> Iterator[Check]:
    """What the tools that are not installed would have told: points run without them, and say less."""
    absent = [
        ("neuron-ls", found.tool is None, "cores are counted by the driver; who is on the devices is not known"),
        (TOOL, find_tool(TOOL, found.root) is None, "records have no utilisation, executions or memory errors"),
        (" or ".join(profiler.NAMES), profiler.installed(found.root) is None, "--nb-profile is refused"),
    ]
    for name, missing, costs in absent:
        if missing:
            yield Check(
                name=f"{backend} tools", status="info" if name not in ("neuron-ls", TOOL) else "warn",
                found=f"no {name} on PATH or in /opt/aws/neuron/bin: {costs}", remedy="install aws-neuronx-tools",
            )  # fmt: skip


def of_stack(backend: str, found: Hardware, stack: Stack) -> Iterator[Check]:
    """What an environment lacks, or cannot do on this hardware."""
    if stacks.lacks_pjrt_tool(stack):
        yield Check(
            name=f"stack {stack.kind}", status="fail",
            found=f"{stack.python.parent / stacks.PJRT_TOOL} is not there: torch-xla runs it to find the device",
            remedy="install libneuronxla of the same release into that environment",
        )  # fmt: skip
    arguments: dict[str, Any] = compat.host_of(found, stack)
    use = compat.Use(purpose=compat.PURPOSES[stack.kind], backend=backend, **arguments)
    verdict = compat.refusal(use)
    if verdict is not None:
        rule, _, remedy = verdict.reason.partition(". To do: ")
        yield Check(name=f"stack {stack.kind}", status="fail", found=rule, remedy=remedy)
    said = compat.facts(use).get("compat.warning")
    if said:
        yield Check(name=f"stack {stack.kind}", status="info", found=str(said))
