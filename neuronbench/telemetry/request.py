"""What a benchmark asks of telemetry, and what it gets back: the `telemetry` fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuronbench.protocols import SamplerSpec

if TYPE_CHECKING:
    from neuronbench.telemetry.recorder import Telemetry


class TelemetryRequest:
    """Samplers beyond the default ones, and after a window the series they gave."""

    def __init__(self) -> None:
        self.samplers: list[SamplerSpec] = []
        self.result: Telemetry | None = None
        """Everything sampled during the last measured window; None before it."""

    def add(self, sampler: SamplerSpec) -> None:
        """Sample `sampler` too while the next window is open."""
        self.samplers.append(sampler)
