"""The backends `trn1`, `trn2` and `inf2`: one class, told apart by the name they are registered under."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuronbench import BackendInfo, Probe, Stack
from neuronbench.failures import Rule
from neuronbench.model import FrozenMap, Json
from neuronbench.protocols import Cache, Check
from neuronbench_neuron import checks, compat, failures, hardware, stacks


class NeuronBackend:
    """A family of Neuron instances. `root` replaces `/` when the host is looked at, for tests.

    So does the variable NEURONBENCH_NEURON_ROOT. Either way the host counts as made up, and records as simulated.
    """

    profilers = ("neuron-explorer", "neuron-profile")
    """Tools that make something of what the runtime captures (`--nb-profile`)."""

    def __init__(
        self,
        info: BackendInfo,
        *,
        root: Path | None = None,
        search_path: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.info = info
        self._environ = os.environ if environ is None else environ
        self._root = root or Path(self._environ.get(hardware.ROOT_VARIABLE) or "/").absolute()
        self._search_path = search_path
        self._found: hardware.Hardware | None = None

    @property
    def found(self) -> hardware.Hardware:
        """What is on this host; looked at once."""
        if self._found is None:
            if self._root == Path("/") and self._environ is os.environ and self._search_path is None:
                self._found = hardware.look_here(tuple(sorted(self._environ.items())))
            else:
                self._found = hardware.look(self._root, search_path=self._search_path, environ=self._environ)
        return self._found

    def probe(self) -> Probe:
        """Whether this host is an instance of the family whose devices work; the reason names what is missing."""
        found = self.found
        facts = FrozenMap(self.facts())
        reason = self._missing(found)
        if reason:
            if self._environ.get(hardware.ROOT_VARIABLE):
                reason += f" (below {self._root}, because {hardware.ROOT_VARIABLE} is set)"
            return Probe(available=False, reason=reason, facts=facts)
        return Probe(available=True, cores=found.cores, facts=facts)

    def _missing(self, found: hardware.Hardware) -> str:
        if not found.root.is_dir():
            return f"{found.root} is no folder to look at in place of /"
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

        def fits(packages: Mapping[str, str], python: str) -> bool:
            stack = {"packages": packages, "python": python}
            use: dict[str, Any] = {**compat.host_of(self.found), **stack}
            return compat.refusal(compat.Use(purpose=compat.PURPOSES[kind], backend=self.info.name, **use)) is None

        return stacks.choose(kind, settings, self.found.venvs, made_up_host=self.found.simulated, fits=fits)

    def facts(self) -> Mapping[str, Json]:
        """Instance, region, driver and devices; null where the host does not say.

        Not among them are ids: of the instance, of its image, of devices.
        """
        found = self.found
        memory = [device.memory_bytes for device in found.devices if device.memory_bytes is not None]
        processes = {process.pid for device in found.devices for process in device.processes}
        facts: dict[str, Json] = {
            "instance_type": found.instance_type or None,
            "instance_source": found.instance_source or None,
            "region": found.metadata.region or None,
            "availability_zone": found.metadata.availability_zone or None,
            "life_cycle": found.metadata.life_cycle or None,
            "driver": found.driver_version or None,
            "runtime": found.runtime_version or None,
            "cores": found.cores or None,
            "neuron.family": found.family or None,
            "neuron.core_version": found.core_version or None,
            "neuron.devices": len(found.devices) or None,
            "neuron.cores": len(found.core_ids) or None,
            "neuron.logical_core_config": found.logical_core_config if found.devices else None,
            "neuron.visible_cores_by": found.visible_source or None,
            "neuron.device_memory_gib": round(sum(memory) / 2**30, 1) if memory else None,
            "neuron.processes_at_start": len(processes) if found.devices else None,
            "neuron.contradictions": "; ".join(found.contradictions) or None,
            "neuron.metadata_problem": found.metadata.problem or None,
        }
        if found.simulated:
            facts["simulated"] = True
        return facts

    def checks(self, settings: Any) -> Iterator[Check]:
        """What `neuronbench doctor` shows of this host beyond what it has."""
        yield from checks.of_host(self.info.name, self.found, self.facts(), settings)
        for kind in stacks.NEEDS:
            with contextlib.suppress(LookupError):  # doctor has said so already, where anything needs it
                stack = self.stack(kind, settings)
                yield from checks.of_stack(self.info.name, self.found, stack)

    def caches(self, settings: Any) -> Sequence[Cache]:
        """The compilers' own caches, and traces that a killed session has left, for `neuronbench cache`."""
        from neuronbench_neuron import caches
        from neuronbench_neuron.profile.leftovers import ProfileLeftovers

        left = ProfileLeftovers(settings.cache_dir)
        return [*caches.of(settings, self.found, self._environ), *([left] if left.entries() else [])]

    def artifact_scopes(self, settings: Any) -> Sequence[str]:
        """Of which scopes artifacts are of use here, for `neuronbench cache pull`."""
        from neuronbench_neuron import caches

        return caches.fits(settings, self.found)

    def failure_rules(self) -> Sequence[Rule]:
        """Signatures of the Neuron compiler, runtime, caches, tools and of what serves on them."""
        return failures.rules()


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
