"""The driver's own counters, without any tool: a second source beside `neuron-monitor`.

Power is a share of the device's most, averaged by the driver over a minute, not watts: it says something of windows of
some minutes only (`neuronbench.telemetry.accelerator` leaves it out of shorter ones). There is no temperature or clock.
`device_mem/total` is a counter of what was ever allocated, not a capacity, and is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

DEVICES: Final = "sys/devices/virtual/neuron_device"
STATUS: Final = ("success", "failure", "timeout", "hw_error")
VALID: Final = "POWER_STATUS_VALID"


class Sysfs:
    """Sampler of the driver's counters below `root`.

    `DEVICE/core/N/memory_bytes`, `.../memory_peak_bytes`, `DEVICE/core/N/success`, `failure`, `timeout`, `hw_error`
    (executions since the driver was loaded), `DEVICE/power_percent` (the minute's mean) and `DEVICE/power_epoch_s`
    (when it was made: the same for a minute). A file that is not there, or holds no number, is null.
    """

    def __init__(self, devices: Sequence[int] | None = None, root: str = "/") -> None:
        """`devices`: their numbers; None for all that are there."""
        self._folder = Path(root, DEVICES)
        self._devices = devices

    def read(self) -> Mapping[str, float | None]:
        values: dict[str, float | None] = {}
        for device in self._numbers("neuron") if self._devices is None else self._devices:
            folder = self._folder / f"neuron{device}"
            values.update({f"{device}/{name}": value for name, value in _power(folder).items()})
            for core in _numbers(folder, "neuron_core"):
                stats = folder / f"neuron_core{core}" / "stats"
                memory = stats / "memory_usage" / "device_mem"
                at = f"{device}/core/{core}"
                values[f"{at}/memory_bytes"] = _number(_text(memory / "present"))
                values[f"{at}/memory_peak_bytes"] = _number(_text(memory / "peak"))
                for name in STATUS:
                    values[f"{at}/{name}"] = _number(_text(stats / "status" / name / "total"))
        return values

    def _numbers(self, stem: str) -> list[int]:
        return _numbers(self._folder, stem)


def _power(folder: Path) -> dict[str, float | None]:
    """`STATUS,epoch,min,max,mean` in percent of the device's most."""
    parts = _text(folder / "stats" / "power" / "utilization").split(",")
    if len(parts) != 5 or parts[0] != VALID:
        return {"power_percent": None, "power_epoch_s": None}
    epoch_s, mean = _number(parts[1]), _number(parts[4])
    return {"power_percent": mean if mean is not None and mean <= 100.0 else None, "power_epoch_s": epoch_s}


def _numbers(folder: Path, stem: str) -> list[int]:
    try:
        names = [path.name.removeprefix(stem) for path in folder.iterdir() if path.name.startswith(stem)]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e300 else None
