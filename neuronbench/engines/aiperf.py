"""NVIDIA's aiperf: worker and record processes over ZMQ, aiohttp, monotonic clock.

Its definitions: the clock starts with the request's coroutine, connecting included; TTFT is the first chunk with
output; what it calls inter-token latency is (E2E − TTFT)/(n − 1) per request, our TPOT; its inter-chunk latency is
ours; request latency ends with the last chunk of content, our E2E.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.base import WHOLE_RUN, Column, Flag, Reading, finite, mapped, number, read_json
from neuronbench.engines.job import Job
from neuronbench.model import Json

_KEY: Final = "NEURONBENCH_ENGINE_API_KEY"
_LAUNCH: Final = f"""
import os, sys
key = os.environ.pop("{_KEY}", None)
sys.argv = ["aiperf", *sys.argv[1:], *(["--api-key", key] if key else [])]
from aiperf.cli import app
sys.exit(app())
"""
"""It takes a key from its command line only; this way the process's own, which everybody may read, has none."""
_FOLDER: Final = "aiperf"
_RESULT: Final = "profile_export_aiperf.json"
_NAMES: Final = {
    "ttft": ("time_to_first_token", "from the start of the request's coroutine, connecting included"),
    "tpot": ("inter_token_latency", "called inter-token latency there; ours where the first chunk has one token"),
    "icl": ("inter_chunk_latency", ""),
    "e2e": ("request_latency", "from the start of the request's coroutine, connecting included"),
}
_SKIPPED: Final = ("http_req", "warmup")


class AIPerf:
    name: str = "aiperf"
    distributions: tuple[str, ...] = ("aiperf",)
    private: tuple[str, ...] = ()

    def program(self, python: Path) -> list[str]:
        return [str(python), "-c", _LAUNCH, "profile"]

    def flags(self, job: Job, folder: Path) -> list[Flag]:
        flags = [
            Flag(name="--model", value=job.model),
            Flag(name="--url", value=job.url),
            Flag(name="--endpoint-type", value="chat" if job.api == "chat" else "completions"),
            Flag(name="--streaming"),
            Flag(name="--synthetic-input-tokens-mean", value=str(job.input_tokens)),
            Flag(name="--synthetic-input-tokens-stddev", value="0"),
            Flag(name="--output-tokens-mean", value=str(job.output_tokens)),
            Flag(name="--output-tokens-stddev", value="0"),
            # one JSON word: the option takes everything up to the next one as its own
            Flag(
                name="--extra-inputs",
                value=f'{{"ignore_eos": true, "min_tokens": {job.output_tokens}, "temperature": 0}}',
            ),
            Flag(name="--use-legacy-max-tokens", required=False),
            Flag(name="--use-server-token-count"),
            Flag(name="--random-seed", value=str(job.seed)),
            Flag(name="--output-artifact-dir", value=str(folder / _FOLDER)),
            Flag(name="--ui", value="none", required=False),
            Flag(name="--no-gpu-telemetry", required=False),
            Flag(name="--no-server-metrics", required=False),
        ]
        if job.tokenizer is not None:
            flags.append(Flag(name="--tokenizer", value=str(job.tokenizer)))
        if job.concurrency is not None:
            flags.append(Flag(name="--concurrency", value=str(job.concurrency)))
        else:
            flags += [
                Flag(name="--request-rate", value=repr(job.rate)),
                Flag(name="--arrival-pattern", value=job.arrivals),
            ]
        if job.duration_s is not None:
            flags.append(Flag(name="--benchmark-duration", value=repr(job.duration_s)))
        else:
            flags.append(Flag(name="--request-count", value=str(job.count)))
        if job.warmup:
            flags.append(Flag(name="--warmup-request-count", value=str(job.warmup)))
        return flags

    def environment(self, job: Job) -> dict[str, str | None]:
        changes: dict[str, str | None] = {_KEY: job.api_key, "OPENAI_API_KEY": None}
        if job.tokenizer is not None:
            changes["HF_HUB_OFFLINE"] = None  # with it, aiperf looks for a folder's name in the hub's cache
        return changes

    def read(self, job: Job, folder: Path) -> Reading:
        return self.parse(read_json(folder / _FOLDER / _RESULT, "aiperf"))

    def parse(self, data: Any) -> Reading:
        """What the tool's JSON says; a file of another form raises what a missing key or a wrong type raises."""
        succeeded = int((data.get("request_count") or {}).get("avg") or 0)
        failed = int((data.get("error_request_count") or {}).get("avg") or 0)
        errors = [str(one)[-300:] for one in data.get("error_summary") or ()]
        columns = [
            Column(
                id=id_,
                values=_stats(data[theirs]),
                n=int(data[theirs].get("count") or succeeded),
                note="; ".join(part for part in (note, "percentiles interpolate between observations") if part),
            )
            for id_, (theirs, note) in _NAMES.items()
            if theirs in data
        ]
        notes = [] if data.get("is_complete", True) else ["aiperf calls its run incomplete"]
        return Reading(
            metrics=mapped(
                columns,
                failed=failed,
                succeeded=succeeded,
                absent={"output_throughput": WHOLE_RUN, "request_throughput": WHOLE_RUN},
                extra=[
                    metric(id_, number((data.get(theirs) or {}).get("avg")), stat="mean", n=succeeded, note="by usage")
                    for id_, theirs in (
                        ("input_tokens", "usage_prompt_tokens"),
                        ("output_tokens", "usage_completion_tokens"),
                    )
                    if theirs in data
                ],
            ),
            own=_own(data),
            succeeded=succeeded,
            failed=failed,
            errors=errors[:5],
            notes=notes,
        )


def _stats(summary: Any) -> dict[str, float | None]:
    names = {"p50": "p50", "p90": "p90", "p99": "p99", "mean": "avg", "max": "max"}
    return {stat: number(summary.get(theirs)) for stat, theirs in names.items()}


def _own(data: Any) -> dict[str, Json]:
    """Every figure with a unit."""
    return {
        name: {key: finite(value) for key, value in figure.items() if isinstance(value, (int, float, str))}
        for name, figure in data.items()
        if isinstance(figure, dict) and "unit" in figure and not name.startswith(_SKIPPED)
    }
