"""The backends `trn1`, `trn2` and `inf2`: one class, told apart by the name they are registered under."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuronbench import BackendInfo, Probe, Stack
from neuronbench.model import FrozenMap, Json
from neuronbench.stacks import Candidate, Need, find
from neuronbench_neuron import hardware

_NEEDS = {
    "serving": (Need(module="vllm"), Need(module="torch_neuronx", distributions=("torch-neuronx",))),
    "compile": (Need(module="torch_neuronx", distributions=("torch-neuronx",)),),
    "train": (Need(module="torch_neuronx", distributions=("torch-neuronx",)),),
}
_WORTH_RECORDING = (
    "torch", "torch-neuronx", "neuronx-cc", "libneuronxla", "neuronx-distributed", "neuronx-distributed-inference",
    "optimum-neuron", "transformers", "vllm", "vllm-neuron",
)  # fmt: skip


class NeuronBackend:
    """A family of Neuron instances. `root` replaces `/` when the host is looked at, for tests."""

    def __init__(
        self,
        info: BackendInfo,
        *,
        root: Path = Path("/"),
        search_path: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.info = info
        self._root = root
        self._search_path = search_path
        self._environ = os.environ if environ is None else environ
        self._found: hardware.Hardware | None = None

    @property
    def found(self) -> hardware.Hardware:
        """What is on this host; looked at once."""
        if self._found is None:
            told = self._environ.get(hardware.INSTANCE_VARIABLE, "")
            self._found = hardware.look(self._root, search_path=self._search_path, told=told)
        return self._found

    def probe(self) -> Probe:
        """Whether this host is an instance of the family whose devices work; the reason names what is missing."""
        found = self.found
        reason = self._missing(found)
        if reason:
            return Probe(available=False, reason=reason, facts=FrozenMap(self.facts()))
        return Probe(available=True, cores=found.cores, facts=FrozenMap(self.facts()))

    def _missing(self, found: hardware.Hardware) -> str:
        what = _article(found.product) if found.product else f"without a product name ({found.processor})"
        host = f"this host is {what}"
        if not found.nodes:
            if found.family and found.family != self.info.name:
                return f"no Neuron device (/dev/neuron0 absent), and {host}"
            if not found.family:
                return f"no Neuron device (/dev/neuron0 absent); {host}"
            if found.driver_listed:
                return (
                    f"/dev/neuron0 is absent although the Neuron driver is loaded and {host}: "
                    "in a container, pass the devices in (--device=/dev/neuron0)"
                )
            return (
                f"/dev/neuron0 is absent although {host}: the Neuron driver is not loaded; "
                "install aws-neuronx-dkms, or: sudo modprobe neuron"
            )
        if found.family and found.family != self.info.name:
            return f"the Neuron devices of this host are {found.family} ({found.instance_type or 'by its driver'})"
        if found.problem:
            return f"/dev/neuron{found.nodes[0]} is there, but {found.problem}"
        if not found.family:
            return (
                f"/dev/neuron{found.nodes[0]} is there, but neither neuron-ls nor the firmware nor the driver says of "
                f"which instance type; set {hardware.INSTANCE_VARIABLE}, for example {self.info.name}.xlarge"
            )
        return ""

    def stack(self, kind: str, settings: Any) -> Stack:
        """The interpreter for `kind` (`serving`, `compile`, `train`): told, or of the images' own environments.

        Raises `LookupError` that lists where it looked.
        """
        if kind not in _NEEDS:
            raise LookupError(f"{self.info.name} has no stack for {kind!r}; it has: {', '.join(_NEEDS)}")
        return find(
            kind,
            settings,
            [Candidate(path=path, source="the environments of the Neuron image") for path in self.found.venvs],
            needs=_NEEDS[kind],
            packages=_WORTH_RECORDING,
            remedy="use an image with the Neuron SDK, whose environments are /opt/aws_neuronx_venv_*, "
            f"or name one: --nb-stack {kind}=PATH",
        )

    def facts(self) -> Mapping[str, Json]:
        """Driver, instance and devices, under `neuron.*`; null where the host does not say. No identifiers."""
        found = self.found
        memory = [device.memory_bytes for device in found.devices if device.memory_bytes is not None]
        groups = {device.logical_core_config for device in found.devices} - {None}
        return {
            "neuron.instance_type": found.instance_type or None,
            "neuron.family": found.family or None,
            "neuron.driver": found.driver_version or None,
            "neuron.devices": len(found.devices) or None,
            "neuron.cores": found.cores or None,
            "neuron.logical_core_config": next(iter(groups)) if len(groups) == 1 else None,
            "neuron.device_memory_gib": round(sum(memory) / 2**30, 1) if memory else None,
            "neuron.processes_at_start": sum(len(device.processes) for device in found.devices)
            if found.devices
            else None,
        }

    def failure_rules(self) -> Sequence[Any]:
        """None of its own yet."""
        return ()


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
