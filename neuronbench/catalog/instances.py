"""Instance types with Neuron devices, and their prices: each figure with its source and date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from neuronbench.catalog import load_table
from neuronbench.catalog.accelerators import accelerator_of

PriceKind: TypeAlias = Literal["on_demand", "spot", "capacity_block", "reserved_effective"]
PRICE_KINDS: Final = ("on_demand", "spot", "capacity_block", "reserved_effective")
LIFE_CYCLES: Final[Mapping[str, PriceKind]] = {
    "on-demand": "on_demand", "spot": "spot", "capacity-block": "capacity_block",
}  # fmt: skip
"""What an instance says of how it was bought (`instance-life-cycle`) → kind of price."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance type. Cores are physical ones unless they are called logical."""

    name: str
    family: str
    accelerator: str
    devices: int
    core_version: str
    """Generation of its NeuronCores: `v2` (Trainium, Inferentia2), `v3` (Trainium2)."""
    cores_per_device: int
    logical_core_configs: tuple[int, ...]
    """Physical cores that can make a logical one; the default first."""
    memory_gib: float
    """Of one device."""
    bandwidth_gb_s: float
    """Of one device's memory, 10⁹ bytes a second."""
    bandwidth_documented: str
    vcpus: int
    host_memory_gib: float
    network: str
    link: str
    """Between its devices; empty where there is one device."""
    compiler_target: str
    source: str
    date: str

    @property
    def logical_core_config(self) -> int:
        """Physical cores of a logical core, unless set otherwise."""
        return self.logical_core_configs[0]

    def cores(self, logical_core_config: int | None = None) -> int:
        """Cores as programs see them. Raises `ValueError` for a grouping that the hardware does not offer."""
        return self.devices * self.cores_per_device // self._group(logical_core_config)

    def memory_bytes_per_core(self, logical_core_config: int | None = None) -> float:
        """Device memory that belongs to one core as programs see it."""
        return self.memory_gib * 2**30 * self._group(logical_core_config) / self.cores_per_device

    def bandwidth_per_core_gb_s(self, logical_core_config: int | None = None) -> float:
        """A core's share of its device's memory bandwidth, 10⁹ bytes a second."""
        return self.bandwidth_gb_s * self._group(logical_core_config) / self.cores_per_device

    def dense_tflops(self, dtype: str = "bfloat16") -> float | None:
        """Of all devices together, by the chip's page; None for a type without a documented figure."""
        chip = accelerator_of(self.name)
        each = chip.dense_tflops.get(dtype) if chip is not None else None
        return None if each is None else each * self.devices

    def _group(self, asked: int | None) -> int:
        group = self.logical_core_config if asked is None else asked
        if group not in self.logical_core_configs:
            offered = " or ".join(map(str, self.logical_core_configs))
            raise ValueError(f"logical_core_config: {self.name} offers {offered}, found {group}")
        return group


@dataclass(frozen=True, kw_only=True)
class Price:
    """What an hour of a whole instance costs: where, bought how, said by whom and when."""

    instance: str
    kind: PriceKind
    region: str
    usd_per_hour: float
    date: str
    source: str
    block_usd: float | None = None
    """Of a Capacity Block: what all of it costs, used or not."""
    block_hours: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.usd_per_hour < float("inf"):
            raise ValueError(f"price of {self.instance}: usd_per_hour: expected more than 0, found {self.usd_per_hour}")


def instances() -> tuple[Instance, ...]:
    """All of the catalogue, in its order."""
    return tuple(
        Instance(**{**entry, "logical_core_configs": tuple(entry["logical_core_configs"])})
        for entry in load_table("instances.toml")["instance"]
    )


def instance_of(name: str) -> Instance | None:
    """The instance type of that name (`inf2.xlarge`); None for one that is not in the catalogue."""
    return next((instance for instance in instances() if instance.name == name), None)


def prices(instance: str) -> tuple[Price, ...]:
    """The prices of an instance type that somebody has published, in the catalogue's order."""
    return tuple(_price(entry) for entry in load_table("instances.toml")["price"] if entry["instance"] == instance)


def price_of(instance: str, region: str, kind: PriceKind) -> Price | str:
    """The price of an instance type in a region bought in that way, or in words why there is none.

    The price of another region or way of buying is never taken for it.
    """
    known = prices(instance)
    fitting = [price for price in known if price.kind == kind and price.region == region]
    if fitting:
        return max(fitting, key=lambda price: price.date)
    if not known:
        return f"no published price of {instance or 'an instance type that is not known'}"
    listed = ", ".join(f"{price.kind} {price.usd_per_hour:g} in {price.region} ({price.date})" for price in known)
    return f"no published {kind} price of {instance} in {region or 'a region that is not known'}; known: {listed}"


def _price(entry: Mapping[str, Any]) -> Price:
    return Price(**entry)
