"""Results of other measuring tools for served models, in our ids where the definitions agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.aiperf import AIPerf
from neuronbench.engines.base import WHOLE_RUN, Column, Reading, mapped, number
from neuronbench.engines.guidellm import GuideLLM
from neuronbench.engines.vllm import VLLM
from neuronbench.importers import guidellm_first
from neuronbench.importers.base import Imported, instant, mapping, plain, text, whole
from neuronbench.importers.safe import few_enough, read_json, read_json_lines
from neuronbench.model import Failure, Gate, Json

LANE: Final = "serving"
_UNCHECKED: Final = Gate(
    id="token_conservation",
    passed=None,
    severity="info",
    message="a summary has neither the server's counters nor the single requests: its tokens cannot be checked",
)


def vllm(path: Path) -> Sequence[Imported]:
    """`vllm bench serve --save-result`: one result a file, or one a line with `--append-result`."""
    results = [mapping(one, "the result") for one in read_json_lines(path)]
    names = [path.stem] if len(results) == 1 else [f"{path.stem}-{index}" for index in range(len(results))]
    return [_vllm(path, name, data) for name, data in zip(names, results, strict=True)]


def _vllm(path: Path, name: str, data: Mapping[str, Any]) -> Imported:
    reading = VLLM().parse(data)
    concurrency, rate = whole(data.get("max_concurrency")), number(data.get("request_rate"))
    lengths = {
        name: _exact(data.get(total), reading.succeeded)
        for name, total in (("input_tokens", "total_input_tokens"), ("output_tokens", "total_output_tokens"))
    }
    params = _params(model=text(data["model_id"]), concurrency=concurrency, rate=rate, **lengths)
    return _served(path, name, params, reading, measured_at=instant(data.get("date")))


def guidellm(path: Path) -> Sequence[Imported]:
    """guidellm's JSON: one result a benchmark (a rate or a number of streams) of its list."""
    data = mapping(read_json(path), "the result")
    if guidellm_first.is_first(data):
        runs = guidellm_first.benchmarks(data)
        few_enough(path, len(runs))
        return [_first(path, index, each) for index, each in enumerate(runs)]
    found = []
    few_enough(path, len(data["benchmarks"]))
    for index, benchmark in enumerate(data["benchmarks"]):
        reading = GuideLLM().parse({"benchmarks": [benchmark]})
        strategy = mapping(_strategy(benchmark), "its strategy")
        kind = text(strategy.get("type_") or strategy.get("kind") or "unknown")
        params = _params(
            arrivals=kind, concurrency=whole(strategy.get("streams")), rate=number(strategy.get("rate")),
            model=plain(_model(data, benchmark)),
        )  # fmt: skip
        found.append(_served(path, f"{path.stem}-{index}-{kind}", params, reading, measured_at=_begun(benchmark)))
    return found


def _first(path: Path, index: int, benchmark: Mapping[str, Any]) -> Imported:
    mode = text(benchmark["mode"])
    concurrency = 1 if mode == "synchronous" else None
    params = _params(arrivals=mode, concurrency=concurrency, rate=number(benchmark.get("rate")))
    return _served(path, f"{path.stem}-{index}-{mode}", params, guidellm_first.parse(benchmark))


def _strategy(benchmark: Mapping[str, Any]) -> Any:
    """Under `config` now, under `args` until 0.3."""
    for place in ("config", "args", "scheduler"):
        part = benchmark.get(place)
        if isinstance(part, Mapping) and part.get("strategy"):
            return part["strategy"]
    return {}


def _model(data: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Any:
    """What the tool's versions (0.8, 0.4 to 0.7, 0.2 and 0.3) say of the model; None for the server's default."""
    for part, names in (
        (data, ("config", "spec", "backend", "model")), (data, ("args", "model")),
        (benchmark, ("config", "backend", "model")), (benchmark, ("worker", "backend_model")),
    ):  # fmt: skip
        found: Any = part
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, str):
            return found
    return None


def _begun(benchmark: Mapping[str, Any]) -> str:
    """When it began: seconds since 1970 there."""
    seconds = number(benchmark.get("start_time"))
    if seconds is None or not 0 < seconds < 1e11:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def aiperf(path: Path) -> Sequence[Imported]:
    """aiperf's `profile_export_aiperf.json`."""
    data = mapping(read_json(path), "the result")
    reading = AIPerf().parse(data)
    if not reading.succeeded and not reading.failed:
        raise KeyError("request_count")
    config = mapping(data.get("input_config") or {}, "input_config")
    load, items = _aiperf_load(config), mapping(config.get("models") or {}, "models").get("items")
    names = [mapping(one, "a model")["name"] for one in items or ()]
    names += (config.get("endpoint") or {}).get("model_names") or ()
    rate = number(load.get("rate", load.get("request_rate")))
    params = _params(model=plain(names[0] if names else None), concurrency=whole(load.get("concurrency")), rate=rate)
    return [_served(path, path.stem, params, reading, measured_at=instant(data.get("start_time")))]


def _aiperf_load(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The load that was measured: the one profiling phase now, `loadgen` in older files; of several phases none."""
    phases = [mapping(one, "a phase") for one in config.get("phases") or ()]
    measured = [one for one in phases if "warmup" not in (one.get("kind"), one.get("name"))]
    if phases:
        return measured[0] if len(measured) == 1 else {}
    return mapping(config.get("loadgen") or {}, "loadgen")


def llmperf(path: Path) -> Sequence[Imported]:
    """llmperf's `*_summary.json`: a closed loop, successes only.

    Its inter-token latency counts the first token or does not, by the patch it was run with, so that it is nobody's
    definition; its end-to-end latency runs to the end of the body.
    """
    data = mapping(read_json(path), "the summary")
    done, errors = whole(data["results_num_completed_requests"]) or 0, whole(data["results_number_errors"]) or 0
    quantiles = {
        stat: _ms(data.get(f"results_ttft_s_{theirs}"))
        for stat, theirs in (("p50", "quantiles_p50"), ("p90", "quantiles_p90"), ("p99", "quantiles_p99"),
                             ("mean", "mean"), ("max", "max"))
    }  # fmt: skip
    columns = [Column(id="ttft", values=quantiles, n=done, note="on the wall clock, around the client library")]
    absent = {
        "tpot": "its inter-token latency has no fixed definition: with or without the first token, by patch",
        "icl": "the tool keeps a mean per request only",
        "e2e": "to the end of the body",
        "output_throughput": WHOLE_RUN,
        "request_throughput": WHOLE_RUN,
    }
    lengths = [
        metric(id_, number(data.get(f"results_number_{id_}_mean")), stat="mean", n=done, note="by its own tokenizer")
        for id_ in ("input_tokens", "output_tokens")
    ]
    reading = Reading(
        metrics=mapped(columns, failed=errors, succeeded=done, absent=absent, extra=lengths),
        own={key: plain(value) for key, value in data.items() if key.startswith("results_")},
        succeeded=done,
        failed=errors,
    )
    params = _params(
        model=plain(data.get("model")), concurrency=whole(data.get("num_concurrent_requests")),
        input_tokens=whole(data.get("mean_input_tokens")), output_tokens=whole(data.get("mean_output_tokens")),
    )  # fmt: skip
    return [_served(path, path.stem, params, reading)]


def inference_perf(path: Path) -> Sequence[Imported]:
    """inference-perf's life cycle report (a stage's, or the summary).

    Its time per output token divides by the number of chunks, its request latency runs to the end of the body.
    """
    data = mapping(read_json(path), "the report")
    successes, failures = mapping(data["successes"], "successes"), mapping(data["failures"], "failures")
    latency = mapping(successes["latency"], "successes.latency")
    done, failed = whole(successes["count"]) or 0, whole(failures["count"]) or 0
    columns = [
        Column(
            id=id_,
            values={
                stat: _ms(latency[theirs].get(name))
                for stat, name in (("p50", "median"), ("p90", "p90"), ("p99", "p99"), ("mean", "mean"), ("max", "max"))
            },
            n=done,
            note=note,
        )
        for id_, theirs, note in (
            ("ttft", "time_to_first_token", "percentiles interpolate between observations"),
            ("icl", "inter_token_latency", "called inter-token latency there: gaps between chunks"),
        )
        if isinstance(latency.get(theirs), Mapping)
    ]
    absent = {
        "tpot": "its figure divides by the number of chunks, not of tokens",
        "e2e": "to the end of the body",
        "output_throughput": WHOLE_RUN,
        "request_throughput": WHOLE_RUN,
    }
    throughput = mapping(successes.get("throughput") or {}, "successes.throughput")
    own: dict[str, Json] = {f"throughput.{name}": number(value) for name, value in throughput.items()}
    for name, summary in latency.items():
        if isinstance(summary, Mapping):
            own |= {f"{name}.{stat}": number(value) for stat, value in summary.items()}
    load = mapping(data.get("load_summary") or {}, "load_summary")
    reading = Reading(
        metrics=mapped(columns, failed=failed, succeeded=done, absent=absent),
        own=own,
        succeeded=done,
        failed=failed,
    )
    params = _params(rate=number(load.get("requested_rate")), concurrency=whole(load.get("concurrency")))
    return [_served(path, path.stem, params, reading)]


# --------------------------------------------------------------------------------------------------------------------


def _served(path: Path, name: str, params: Mapping[str, Json], reading: Reading, *, measured_at: str = "") -> Imported:
    if reading.succeeded < 0 or reading.failed < 0:
        raise ValueError(f"{reading.succeeded} requests succeeded, {reading.failed} failed")
    error = None
    if not reading.succeeded:
        said = "; ".join(text(one) for one in reading.errors) or "no request succeeded"
        error = Failure(kind="all_failed", phase="window", message=said, causal_line=said)
    return Imported(
        source=path,
        name=name,
        lane=LANE,
        params=params,
        metrics=list(reading.metrics),
        own={text(key): _bounded(value) for key, value in reading.own.items()},
        gates=[_UNCHECKED] if reading.succeeded else [],
        error=error,
        measured_at=measured_at,
        notes=[text(note) for note in reading.notes][:20],
    )


def _bounded(value: Json) -> Json:
    """Text of a bounded length: a record carries it, and tables show it."""
    if isinstance(value, Mapping):
        return {text(key): _bounded(one) for key, one in list(value.items())[:100]}
    return text(value) if isinstance(value, str) else value


def _params(**given: Json) -> dict[str, Json]:
    return {name: value for name, value in given.items() if value is not None}


def _exact(total: Any, requests: int) -> int | None:
    """Tokens per request, where all requests can have had the same number."""
    tokens = whole(total)
    return tokens // requests if tokens is not None and requests and tokens % requests == 0 else None


def _ms(value: Any) -> float | None:
    seconds = number(value)
    return None if seconds is None else 1e3 * seconds
