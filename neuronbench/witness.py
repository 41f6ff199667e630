"""What a resource may say of a window that was measured on it, beyond what everybody could see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from neuronbench.model import Gate, Json, Metric
from neuronbench.protocols import SamplerSpec


@dataclass(frozen=True, kw_only=True)
class SeenWindow:
    """What was seen of a measured window, for a resource that has more to say of it."""

    folder: Path
    """Files written here become part of the receipt."""
    requests: Path
    """The table of requests."""
    window: Mapping[str, Json]
    """As in the record: `start_ns`, `end_ns` (monotonic; null when it never opened), `seconds`, counts."""
    workload: Mapping[str, Json]
    """Identity of the load, as in the record."""
    telemetry: Any
    """`neuronbench.telemetry.table.Telemetry`: everything that was sampled, before and after the window too."""


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """What a resource says of a window: all of it goes into the record."""

    metrics: Sequence[Metric] = ()
    gates: Sequence[Gate] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Added to the record's `workload` under `server`."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Tables written into the folder: name → file name."""
    notes: Sequence[str] = ()


@runtime_checkable
class Witness(Protocol):
    """A resource that can tell whether a window of it may be trusted (did it compile meanwhile?). Optional.

    Asked after the window has closed; what it raises costs the record only what it would have said.
    """

    def samplers(self) -> Sequence[SamplerSpec]:
        """What it wants sampled while the window is open, to testify from."""

    def testify(self, seen: SeenWindow) -> Testimony:
        """Metrics, gates and facts of that window."""
