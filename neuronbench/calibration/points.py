"""What a calibration says, and which of its points speaks for a load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from neuronbench.model import Json

SCHEMA_VERSION: Final = 1
REACH: Final = 2.0
"""A point speaks for loads up to this many times its own, and for any smaller one: the error grows with the load."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Percentiles (nearest rank) of absolute errors, ms. None where there were too few observations for it."""

    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class CalibrationPoint:
    """The client's error at one load. With several runs each figure is the median of the runs'."""

    streams: int
    """Requests in flight."""
    tokens_per_s: float
    """Streamed tokens per second over all streams, as achieved."""
    asked_tokens_per_s: float
    ttft_ms: Spread
    """TTFT as the client has it − (first token handed to the kernel − request received), both by the server's clock."""
    chunk_ms: Spread
    """The client's stamp of a token − the server's stamp inside that token."""
    tpot_ms: Spread
    """TPOT as the client has it − as the server's stamps give it, per request."""
    lag_p99_ms: float | None
    """How long data waited in the kernel for the client to read it."""
    cpu_us_per_token: float | None
    """CPU time of the client, µs."""
    server_late_p99_ms: float | None
    """How late the server was itself; no part of the error, but of how busy the host was."""
    runs: int
    ttft_p99_range_ms: tuple[float, float] | None
    """Lowest and highest of the runs' p99."""
    failed: int
    """Requests that failed or could not be matched to what the server says; none belong in a good calibration."""

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CalibrationPoint:
        spreads = {name: Spread(**data[name]) for name in ("ttft_ms", "chunk_ms", "tpot_ms")}
        spanned = data["ttft_p99_range_ms"]
        return cls(**{**data, **spreads, "ttft_p99_range_ms": tuple(spanned) if spanned else None})


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One host, one version of neuronbench."""

    host: str
    """Key of the host; see `neuronbench.calibration.store.host_key`."""
    version: str
    made_at: str
    """UTC, ISO 8601."""
    preset: str
    points: tuple[CalibrationPoint, ...]
    facts: Mapping[str, Json] = field(default_factory=dict)
    """What the host is."""
    warnings: tuple[str, ...] = ()
    """What on the host made the calibration worse or less steady while it ran."""

    def to_json(self) -> dict[str, Json]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Calibration:
        """Raises `KeyError`, `TypeError` or `ValueError` for what is no calibration of this schema."""
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version: expected {SCHEMA_VERSION}, found {data['schema_version']!r}")
        values = {key: value for key, value in data.items() if key != "schema_version"}
        values["points"] = tuple(CalibrationPoint.from_json(point) for point in values["points"])
        values["warnings"] = tuple(values["warnings"])
        return cls(**values)


def nearest(calibration: Calibration | None, streams: float, tokens_per_s: float) -> CalibrationPoint | None:
    """The point nearest to that load by the ratio of streams and of rates; None when the load is beyond all of them.

    Of equally near ones the heavier load is taken. A point that is lighter than the load by more than `REACH` says
    nothing about it.
    """
    if calibration is None or not (streams > 0 and tokens_per_s > 0):
        return None
    able = [p for p in calibration.points if p.streams * REACH >= streams and p.tokens_per_s * REACH >= tokens_per_s]

    def distance(point: CalibrationPoint) -> tuple[float, float]:
        apart = abs(math.log(point.streams / streams)) + abs(math.log(point.tokens_per_s / tokens_per_s))
        return round(apart, 9), -point.tokens_per_s

    return min(able, key=distance, default=None)


def heaviest(points: Sequence[CalibrationPoint]) -> str:
    """`1000 streams, 25600 tok/s`: how far a calibration reaches, for messages."""
    return f"{max(p.streams for p in points)} streams, {max(p.tokens_per_s for p in points):.0f} tok/s"
