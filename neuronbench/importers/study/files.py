"""Which files of the study are receipts, what stands beside them, and what their place says."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench.failures import read_log
from neuronbench.importers import safe
from neuronbench.importers.base import UNKNOWN, mapping
from neuronbench.importers.safe import ImportFailure
from neuronbench.telemetry.table import Telemetry, Window

BOXES: Final = ("trn1", "inf2", "trn2")
RESULTS: Final = ("results", "analysis")
"""Folders that hold receipts; in a checkout everything else is the study's programs."""
CSV: Final = ".telemetry.csv"
DETAILS: Final = (".images.json", ".utterances.json")
"""Items of an accuracy receipt that stands beside them: not results of their own."""
SAMPLER: Final = "study"
"""Sampler of the study's telemetry; its series keep the names of the columns."""
LIMIT_BYTES: Final = 16 * 1024 * 1024
"""Of a telemetry table: two days of a host with 32 cores."""
BUSY: Final = 90.0
"""The study's busy window: from the first to the last sample with so much utilisation."""


def receipts(path: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The receipts below `path` in order of their names: of a checkout those in its folders of results."""
    found = list(safe.files(path, suffixes))
    inside = [one for one in found if path.is_dir() and set(RESULTS) & set(one.relative_to(path).parts[:-1])]
    if not set(RESULTS) & set(path.absolute().parts):
        found = inside or found
    yield from (one for one in found if not one.name.lower().endswith(DETAILS))


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a receipt's path says."""

    path: Path
    box: str
    """`trn1`, `inf2` or `trn2`: what it was measured on, `unknown` outside of the study's folders."""
    parts: tuple[str, ...]
    """Folders below the box's results."""

    @property
    def name(self) -> str:
        """Unique within the study: box, folders, file."""
        box = () if self.box == UNKNOWN else (self.box,)
        return "/".join((*box, *self.parts, self.path.name.removesuffix(".json").removesuffix(CSV)))

    @property
    def lane(self) -> str:
        """Which of our lanes it belongs to, for receipts that do not show it by what is in them."""
        words = (*self.parts, self.path.name)
        found = (lane for sign, lane in _LANES if any(word.startswith(sign) for word in words))
        return next(found, "serving" if self.box == "inf2" else "host" if self.box == UNKNOWN else "lora_sft")


_LANES: Final = (
    ("academic", "pretrain"), ("pretrain", "pretrain"), ("midtrain", "pretrain"), ("orpo", "preference"),
    ("dpo", "preference"), ("grpo", "preference"), ("whisper", "asr"), ("asr", "asr"), ("clip", "vision"),
    ("siglip", "vision"), ("zs_", "vision"), ("nki", "microbench"), ("rag", "quality"), ("quality", "quality"),
    ("spec", "serving"), ("cpu", "host"), ("fullft", "full_sft"), ("batch_ladder", "batch_ladder"),
    ("ctx_bisect", "serving"), ("ctx_", "context_ladder"), ("isolation", "data_isolation"), ("ckpt", "checkpoint"),
)  # fmt: skip
"""Beginning of a folder or a file → lane, the first that fits."""


def place(path: Path) -> Place:
    parts = path.absolute().parts
    for index in range(len(parts) - 2, 0, -1):
        if parts[index] == "results" and parts[index - 1] in BOXES:
            return Place(path=path, box=parts[index - 1], parts=parts[index + 1 : -1])
    return Place(path=path, box=UNKNOWN, parts=parts[-2:-1] if parts[-2:-1] != ("results",) else ())


def read_object(path: Path) -> Mapping[str, Any]:
    return mapping(safe.read_json(path), "the receipt")


def sibling(path: Path, suffix: str) -> Path | None:
    """The file of the same name and another ending, if it is a plain file of its folder."""
    one = path.with_name(path.name.removesuffix(".json").removesuffix(".failure") + suffix)
    return one if one.is_file() and not one.is_symlink() else None


def log_beside(path: Path) -> tuple[Path, str] | None:
    """The log of the same name, or of the boot in the same folder, and its text, bounded."""
    here = [sibling(path, ending) for ending in (".boot.server.log", ".server.log", ".log")]
    if path.name == "load_failure.json":
        here.append(sibling(path.with_name("boot.json"), ".server.log"))
    for one in here:
        text = read_log(one) if one is not None else ""
        if one is not None and text:
            return one, text
    return None


# --------------------------------------------------------------------------------------------------------------------
# telemetry


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A telemetry table of the study: what `neuron-monitor` told once a second, on an axis that starts with it."""

    telemetry: Telemetry
    cores: tuple[str, ...]
    """Series of the cores' utilisation."""
    times_s: tuple[float, ...]

    @property
    def period_s(self) -> float | None:
        """Median gap between samples."""
        gaps = sorted(b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False))
        return gaps[len(gaps) // 2] if gaps else None

    @property
    def span_ns(self) -> tuple[int, int]:
        return (_ns(self.times_s[0]), _ns(self.times_s[-1])) if self.times_s else (0, 0)

    def utilisation(self) -> list[tuple[float, float]]:
        """Instant in seconds and mean of the cores that reported, for every sample that has one."""
        at: dict[int, list[float]] = {}
        for name in self.cores:
            series = self.telemetry.get(f"{SAMPLER}/{name}")
            for mono_ns, value in zip(series.mono_ns, series.values, strict=True):
                at.setdefault(mono_ns, []).append(value)
        return [(mono_ns / 1e9, math.fsum(values) / len(values)) for mono_ns, values in sorted(at.items())]

    def busy_pct(self) -> float | None:
        """Mean utilisation over the study's busy window; None where no sample is busy."""
        seen = [value for _, value in self.utilisation()]
        busy = [index for index, value in enumerate(seen) if value >= BUSY]
        if not busy:
            return None
        window = seen[busy[0] : busy[-1] + 1]
        return math.fsum(window) / len(window)

    def busy_samples(self) -> int:
        return sum(value >= BUSY for _, value in self.utilisation())

    def highest(self, column: str) -> float | None:
        return Window(self.telemetry, *self.span_ns).max(f"{SAMPLER}/{column}")


def read_samples(path: Path) -> Samples:
    """The telemetry CSV at `path`. Raises `ImportFailure` for one of another form, or one that is cut off."""
    try:
        text = safe.read_text(path, LIMIT_BYTES)
        rows = list(csv.reader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise ImportFailure(f"{path}: expected comma-separated values, found another form: {error}") from None
    header = [name.strip() for name in rows[0]] if rows else []
    if "t_s" not in header or len(set(header)) != len(header) or len(header) > 600:
        raise ImportFailure(f"{path}: expected a telemetry table with distinct columns and t_s among them, found none")
    first = header.index("t_s")
    telemetry = Telemetry()
    times: list[float] = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            told = f"expected {len(header)} cells in line {number}, found {len(row)}; is the file complete?"
            raise ImportFailure(f"{path}: {told}")
        seconds = _number(row[first])
        if seconds is None or not 0 <= seconds < 1e8 or (times and seconds < times[-1]):
            raise ImportFailure(
                f"{path}: expected seconds that go on in t_s of line {number}, found {row[first]!r:.40}"
            )
        times.append(seconds)
        values = {name: _number(cell) for name, cell in zip(header, row, strict=True) if name != "t_s"}
        telemetry.add(0, _ns(seconds), SAMPLER, values)
    cores = tuple(name for name in header if name.startswith("util_nc"))
    return Samples(telemetry=telemetry, cores=cores, times_s=tuple(times))


def _number(cell: str) -> float | None:
    """What a cell says; what is blank or not finite says nothing. Raises `ValueError` for text."""
    value = float(cell) if cell.strip() else math.nan
    return value if math.isfinite(value) else None


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
