"""What plugins register. Keyword-only, so that a later field with a default breaks nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from neuronbench.definitions import DEFINITIONS, Definition
from neuronbench.definitions import metric as defined
from neuronbench.model import Json, Metric


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """A kind of hardware. `target` is `"package.module:Class"`, imported on first use; `Class(info)` is a `Backend`."""

    name: str
    title: str
    target: str
    family: str
    """Providers name the families they serve: `cpu`, `neuron`."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaneInfo:
    """A family of benchmarks with one metric vocabulary."""

    name: str
    title: str
    headline: tuple[str, ...] = ()
    """Metric keys shown in tables, in order, such as `ttft_p50_ms`."""
    needs: tuple[str, ...] = ()
    """Kinds of resource its benchmarks lease."""
    leads: bool = False
    """Its points run before all others, whose records cite them."""
    version: int = 1
    definitions: Mapping[str, tuple[str, Literal["lower", "higher"] | None, str]] = field(default_factory=dict)
    """Metrics of the lane's own: id → (unit, better, meaning)."""
    benchmarks: str = ""
    """Package with the lane's `bench_*.py` files, `acme_lane.benchmarks`, and its grids in a folder `grids` in it.

    They are collected with a project's `benchmarks` folder, so that installing a lane is all it takes."""

    @property
    def vocabulary(self) -> Mapping[str, Definition]:
        """Definitions of all metrics that the lane may write: its own, and those of `neuronbench.definitions`."""
        own = {
            id_: Definition(id=id_, unit=unit, better=better, text=text, version=self.version)
            for id_, (unit, better, text) in self.definitions.items()
        }
        return {**DEFINITIONS, **own}

    def metric(self, id: str, value: float | None, **told: Any) -> Metric:
        """A metric by its definition in the vocabulary, with unit and direction; `told` as for `definitions.metric`.

        Raises `KeyError` for an id that neither the lane nor the core defines.
        """
        return defined(id, value, among=self.vocabulary, **told)


@dataclass(frozen=True, kw_only=True)
class ProviderInfo:
    """Something that can boot a kind of resource on some families of hardware. `target(info)` is a `Provider`."""

    name: str
    """`endpoint/vllm-cpu`: kind, slash, what it is."""
    kind: str
    families: tuple[str, ...]
    target: str


@dataclass(frozen=True, kw_only=True)
class SinkInfo:
    """A place receipts are forwarded to. `target(settings)` is a `Sink`."""

    name: str
    title: str
    target: str


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """A telemetry sampler, described so that the telemetry process can build it: `target(**options)` is a `Sampler`."""

    name: str
    target: str
    options: Mapping[str, Json] = field(default_factory=dict)
    period_s: float = 0.5
    live: Mapping[str, str] = field(default_factory=dict)
    """Series shown while the benchmark runs → their label in that line: `{"cpu_percent": "server CPU"}`. The unit is
    that of the series' name (`_percent`, `_bytes`); labels of a series (`name{engine="0"}`) are left out here."""


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """Verdict of `check_point`: the point is skipped, or expected to fail when `known_bad`."""

    reason: str
    known_bad: bool = False
