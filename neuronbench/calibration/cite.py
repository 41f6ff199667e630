"""What a record says about the client that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from neuronbench.calibration import store
from neuronbench.calibration.points import Calibration, heaviest, nearest
from neuronbench.model import Gate, Json, Metric

if TYPE_CHECKING:
    from neuronbench.config import Settings

REMEDY: Final = "run `neuronbench calibrate`"
SHARE_LIMIT: Final = 0.05
"""Of the measured TTFT; above it the client is a visible part of what it measures."""


def client_error(
    settings: Settings, metrics: Mapping[str, Metric], window: Mapping[str, Json] | None = None
) -> tuple[dict[str, Json], Gate]:
    """The calibrated error of the client at about the load that `metrics` (of a serving window) show.

    The dictionary goes into the record's workload, the gate (`client_error`, severity `info`) among its gates. Not
    calibrated, or a load beyond the calibration, is said and is no failure. `window` is that of a `Reduction`: a load
    that came from other hosts has no error that was calibrated on this one.
    """
    elsewhere = [node["name"] for node in (window or {}).get("nodes", ()) if not node["same_host"]]
    if elsewhere:
        return _none(f"the load came from {', '.join(elsewhere)}, and a calibration is of one host", {})

    def value(key: str) -> float | None:
        found = metrics.get(key)
        return found.value if found is not None else None

    return cited(
        store.load(settings),
        streams=value("in_flight_requests"),
        tokens_per_s=value("output_throughput_tok_s"),
        ttft_ms=value("ttft_p50_ms"),
    )


def cited(
    calibration: Calibration | None, *, streams: float | None, tokens_per_s: float | None, ttft_ms: float | None
) -> tuple[dict[str, Json], Gate]:
    """As `client_error`, from the figures themselves."""
    load = {"streams": streams, "tokens_per_s": tokens_per_s}
    if calibration is None:
        return _none(f"not calibrated: {REMEDY}", load)
    if not streams or not tokens_per_s:
        return _none("the load in streams and tokens per second is not known", load)
    point = nearest(calibration, streams, tokens_per_s)
    if point is None:
        return _none(
            f"calibrated up to {heaviest(calibration.points)}; this load is {streams:.0f} streams, "
            f"{tokens_per_s:.0f} tok/s: {REMEDY} --preset full",
            load,
        )
    p99 = point.ttft_ms.p99
    figure = f"p99 {p99:.2f} ms" if p99 is not None else f"max {point.ttft_ms.max:.2f} ms"
    text = (
        f"client TTFT error {figure} at {point.streams} streams × {point.tokens_per_s:.0f} tok/s, "
        f"calibrated {calibration.made_at[:10]}"
    )
    observed = p99 if p99 is not None else point.ttft_ms.max
    limit = None if ttft_ms is None else SHARE_LIMIT * ttft_ms
    gate = Gate(
        id="client_error",
        passed=None if limit is None or observed is None else observed <= limit,
        observed=observed,
        limit=limit,
        unit="ms",
        severity="info",
        message=text,
    )
    cited: dict[str, Json] = {
        "calibrated": True,
        "text": text,
        "ttft_error_ms": asdict(point.ttft_ms),
        "chunk_error_ms": asdict(point.chunk_ms),
        "tpot_error_ms": asdict(point.tpot_ms),
        "at": {"streams": point.streams, "tokens_per_s": point.tokens_per_s},
        "load": load,
        "made_at": calibration.made_at,
        "host": calibration.host,
        "version": calibration.version,
    }
    return cited, gate


def _none(text: str, load: dict[str, Json]) -> tuple[dict[str, Json], Gate]:
    gate = Gate(id="client_error", passed=None, unit="ms", severity="info", message=text)
    return {"calibrated": False, "text": text, "load": load}, gate
