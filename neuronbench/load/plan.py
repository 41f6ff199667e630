"""The plan: everything that is decided before the clock starts, as a folder the driver maps into memory.

Bodies are encoded to bytes here and never touched again. The plan's digest covers the bodies and the index, the
arrivals and the API: equal digests mean that two runs sent the same bytes by the same rule, so it is the workload's
identity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from neuronbench.load import schedule
from neuronbench.load.apis import APIS
from neuronbench.load.arrivals import Arrivals, ClosedLoop, OpenLoop, Trace
from neuronbench.load.bodies import (
    Bodies,
    Request,
    dataset_sets,
    session_bodies,
    synthetic_sets,
    trace_bodies,
)
from neuronbench.load.datasets import file_digest, read_trace
from neuronbench.load.planwriter import Plan, write_plan
from neuronbench.load.workload import Dataset, Synthetic, Warmup, Workload
from neuronbench.model import Json, closest, jsonable
from neuronbench.protocols import Vocabulary

DEFAULT_REQUESTS: Final = 100
"""Requests of a closed loop that was given neither a number nor a duration."""
_FASTEST_TOKEN_S: Final = 0.002
_FASTEST_REQUEST_S: Final = 0.01
"""For the number of bodies of a timed window: no server is expected to answer faster than this."""
_MAX_BODIES: Final = 200_000
_MAX_BLOB_BYTES: Final = 256 << 20
_OPEN_WARM_UP: Final = 32


def make_plan(
    folder: Path,
    *,
    arrivals: Arrivals,
    workload: Workload | Trace,
    api: str,
    model: str,
    vocabulary: Vocabulary | None = None,
    warmup: Warmup | None = None,
    seed: int = 0,
    extra_body: Mapping[str, Json] | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> Plan:
    """Write the plan into `folder` (made if needed, must hold no plan yet) and return it.

    `base_url` is only needed where lengths have to be settled with the server's own tokenizer (chat prompts).
    Raises `ValueError` for what cannot be planned: lengths beyond the model's context, an unknown API, a vocabulary
    that is missing where token-id prompts need one.
    """
    if api not in APIS:
        raise ValueError(f"api: expected one of {', '.join(APIS)}, found {api!r}{closest(api, list(APIS))}")
    if (folder / "plan.json").exists():
        raise FileExistsError(f"{folder} already holds a plan; a plan is never rewritten")
    request = Request(
        api=api,
        model=model,
        extra=extra_body or {},
        vocabulary=vocabulary,
        seed=seed + 1_000_003 * getattr(workload, "seed", 0),
        base_url=base_url,
        api_key=api_key,
    )
    warm = Warmup() if warmup is None else warmup
    if isinstance(arrivals, Trace) and isinstance(workload, Trace):
        return _trace(folder, arrivals, workload, request, warm)
    if isinstance(arrivals, Trace) or isinstance(workload, Trace):
        raise ValueError("a trace gives arrivals and lengths together: pass it as arrivals and as workload")
    if isinstance(arrivals, ClosedLoop):
        return _closed(folder, arrivals, workload, request, warm)
    return _open(folder, arrivals, workload, request, warm)


# --------------------------------------------------------------------------------------------------------------------
# closed loop


def closed_loop_bodies(arrivals: ClosedLoop, output_tokens: int, body_bytes: int) -> tuple[int, str]:
    """How many distinct bodies a closed loop gets, and by which rule.

    With a number of requests: that number, and eight times the concurrency for ramp, hand-over and tail. With a
    duration: as many as the fastest server imaginable could answer in it, up to a cap; a run that uses them up starts
    over with the first, and its record says how often.
    """
    slots = arrivals.concurrency
    if arrivals.duration_s is None:
        requests = arrivals.requests or DEFAULT_REQUESTS
        return requests + 8 * slots + 16, "requests + 8 × concurrency + 16"
    fastest = _FASTEST_REQUEST_S + output_tokens * _FASTEST_TOKEN_S
    wanted = math.ceil(1.5 * slots * (arrivals.duration_s + 10) / fastest)
    cap = max(min(_MAX_BODIES, _MAX_BLOB_BYTES // max(body_bytes, 1)), 4 * slots)
    return min(wanted, cap), "upper bound by duration, capped" if wanted > cap else "upper bound by duration"


def _closed(folder: Path, arrivals: ClosedLoop, workload: Workload, request: Request, warmup: Warmup) -> Plan:
    in_flight = arrivals.concurrency
    warm_count = in_flight + 1 if warmup.requests is None else warmup.requests
    if isinstance(workload, Synthetic):
        shortest = workload.output_tokens if isinstance(workload.output_tokens, int) else workload.output_tokens.low
        count, rule = closed_loop_bodies(arrivals, shortest, 8 * workload.longest_input + 300)
    else:
        count, rule = closed_loop_bodies(arrivals, workload.output_tokens or 1, 4096)
    described: dict[str, Json] = {"kind": "closed", **asdict(arrivals), "in_flight": in_flight, "rate": None}
    if arrivals.duration_s is None and arrivals.requests is None:
        described["requests"] = DEFAULT_REQUESTS
    sets = _sets(request, workload, (warm_count, count))
    return _written(folder, sets, described, request, workload, rule)


def _sets(request: Request, workload: Workload, counts: tuple[int, int]) -> tuple[Bodies, Bodies]:
    if isinstance(workload, Dataset):
        return dataset_sets(request, workload, counts)
    return synthetic_sets(request, workload, counts)


# --------------------------------------------------------------------------------------------------------------------
# open loop and traces


def _open(folder: Path, arrivals: OpenLoop, workload: Workload, request: Request, warmup: Warmup) -> Plan:
    at = schedule.instants(arrivals, request.seed)
    if not len(at):
        raise ValueError("the schedule has no arrival; ask for a higher rate or more time")
    described = _described_open(arrivals, arrivals.rate * arrivals.turns, arrivals.duration_s, arrivals.lead_s)
    described["scheduled"] = schedule.realised(at, arrivals, arrivals.lead_s, arrivals.duration_s)
    warm_count = _open_warm_up(described, warmup)
    columns: dict[str, Sequence[int]] = {}
    if arrivals.turns > 1:
        if not isinstance(workload, Synthetic):
            raise ValueError("sessions: expected a synthetic workload, found a dataset")
        turns = arrivals.turns
        warm, load, session = session_bodies(request, workload, len(at), turns, warm_count)
        due = np.full(len(load.bodies), -1, dtype=np.int64)
        due[::turns] = schedule.to_ns(at)
        think = schedule.to_ns(schedule.think_times(len(load.bodies), arrivals.think_s, request.seed))
        columns = {"due_ns": due, "session": session, "think_ns": think}  # type: ignore[dict-item]
        sets = (warm, load)
    else:
        sets = _sets(request, workload, (warm_count, len(at)))
        columns = {"due_ns": schedule.to_ns(at)}  # type: ignore[dict-item]
    extra = {"sessions": arrivals.turns > 1}
    return _written(folder, sets, described, request, workload, "one per arrival", columns=columns, extra=extra)


def _trace(folder: Path, arrivals: Trace, workload: Trace, request: Request, warmup: Warmup) -> Plan:
    if arrivals != workload:
        raise ValueError("a trace gives arrivals and lengths together: pass the same one as arrivals and as workload")
    rows = read_trace(arrivals)
    at = np.array([row.at_s for row in rows])
    length = float(at[-1]) - arrivals.lead_s + 1e-6
    if length <= 0:
        raise ValueError(f"lead_s: expected less than the trace's {at[-1]:g} s, found {arrivals.lead_s:g}")
    rate = float((at >= arrivals.lead_s).sum()) / length
    described = _described_open(arrivals, rate, length, arrivals.lead_s)
    described["trace_digest"] = file_digest(Path(arrivals.path))
    described["scheduled"] = schedule.realised(at, None, arrivals.lead_s, length)
    sets = trace_bodies(request, rows, _open_warm_up(described, warmup))
    columns: dict[str, Sequence[int]] = {"due_ns": schedule.to_ns(at)}  # type: ignore[dict-item]
    return _written(folder, sets, described, request, workload, "one per arrival", columns=columns)


def _described_open(arrivals: OpenLoop | Trace, rate: float, duration_s: float, lead_s: float) -> dict[str, Json]:
    return {
        "kind": "open",
        **jsonable(asdict(arrivals)),
        "rate": rate,
        "duration_s": duration_s,
        "lead_s": lead_s,
        "requests": None,
        # connections to open beforehand, and the concurrency of the warm-up: about two seconds' worth of arrivals
        "in_flight": min(max(math.ceil(2 * rate), 4), 256),
    }


def _open_warm_up(described: Mapping[str, Json], warmup: Warmup) -> int:
    if warmup.requests is not None:
        return warmup.requests
    return int(min(described["in_flight"], _OPEN_WARM_UP)) + 1


# --------------------------------------------------------------------------------------------------------------------
# writing


def _written(
    folder: Path,
    sets: tuple[Bodies, Bodies],
    arrivals: Mapping[str, Json],
    request: Request,
    workload: Workload | Trace,
    rule: str,
    *,
    columns: Mapping[str, Sequence[int]] | None = None,
    extra: Mapping[str, Json] | None = None,
) -> Plan:
    described = {"kind": type(workload).__name__.lower(), **asdict(workload)}
    if isinstance(workload, Dataset):
        described["file_digest"] = file_digest(Path(workload.path))
    return write_plan(
        folder,
        sets=sets,
        arrivals=arrivals,
        api=request.api,
        model=request.model,
        workload=described,
        seed=request.seed,
        exact=any(length >= 0 for length in sets[1].output_tokens),
        rule=rule,
        columns=columns,
        extra={**sets[1].notes, **dict(extra or {})},
    )


__all__ = ["DEFAULT_REQUESTS", "Plan", "closed_loop_bodies", "make_plan", "write_plan"]
