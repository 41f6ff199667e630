"""Receipts of served models: points of a sweep, of a rate search, of a sustained run; boots and grids.

The study's client counts pieces of text that are not empty, and nothing else: its tokens, its time per token and its
throughput have no definition of ours. Its time to first token starts before the connection is opened, its end to end
ends with the body. See `load.hidden` and `load.openness` for what can be said of such totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.base import WHOLE_RUN, Column, mapped
from neuronbench.importers.base import Imported, mapping, plain, text, whole
from neuronbench.importers.study.files import Place, Samples
from neuronbench.importers.study.made import (
    enough,
    few_gate,
    null,
    number_of,
    result,
    samples_of,
    telemetry_gates,
)
from neuronbench.load.gates import ERROR_LIMIT
from neuronbench.load.hidden import hidden_tokens_gate
from neuronbench.load.openness import achieved_rate_gate, in_flight_gate
from neuronbench.model import Failure, Gate, Json, Metric
from neuronbench.telemetry.aliasing import aliasing_gate

LANE: Final = "serving"
_INTERPOLATED: Final = "percentiles interpolate between observations"
_PIECES: Final = "its client counts pieces of text, not tokens by the server's usage"
_ABSENT: Final = {
    "tpot": _PIECES,
    "e2e": "to the end of the body",
    "output_throughput": WHOLE_RUN,
    "request_throughput": WHOLE_RUN,
    "achieved_rate": WHOLE_RUN,
    "goodput": "in tokens per second; an undefined TPOT counts as good, and TTFT starts when a thread is free",
}
_UNCHECKED: Final = Gate(
    id="token_conservation",
    passed=None,
    severity="info",
    message="neither the server's counters nor its usage are in the receipt",
)


def point(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A point under load, closed (`max_concurrency` at a time) or by Poisson arrivals."""
    done, failed = whole(data["completed"]), whole(data["failed"])
    if done is None or failed is None or done < 0 or failed < 0:
        raise ValueError("completed, failed: expected numbers of requests")
    samples = samples_of(place)
    open_loop = data.get("arrival_mode") == "poisson"
    params = {
        "model": text(data["model_id"]),
        "concurrency": None if open_loop else whole(data["max_concurrency"]),
        "rate": number_of(data, "request_rate_offered") if open_loop else None,
        "arrivals": "poisson" if open_loop else None,
        "input_tokens": whole(data["input_len_configured"]),
        "output_tokens": whole(data["output_len_configured"]),
        "option": _option(place),
    }
    gates = [
        _errors(done, failed),
        few_gate(done, f"{done} requests answered"),
        hidden_gate(data, done),
        _UNCHECKED,
        *telemetry_gates(samples),
    ]
    if open_loop:
        gates += _open_gates(data)
    if samples is not None:
        gates.append(_aliasing(data, samples))
    error = None
    if not done:
        said = f"none of {failed} requests was answered"
        error = Failure(kind="all_failed", phase="window", message=said, causal_line=said)
    return [
        result(
            place, data, lane=LANE, params=params, metrics=metrics_of(data, done, failed), gates=gates, error=error,
            samples=samples,
        )
    ]  # fmt: skip


def _option(place: Place) -> str | None:
    """What the receipt itself does not tell, and its folder does: such a point is no repeat of one without it."""
    if "quant" in place.parts:
        return text(place.path.stem.partition("_")[0])
    return "multitenant" if "multitenant" in place.parts else None


def metrics_of(data: Mapping[str, Any], done: int, failed: int) -> list[Metric]:
    pieces = whole(data.get("total_output_tokens")) or 0
    columns = [
        Column(
            id=id_,
            values={stat: number_of(data, f"{stat}_{theirs}_ms") for stat in ("p50", "p90", "p99", "mean")},
            n=n,
            note=f"{note}; {_INTERPOLATED}",
        )
        for id_, theirs, n, note in (
            ("ttft", "ttft", done, "from before the connection was opened, when a thread was free"),
            ("icl", "itl", max(pieces - done, 0), "called ITL there: gaps between pieces of text"),
        )
    ]
    extra = [
        metric("output_tokens", None, stat="mean", n=done, note=_PIECES),
        metric("attainment", None, n=done, note="of the requests that were answered; an undefined TPOT counts as good"),
    ]
    return enough(mapped(columns, failed=failed, succeeded=done, absent=_ABSENT, extra=extra))


def hidden_gate(data: Mapping[str, Any], done: int) -> Gate:
    return hidden_tokens_gate(
        whole(data.get("total_output_tokens")) or 0,
        done,
        whole(data.get("output_len_configured")),
        e2e_ms=number_of(data, "mean_e2el_ms"),
        ttft_ms=number_of(data, "mean_ttft_ms"),
        tpot_ms=number_of(data, "p50_tpot_ms"),
    )


def _errors(done: int, failed: int) -> Gate:
    share = failed / (done + failed) if done + failed else None
    return Gate(
        id="errors",
        passed=None if share is None else share <= ERROR_LIMIT,
        observed=share,
        limit=ERROR_LIMIT,
        unit="share",
        message=f"{failed} of {done + failed} requests failed" if failed else "",
    )


def _open_gates(data: Mapping[str, Any]) -> list[Gate]:
    """Sent in the run without its tail: the last request was sent one end-to-end time before the end, at the latest."""
    duration, tail = number_of(data, "duration") or 0.0, (number_of(data, "p50_e2el_ms") or 0.0) / 1e3
    offered, rate = whole(data.get("requests_offered")) or 0, number_of(data, "request_rate_offered") or 0.0
    return [
        achieved_rate_gate(offered, duration - tail, rate),
        in_flight_gate(whole(data.get("max_concurrent_requests")), whole(data.get("max_concurrency"))),
    ]


def _aliasing(data: Mapping[str, Any], samples: Samples) -> Gate:
    """The executions that a load consists of are steps of decoding, one gap between tokens each."""
    gap = number_of(data, "p50_itl_ms")
    return aliasing_gate(samples.period_s, None if gap is None else gap / 1e3, busy_pct=samples.busy_pct())


# --------------------------------------------------------------------------------------------------------------------


def boot(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A boot until `/health` answers, looked at every five seconds."""
    why = "until the health check answers, looked at every 5 s; ours ends with a verified token"
    before, after = number_of(data, "cache_dir_size_mb_before"), number_of(data, "cache_dir_size_mb_after")
    grown = None if before is None or after is None else after - before
    wall, warm = number_of(data, "boot_wall_s"), data.get("warm")
    if wall is None:
        raise KeyError("boot_wall_s")
    return [
        result(
            place, data, lane=LANE, record="boot", params=server_params(data),
            metrics=null(why, "boot_time"), gates=[_cache_gate(grown, warm)],
        )
    ]  # fmt: skip


def _cache_gate(grown: float | None, warm: Any) -> Gate:
    """The study calls a boot warm by its time; whether anything was compiled is what the cache says."""
    message = (
        "" if grown is None else f"called {'warm' if warm else 'cold'} by its time; the cache grew by {grown:g} MB"
    )
    return Gate(
        id="compiled_at_boot",
        passed=None if grown is None or not isinstance(warm, bool) else (grown > 0) is not warm,
        observed=grown,
        limit=0,
        unit="MB",
        severity="info",
        message=message or "the size of the cache is not told",
    )


def server_params(data: Mapping[str, Any]) -> dict[str, Json | None]:
    return {"model": text(data["model_id"]), "config": plain(data.get("config"))}


def grid(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """What a sweep was to measure: no figures."""
    shapes, concurrency = data["shapes"], data["concurrency"]
    own = {"shapes": text(", ".join(map(str, shapes))), "concurrency": text(", ".join(map(str, concurrency)))}
    return [
        result(place, data, lane=LANE, record="summary", params=server_params(data), own=own,
               notes=["the plan of a sweep"])
    ]  # fmt: skip


def sustained(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """The study's own summary of a sustained run; its iterations are points of their own."""
    rows = _rows(data["per_iteration"], "per_iteration")
    why = "of its last three iterations, whatever their number, by rates over whole runs"
    found = [metric("retention", None, stat=stat, n=len(rows), note=why) for stat in ("vs_first", "vs_best")]
    own = {
        f"per_iteration.{index}.{name}": plain(row.get(name))
        for index, row in enumerate(rows[:50], start=1)
        for name in ("output_tok_s", "ttft_p99_ms", "tpot_p50_ms", "duration_s")
    }
    if whole(data["iterations"]) is None:
        raise ValueError("iterations: expected a whole number")
    return [result(place, data, lane=LANE, record="summary", params={"iterations": whole(data["iterations"])},
                   metrics=found, own={key: value for key, value in own.items() if value is not None})]  # fmt: skip


def _rows(value: Any, what: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise ValueError(f"{what}: expected a list, found {type(value).__name__}")
    return [mapping(row, what) for row in value]


def cold_start(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A machine from nothing to its first token, by stamps somebody wrote down."""
    mapping(data["durations_s"], "durations_s")
    why = "its stamps are written by hand, and one of them is missing"
    return [result(place, data, lane=LANE, record="boot", params={"scenario": plain(data.get("scenario"))},
                   metrics=null(why, "boot_time"), notes=[str(data.get("anomaly_declared") or "")])]  # fmt: skip


def bisect(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """One length of a search for the longest context that a server boots with; a length that did not is a failure."""
    from neuronbench.importers.study.failed import failure_of

    params = {"max_model_len": whole(data["max_model_len"]), "max_num_seqs": whole(data["max_num_seqs"])}
    status = text(data["status"])
    error = None if status == "healthy" else failure_of(place, status, phase="boot")
    return [result(place, data, lane=LANE, record="boot", params=params,
                   metrics=null("only whether it booted is told", "boot_time"), error=error)]  # fmt: skip
