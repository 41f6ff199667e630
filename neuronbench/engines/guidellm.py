"""guidellm: several processes with httpx, wall clock.

Its definitions: the clock starts as the request's first byte is written; TTFT as ours. What it calls time per output
token is (l − w)/n, the first token included: not ours. What it calls inter-token latency is (l − f)/(n − 1) per
request, weighted by tokens: our TPOT, where all answers have one length. It has no distribution of gaps, and its
request latency runs to the end of the body.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.base import WHOLE_RUN, Column, EngineError, Flag, Reading, mapped, number, read_json
from neuronbench.engines.job import Job
from neuronbench.model import Json, Metric

RESULT: Final = "guidellm.json"
_SERVER: Final = "server.json"
_MOST_IN_FLIGHT: Final = 2000
_OWN: Final = (
    "time_to_first_token_ms", "time_per_output_token_ms", "inter_token_latency_ms", "request_latency",
    "requests_per_second", "output_tokens_per_second", "request_concurrency",
)  # fmt: skip


class GuideLLM:
    name: str = "guidellm"
    distributions: tuple[str, ...] = ("guidellm",)
    private: tuple[str, ...] = (_SERVER,)

    def program(self, python: Path) -> list[str]:
        return [str(python.with_name("guidellm")), "run"]

    def flags(self, job: Job, folder: Path) -> list[Flag]:
        # The whole server goes into a file, because the key may not be seen on a command line.
        server = {
            "kind": "openai_http",
            "target": job.url,
            "model": job.model,
            "request_format": "/v1/chat/completions" if job.api == "chat" else "/v1/completions",
            "extras": {"body": {"temperature": 0}},
        }
        if job.api_key:
            server["api_key"] = job.api_key
        handle = os.open(folder / _SERVER, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"metadata": {"name": "neuronbench"}, "spec": {"backend": server}}, file)
        if job.concurrency is not None:
            profile: dict[str, Json] = {"kind": "concurrent", "streams": [job.concurrency]}
        else:
            profile = {"kind": job.arrivals, "rate": [job.rate], "max_concurrency": _MOST_IN_FLIGHT}
        if job.duration_s is not None:
            constraint: dict[str, Json] = {"kind": "max_duration", "seconds": job.duration_s}
        else:
            constraint = {"kind": "max_requests", "count": job.count}
        lengths = {"kind": "synthetic_text", "prompt_tokens": job.input_tokens, "output_tokens": job.output_tokens}
        flags = [
            Flag(name="--config", value=str(folder / _SERVER)),
            Flag(name="--profile", value=json.dumps(profile)),
            Flag(name="--constraint", value=json.dumps(constraint)),
            Flag(name="--data", value=json.dumps(lengths)),
            Flag(name="--seed", value=json.dumps({"kind": "static", "value": job.seed})),
            Flag(name="--output", value=json.dumps({"kind": "json", "path": str(folder / RESULT)})),
            Flag(name="--disable-console", required=False),
        ]
        if job.tokenizer is not None:
            flags.append(
                Flag(name="--tokenizer", value=json.dumps({"kind": "huggingface_auto", "model": str(job.tokenizer)}))
            )
        if job.warmup:
            raise EngineError("guidellm has no warm-up by a number of requests: leave --warmup out", usage=True)
        return flags

    def environment(self, job: Job) -> dict[str, str | None]:
        return {}

    def read(self, job: Job, folder: Path) -> Reading:
        return self.parse(read_json(folder / RESULT, "guidellm"))

    def parse(self, data: Any) -> Reading:
        """What the tool's JSON says; a file of another form raises what a missing key or a wrong type raises."""
        (benchmark,) = data["benchmarks"]
        metrics = benchmark["metrics"]
        totals = metrics.get("request_totals") or benchmark["request_totals"]  # there until 0.3
        succeeded, failed = int(totals["successful"]), int(totals["errored"])
        cut_off = int(totals["incomplete"])
        columns = [
            Column(
                id="ttft",
                values=_stats(metrics["time_to_first_token_ms"]),
                n=succeeded,
                note="on the wall clock of several processes",
            )
        ]
        absent = {
            "icl": "the tool keeps no gaps between chunks",
            "e2e": "its request latency runs to the end of the body",
            "output_throughput": WHOLE_RUN,
            "request_throughput": WHOLE_RUN,
        }
        lengths = metrics["output_token_count"]["successful"]
        if lengths["min"] == lengths["max"]:
            columns.append(
                Column(
                    id="tpot",
                    values=_stats(metrics["inter_token_latency_ms"]),
                    n=succeeded,
                    note="called inter-token latency there; (l − f)/(n − 1)",
                )
            )
        else:
            absent["tpot"] = "its figure is weighted by tokens, and the answers differ in length"
        return Reading(
            metrics=mapped(
                columns, failed=failed, succeeded=succeeded, absent=absent, extra=_tokens(metrics, succeeded)
            ),
            own={name: _flat(metrics[name]["successful"]) for name in _OWN if metrics.get(name)},
            succeeded=succeeded,
            failed=failed,
            errors=sorted({str(_error(one))[-300:] for one in benchmark["requests"]["errored"]})[:5],
            notes=[
                *([f"{cut_off} requests were in flight at the end and are in no figure"] if cut_off else []),
                *(str(warning.get("message")) for warning in benchmark.get("warnings") or ()),
            ],
        )


def _stats(summary: Any) -> dict[str, float | None]:
    """Of the successes, in milliseconds."""
    one = summary["successful"]
    if not one["count"]:
        return {}
    percentiles = one["percentiles"]
    return {
        **{stat: number(percentiles.get(stat)) for stat in ("p50", "p90", "p99")},
        "mean": number(one["mean"]),
        "max": number(one["max"]),
    }


def _tokens(metrics: Any, succeeded: int) -> list[Metric]:
    names = {"input_tokens": "prompt_token_count", "output_tokens": "output_token_count"}
    return [
        metric(id_, number(metrics[theirs]["successful"]["mean"]), stat="mean", n=succeeded, note="by usage")
        for id_, theirs in names.items()
        if succeeded
    ]


def _flat(summary: Any) -> dict[str, Json]:
    kept = {name: number(summary.get(name)) for name in ("mean", "median", "min", "max", "std_dev", "count")}
    return {**kept, **{name: number(value) for name, value in (summary.get("percentiles") or {}).items()}}


def _error(request: Any) -> Any:
    info = request.get("info") or {}
    return info.get("error") or request.get("error") or "error"
