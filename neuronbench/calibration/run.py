"""Measuring the client against the truth server over streams and rates."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import neuronbench
from neuronbench.calibration import store
from neuronbench.calibration.points import Calibration, CalibrationPoint, Spread

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.protocols import Progress
    from neuronbench.testing.truth_server import TruthServer

_LEAST_REQUESTS: Final = 110
"""A few more than a p99 needs."""
_PROMPT_TOKENS: Final = 16
_POINT_DEADLINE_S: Final = 180.0


class CalibrationError(RuntimeError):
    """A point could not be measured."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one point asks of the client."""

    streams: int
    tokens_per_s: float
    """Over all streams, while they stream."""

    @property
    def ttft_ms(self) -> float:
        return 5.0 if self.streams < 64 else 20.0

    @property
    def tpot_ms(self) -> float:
        return 1000.0 * self.streams / self.tokens_per_s

    @property
    def tokens(self) -> int:
        """Length of an answer: about half a second of it, few where there are few streams to gather requests with."""
        return 8 if self.streams < 64 else min(max(round(500 / self.tpot_ms), 16), 64)

    @property
    def request_s(self) -> float:
        return (self.ttft_ms + (self.tokens - 1) * self.tpot_ms) / 1000

    def requests(self, seconds: float) -> int:
        """Requests that keep the window open for about `seconds`, and no fewer than the percentiles need."""
        return max(_LEAST_REQUESTS, math.ceil(seconds * self.streams / self.request_s), self.streams)

    def seconds(self, seconds: float) -> float:
        """About how long it takes: the window, warm-up, ramp and drain, and the start of a process."""
        return self.requests(seconds) * self.request_s / self.streams + 4 * self.request_s + 1.5


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Which loads, for how long, how often."""

    loads: tuple[Load, ...]
    seconds: float
    runs: int

    @property
    def duration_s(self) -> float:
        return sum(self.runs * load.seconds(self.seconds) for load in self.loads)


def grid(streams: Iterable[int], per_stream: Iterable[float], most: float) -> tuple[Load, ...]:
    """Every number of streams at every rate per stream, none above `most` tokens per second in all."""
    rates = tuple(per_stream)
    loads = dict.fromkeys((count, min(count * rate, most)) for count in streams for rate in rates)
    return tuple(Load(streams=count, tokens_per_s=float(rate)) for count, rate in loads)


PRESETS: Final = {
    "quick": Preset(loads=grid((1, 8, 64, 256, 1000), (100,), 25_600), seconds=4, runs=1),
    "full": Preset(
        loads=(*grid((1, 8), (100, 400), 40_000), *grid((64, 256, 1000), (25, 100, 400), 40_000)), seconds=5, runs=3
    ),
}


def calibrate(
    settings: Settings,
    preset: Preset | str = "quick",
    *,
    progress: Progress | None = None,
    spawn: Callable[..., Any] | None = None,
) -> Calibration:
    """Measure every load of the preset and save the result. Replaces what was there for this host and version.

    Client and server run on this host, as they do in a benchmark of a local server. Raises `CalibrationError` when a
    point cannot be measured; what was saved before stays then.
    """
    from neuronbench import environment
    from neuronbench.processes import spawn as default_spawn
    from neuronbench.testing.truth_server import TruthServer

    chosen = PRESETS[preset] if isinstance(preset, str) else preset
    say = progress or (lambda text: None)
    warnings = environment.host_warnings()
    runs: dict[Load, list[CalibrationPoint]] = {load: [] for load in chosen.loads}
    with tempfile.TemporaryDirectory(prefix="neuronbench-calibration-") as scratch, TruthServer() as server:
        # Runs interleave, so that a disturbance does not fall on all runs of one load.
        for run in range(chosen.runs):
            for load, points in runs.items():
                label = f"{load.streams} streams × {load.tokens_per_s:.0f} tok/s"
                where = f", run {run + 1} of {chosen.runs}" if chosen.runs > 1 else ""
                say(f"{label}{where}")
                folder = Path(scratch, f"{load.streams}-{load.tokens_per_s:.0f}-{run}")
                points.append(
                    _measure(load, chosen.seconds, folder, server, spawn or default_spawn, f"{label}{where}", say)
                )
    calibration = Calibration(
        host=store.host_key(),
        version=neuronbench.__version__,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        preset=preset if isinstance(preset, str) else "custom",
        points=tuple(median_of(points) for points in runs.values()),
        facts=store.host_facts(),
        warnings=tuple(warnings),
    )
    store.save(settings, calibration)
    return calibration


def _measure(
    load: Load,
    seconds: float,
    folder: Path,
    server: TruthServer,
    spawn: Callable[..., Any],
    label: str,
    say: Callable[[str], None],
) -> CalibrationPoint:
    from neuronbench.calibration.errors import compare, spread
    from neuronbench.load.arrivals import closed_loop
    from neuronbench.load.plan import make_plan
    from neuronbench.load.run import drive, reduce_run
    from neuronbench.load.workload import dataset, warm_up

    requests = load.requests(seconds)
    server.reset()
    rows = _write_bodies(folder / "bodies.jsonl", load, requests + 6 * load.streams + 2)
    plan = make_plan(
        folder / "plan",
        arrivals=closed_loop(load.streams, requests=requests),
        workload=dataset(rows, format="bodies", output_tokens=load.tokens),
        api="completions",
        model="truth",
        warmup=warm_up(min(load.streams, 32) + 1),
    )
    driven = drive(
        plan,
        base_url=server.url,
        out=folder / "out",
        spawn=spawn,
        progress=lambda text: say(f"{label}: {text}"),
        deadline_s=_POINT_DEADLINE_S,
    )
    if driven.status != "ok":
        raise CalibrationError(f"{label}: the client ended with {driven.status}: {driven.message}")
    reduction = reduce_run(plan, folder / "out", drive=driven)
    truth = server.truth()
    errors = compare(folder / "out", body_models(plan.folder), truth["requests"])
    if not len(errors.ttft):
        raise CalibrationError(f"{label}: none of {requests} requests could be compared ({errors.failed} failed)")
    late = truth["summary"]["lateness_us"]["p99"]
    rate, cpu = reduction["output_throughput_tok_s"], reduction["client_cpu_pct"]
    return CalibrationPoint(
        streams=load.streams,
        tokens_per_s=rate or 0.0,
        asked_tokens_per_s=load.tokens_per_s,
        ttft_ms=spread(errors.ttft),
        chunk_ms=spread(errors.chunk),
        tpot_ms=spread(errors.tpot),
        lag_p99_ms=reduction["client_lag_p99_ms"],
        cpu_us_per_token=1e4 * cpu / rate if cpu is not None and rate else None,
        server_late_p99_ms=late / 1000 if late is not None else None,
        runs=1,
        ttft_p99_range_ms=None,
        failed=errors.failed,
    )


def _write_bodies(path: Path, load: Load, count: int) -> Path:
    """Requests that are told apart by the last digits of their TTFT, far below a nanosecond."""
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8") as file:
        for index in range(count):
            model = f"truth:tpot={load.tpot_ms!r},ttft={load.ttft_ms:.6f}{index:08d}"
            prompt = [1000 + index % 60_000] + [7] * (_PROMPT_TOKENS - 1)
            file.write(json.dumps({"model": model, "prompt": prompt}) + "\n")
    return path


def body_models(plan: Path) -> list[str]:
    """The model that each body of a plan names, warm-up bodies first."""
    from neuronbench.load.planfile import PlanView

    view = PlanView(plan)
    return [json.loads(bytes(view.body(index)))["model"] for index in range(view.warmup + view.count)]


def median_of(points: Sequence[CalibrationPoint]) -> CalibrationPoint:
    """One point of several runs at the same load: the median of each figure, failures added up."""

    def middle(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    def spread(name: str) -> Spread:
        found: list[Spread] = [getattr(point, name) for point in points]
        figures = {key: middle(getattr(one, key) for one in found) for key in ("p50", "p90", "p99", "max")}
        return Spread(**figures, n=sum(one.n for one in found))

    p99 = [point.ttft_ms.p99 for point in points if point.ttft_ms.p99 is not None]
    return CalibrationPoint(
        streams=points[0].streams,
        tokens_per_s=middle(point.tokens_per_s for point in points) or 0.0,
        asked_tokens_per_s=points[0].asked_tokens_per_s,
        ttft_ms=spread("ttft_ms"),
        chunk_ms=spread("chunk_ms"),
        tpot_ms=spread("tpot_ms"),
        lag_p99_ms=middle(point.lag_p99_ms for point in points),
        cpu_us_per_token=middle(point.cpu_us_per_token for point in points),
        server_late_p99_ms=middle(point.server_late_p99_ms for point in points),
        runs=len(points),
        ttft_p99_range_ms=(min(p99), max(p99)) if len(p99) > 1 else None,
        failed=sum(point.failed for point in points),
    )
