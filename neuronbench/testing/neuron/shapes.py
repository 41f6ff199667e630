"""What a Neuron host of an instance type looks like from inside: devices, links, cores, as files and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from neuronbench.catalog.instances import Instance, instance_of
from neuronbench.model import Json, closest

SHAPES: Final = (
    "inf2.xlarge", "inf2.8xlarge", "inf2.24xlarge", "inf2.48xlarge", "trn1.2xlarge", "trn1.32xlarge",
    "trn1n.32xlarge", "trn2.3xlarge", "trn2.48xlarge",
)  # fmt: skip
"""Instance types a box can be of."""
TORUS: Final = 16
DRIVER: Final = "2.26.5.0"
DEVICE_ARCH: Final = {"trn1": "NDv2", "inf2": "NDv3", "trn2": "NDv4"}
DEVICE_NAME: Final = {"trn1": "Trainium1", "inf2": "Inferentia2", "trn2": "Trainium2"}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An instance type and how its cores are grouped."""

    instance: Instance
    logical_core_config: int

    @property
    def cores_per_device(self) -> int:
        """As programs see them."""
        return self.instance.cores_per_device // self.logical_core_config

    @property
    def cores(self) -> int:
        """As programs see them, of all devices."""
        return self.instance.devices * self.cores_per_device

    def cores_of(self, device: int) -> list[int]:
        """Ids of the cores of a device: they count on from device to device."""
        first = device * self.cores_per_device
        return list(range(first, first + self.cores_per_device))

    def links(self, device: int) -> list[int] | None:
        """Devices it is connected to; None for one that is alone.

        Of sixteen the neighbours in a 4 × 4 torus (up, left, down, right), of fewer those beside it in a ring.
        """
        count = self.instance.devices
        if count == 1:
            return None
        if count != TORUS:
            return [(device - 1) % count, (device + 1) % count]
        row, column = divmod(device, 4)
        return [(device - 4) % 16, row * 4 + (column - 1) % 4, (device + 4) % 16, row * 4 + (column + 1) % 4]

    def device(self, index: int, *, says_instance: bool) -> dict[str, Json]:
        """The object `neuron-ls -j` prints for a device; newer tools say instance type and id in each."""
        told: dict[str, Json] = {}
        if says_instance:
            told = {"instance_type": self.instance.name, "instance_id": "i-0123456789abcdef0"}
        grouped = {"logical_neuroncore_config": self.logical_core_config} if self.instance.core_version != "v2" else {}
        half = self.instance.vcpus // 2 if self.instance.devices == TORUS else self.instance.vcpus
        return {
            **told,
            "neuron_device": index,
            "bdf": f"0000:{0x10 + index:02x}:1e.0",
            "cpu_affinity": f"0-{half - 1}",
            "numa_node": "-1" if self.instance.core_version == "v2" else "0",
            "connected_to": self.links(index),
            "nc_count": self.cores_per_device,
            **grouped,
            "memory_size": int(self.instance.memory_gib * 2**30),
            "neuroncore_ids": self.cores_of(index),
            "neuron_processes": [],
        }

    def files(self) -> Iterator[tuple[str, str]]:
        """Name relative to the root and text of each file by which the host and its driver show themselves.

        Which number of cores the driver shows where they are grouped is not documented; here it is the physical one.
        """
        family = self.instance.family
        yield "sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2\n"
        yield "sys/devices/virtual/dmi/id/product_name", f"{self.instance.name}\n"
        yield "sys/module/neuron/version", f"{DRIVER}\n"
        yield "proc/devices", "Character devices:\n  1 mem\n240 neuron\n\nBlock devices:\n259 blkext\n"
        yield "proc/cpuinfo", "processor\t: 0\nmodel name\t: Fake Processor of a Neuron host\n"
        for index in range(self.instance.devices):
            yield f"dev/neuron{index}", ""
            folder = f"sys/devices/virtual/neuron_device/neuron{index}"
            links = self.links(index)
            yield f"{folder}/core_count", f"{self.instance.cores_per_device}\n"
            yield f"{folder}/connected_devices", ", ".join(map(str, links)) + "\n" if links else "\n"
            yield f"{folder}/info/serial_number", f"{0xFACE000000000000 + index:016x}\n"
            yield f"{folder}/info/architecture/arch_type", f"{DEVICE_ARCH[family]}\n"
            yield f"{folder}/info/architecture/device_name", f"{DEVICE_NAME[family]}\n"
            yield f"{folder}/info/architecture/instance_type", f"{family.capitalize()}\n"
            yield f"{folder}/stats/power/utilization", "POWER_STATUS_VALID,1789180860,0.00,0.00,0.00\n"
            for core in range(self.instance.cores_per_device):
                yield from self._core_files(f"{folder}/neuron_core{core}")

    def _core_files(self, folder: str) -> Iterator[tuple[str, str]]:
        yield f"{folder}/info/architecture/arch_type", f"NC{self.instance.core_version}\n"
        for name in ("present", "peak", "total"):
            yield f"{folder}/stats/memory_usage/device_mem/{name}", "0\n"
        for name in ("success", "failure", "timeout", "hw_error"):
            yield f"{folder}/stats/status/{name}/total", "0\n"
        for name, value in (("inference_count", 0), ("flop_count", 0), ("reset_req_count", 1)):
            yield f"{folder}/stats/other_info/{name}/total", f"{value}\n"


def shape_of(name: str, logical_core_config: int | None = None) -> Shape:
    """The shape of an instance type; cores grouped as usual unless told otherwise.

    Raises `ValueError` for a name not in `SHAPES`, or a grouping the hardware does not offer.
    """
    instance = instance_of(name)
    if instance is None or name not in SHAPES:
        raise ValueError(f"shape: expected one of {', '.join(SHAPES)}, found {name!r}{closest(name, SHAPES)}")
    group = instance.logical_core_config if logical_core_config is None else logical_core_config
    instance.cores(group)  # raises for a grouping that is not offered
    return Shape(instance=instance, logical_core_config=group)
