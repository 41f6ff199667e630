"""One line of `neuron-monitor`'s output as data, whatever release wrote it.

A number that is not there is None; so is one that is null. A field of another type than documented, or a number that
cannot be (a utilisation above 100 %, a count below 0), is None too and is named in `Report.odd`: it is neither a value
nor a reason to lose the rest of the line. A line that is no report at all raises `ReportError`. Fields that are not
known are left alone. Nothing that identifies the machine is read: instance and subnet ids, names, addresses stay in
the line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

PERCENTILES: Final = ("p0", "p1", "p25", "p50", "p75", "p99", "p100")
"""Those that the tool has; there is no p90."""
ERRORS: Final = ("generic", "numerical", "transient", "model", "runtime", "hardware")
OUTCOMES: Final = (
    "completed", "completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input", "failed_to_queue",
)  # fmt: skip
ECC: Final = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
MEMORY: Final = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
FULL: Final = 100.0
ROUNDING: Final = 0.5
"""A utilisation may be above 100 by as much: periods are not exact."""


class ReportError(ValueError):
    """A line that is no report of `neuron-monitor`; the text is one line and says what was found."""


@dataclass(frozen=True, kw_only=True)
class Core:
    """A core as programs see it, in one period."""

    utilization_pct: float | None = None
    """Share of the period in which it executed, 0 to 100."""
    flops: float | None = None
    """Floating-point operations per second; `flops` in the documentation, `effective_flops` in newer runtimes."""
    memory_bytes: float | None = None
    physical: Mapping[str, float | None] = field(default_factory=dict)
    """Of the physical cores of a logical one (`nc_v3.0`): utilisation in percent."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """A process that has cores."""

    pid: int | None = None
    period_s: float | None = None
    """Actual length of the period of its counters."""
    cores: Mapping[int, Core] = field(default_factory=dict)
    host_bytes: float | None = None
    device_bytes: float | None = None
    errors: Mapping[str, float | None] = field(default_factory=dict)
    """In the period, by kind."""
    outcomes: Mapping[str, float | None] = field(default_factory=dict)
    """Executions in the period, by what became of them."""
    device_latency_s: Mapping[str, float | None] = field(default_factory=dict)
    """Percentiles (see `PERCENTILES`); empty when nothing was executed."""
    total_latency_s: Mapping[str, float | None] = field(default_factory=dict)
    """The same with queueing on the host."""
    problem: str = ""

    @property
    def longest_s(self) -> float | None:
        """How long the longest executions of the period took: what a sampling period has to be compared with."""
        for latency in (self.device_latency_s, self.total_latency_s):
            for name in ("p100", "p99", "p75", "p50"):
                value = latency.get(name)
                if value is not None and value > 0:
                    return value
        return None


@dataclass(frozen=True, kw_only=True)
class Report:
    """A line. Without a runtime that is attached there is no utilisation: `runtimes` is empty, nothing is 0."""

    runtimes: tuple[Runtime, ...] = ()
    ecc: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    """By device; empty without a driver, or where it was not asked for."""
    device_count: float | None = None
    cores_per_device: float | None = None
    logical_core_config: float | None = None
    core_version: str = ""
    """`v2`, `v3`, `v3d`: of cores, not of devices."""
    problems: tuple[str, ...] = ()
    """What the tool itself says went wrong."""
    odd: tuple[str, ...] = ()
    """Fields whose values are not what they are documented to be, taken as missing."""


def parse(line: str | bytes) -> Report:
    """The report in a line. Raises `ReportError`."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    try:
        document = json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        raise ReportError(f"neuron-monitor: expected a line of JSON, found {' '.join(text.split())[:80]!r}") from None
    if not isinstance(document, dict):
        raise ReportError(f"neuron-monitor: expected an object, found {type(document).__name__}")
    if not any(name in document for name in ("neuron_runtime_data", "system_data", "neuron_hardware_info")):
        raise ReportError(f"neuron-monitor: no report, only {', '.join(sorted(map(str, document)))[:80] or 'nothing'}")
    return _Reader().report(document)


class _Reader:
    """Takes a document apart and notes what is odd on the way."""

    def __init__(self) -> None:
        self.odd: list[str] = []
        self.problems: list[str] = []

    def report(self, document: Mapping[str, Any]) -> Report:
        hardware = self.table(document, "neuron_hardware_info")
        self.complaint(hardware, "neuron_hardware_info")
        system = self.table(document, "system_data")
        counters = self.table(system, "neuron_hw_counters", at="system_data")
        self.complaint(counters, "neuron_hw_counters")
        ecc: dict[int, Mapping[str, float | None]] = {}
        for entry in self.entries(counters, "neuron_devices", at="neuron_hw_counters"):
            index = self.number(entry, "neuron_device_index", at="neuron_devices")
            if index is not None:
                ecc[int(index)] = {name: self.number(entry, name, at="neuron_devices") for name in ECC}
        runtimes = tuple(self.runtime(entry) for entry in self.entries(document, "neuron_runtime_data"))
        version = hardware.get("neuroncore_version")
        return Report(
            runtimes=runtimes,
            ecc=ecc,
            device_count=self.number(hardware, "neuron_device_count"),
            cores_per_device=self.number(hardware, "neuroncore_per_device_count"),
            logical_core_config=self.number(hardware, "logical_neuroncore_config"),
            core_version=version if isinstance(version, str) else "",
            problems=tuple(self.problems),
            odd=tuple(dict.fromkeys(self.odd)),
        )

    def runtime(self, entry: Mapping[str, Any]) -> Runtime:
        self.complaint(entry, "neuron_runtime_data")
        report = self.table(entry, "report", at="neuron_runtime_data")
        counters = self.group(report, "neuroncore_counters")
        memory = self.group(report, "memory_used")
        stats = self.group(report, "execution_stats")
        used = self.table(memory, "neuron_runtime_used_bytes", at="memory_used")
        breakdown = self.table(used, "usage_breakdown", at="memory_used")
        by_core = self.table(breakdown, "neuroncore_memory_usage", at="memory_used")
        latency = self.table(stats, "latency_stats", at="execution_stats")
        pid = self.number(entry, "pid", at="neuron_runtime_data")
        return Runtime(
            pid=None if pid is None else int(pid),
            period_s=self.number(counters, "period", at="neuroncore_counters")
            or self.number(stats, "period", at="execution_stats"),
            cores=self.cores(self.table(counters, "neuroncores_in_use", at="neuroncore_counters"), by_core),
            host_bytes=self.number(used, "host", at="memory_used"),
            device_bytes=self.number(used, "neuron_device", at="memory_used"),
            errors=self.errors(self.table(stats, "error_summary", at="execution_stats")),
            outcomes=self.numbers(self.table(stats, "execution_summary", at="execution_stats"), OUTCOMES),
            device_latency_s=self.latencies(latency, "device_latency"),
            total_latency_s=self.latencies(latency, "total_latency"),
            problem=str(entry.get("error") or ""),
        )

    def cores(self, in_use: Mapping[str, Any], memory: Mapping[str, Any]) -> dict[int, Core]:
        found = {}
        for name in in_use:
            if not name.isdecimal():
                self.odd.append("neuroncores_in_use")
                continue
            entry = self.table(in_use, name, at="neuroncores_in_use")
            physical = self.table(entry, "v3d", at="neuroncores_in_use")
            flops = self.number(entry, "effective_flops", at="neuroncores_in_use")
            found[int(name)] = Core(
                utilization_pct=self.percent(entry, "neuroncore_utilization"),
                flops=self.number(entry, "flops", at="neuroncores_in_use") if flops is None else flops,
                memory_bytes=self.held(memory, name),
                physical={
                    part: self.percent(self.table(physical, part, at="v3d"), "neuroncore_utilization")
                    for part in physical
                },
            )
        return found

    def held(self, memory: Mapping[str, Any], core: str) -> float | None:
        """All that lies in a core's memory; None where the parts are not all known, for a part is no sum."""
        if core not in memory:
            return None
        parts = self.table(memory, core, at="neuroncore_memory_usage")
        values = [self.number(parts, name, at="neuroncore_memory_usage") for name in parts]
        return math.fsum(value for value in values if value is not None) if values and None not in values else None

    def errors(self, given: Mapping[str, Any]) -> dict[str, float | None]:
        """The guide's prose calls `numerical` `numeric`."""
        spelt = {**given, "numerical": given.get("numerical", given.get("numeric"))} if given else given
        return self.numbers(spelt, ERRORS)

    def latencies(self, given: Mapping[str, Any], name: str) -> dict[str, float | None]:
        entry = self.table(given, name, at="latency_stats")
        return {each: self.number(entry, each, at=name) for each in PERCENTILES if each in entry}

    # -- values

    def numbers(self, given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float | None]:
        return {name: self.number(given, name) for name in names} if given else {}

    def number(self, given: Mapping[str, Any], name: str, *, at: str = "") -> float | None:
        """A finite number from 0; None for anything else."""
        value = given.get(name)
        if value is None:
            return None
        # the comparison goes first: a whole number of JSON may be too large for a float
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
            self.odd.append(f"{at}.{name}" if at else name)
            return None
        return float(value)

    def percent(self, given: Mapping[str, Any], name: str) -> float | None:
        value = self.number(given, name, at="neuroncores_in_use")
        if value is not None and value > FULL + ROUNDING:
            self.odd.append(f"neuroncores_in_use.{name}")
            return None
        return None if value is None else min(value, FULL)

    def table(self, given: Mapping[str, Any], name: str, *, at: str = "") -> Mapping[str, Any]:
        """An object; empty where there is none."""
        value = given.get(name)
        if value is not None and not isinstance(value, dict):
            self.odd.append(f"{at}.{name}" if at else name)
        return value if isinstance(value, dict) else {}

    def entries(self, given: Mapping[str, Any], name: str, *, at: str = "") -> list[Mapping[str, Any]]:
        value = given.get(name)
        listed = value if isinstance(value, list) else []
        found: list[Mapping[str, Any]] = [entry for entry in listed if isinstance(entry, dict)]
        if (value is not None and not isinstance(value, list)) or len(found) != len(listed):
            self.odd.append(f"{at}.{name}" if at else name)
        return found

    def group(self, report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """A group of a runtime's metrics. One that says it failed has no values: what stands there is not of now."""
        found = self.table(report, name, at="report")
        return {} if self.complaint(found, name) else found

    def complaint(self, given: Mapping[str, Any], name: str) -> bool:
        said = given.get("error")
        if said:
            self.problems.append(f"{name}: {said}")
        return bool(said)
