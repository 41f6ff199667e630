"""Chips and what one of their cores can do at best: the denominator of a utilisation, with its source and date."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from neuronbench.catalog import load_table
from neuronbench.protocols import Peak


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A chip."""

    name: str
    cores: int
    """Physical cores of the chip."""
    logical_core_config: int
    """Physical cores that make a core as programs see it, unless set otherwise."""
    dense_tflops: Mapping[str, float]
    """Type of the numbers → dense TFLOP/s of the whole chip."""
    source: str
    date: str

    def peak(self, dtype: str = "bfloat16", *, logical_core_config: int | None = None) -> Peak | None:
        """Of one core as programs see it; None for a type whose figure nobody has documented.

        Raises `ValueError` for a grouping into which the chip's cores do not go.
        """
        group = self.logical_core_config if logical_core_config is None else logical_core_config
        if group < 1 or self.cores % group:
            raise ValueError(
                f"logical_core_config: expected a divisor of the {self.cores} cores of {self.name}, found {group}"
            )
        if dtype not in self.dense_tflops:
            return None
        made = f", {group} physical cores each" if group > 1 else ""
        return Peak(
            flops=self.dense_tflops[dtype] * 1e12 * group / self.cores,
            dtype=dtype,
            source=f"{self.source}: {self.dense_tflops[dtype]:g} TFLOP/s of a {self.name} / {self.cores} cores{made}",
            date=self.date,
        )


def accelerator_of(instance: str) -> Accelerator | None:
    """The chip of an instance type or family (`trn1n.32xlarge`, `inf2`); None for one that is not in the catalogue."""
    match = re.match(r"(?:trn|inf)\d+", instance)
    for entry in load_table("accelerators.toml")["accelerator"]:
        if match is not None and match[0] in entry["families"]:
            return Accelerator(**{name: value for name, value in entry.items() if name != "families"})
    return None
