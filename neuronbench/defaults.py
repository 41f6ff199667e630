"""What the core itself registers: its lanes, the MLflow sink, and the default way to boot and to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronbench.hookspecs import hookimpl
from neuronbench.model import Metric, Point, Record
from neuronbench.protocols import LaneInfo, SinkInfo, Unsupported


@hookimpl
def register_lanes(register: Callable[[LaneInfo], None]) -> None:
    register(
        LaneInfo(
            name="serving",
            title="A served model behind an OpenAI-compatible API",
            headline=(
                "ttft_p50_ms",
                "ttft_p99_ms",
                "tpot_p50_ms",
                "output_throughput_tok_s",
                "request_throughput_req_s",
                "error_rate_share",
            ),
            needs=("endpoint",),
        )
    )
    register(
        LaneInfo(
            name="encoder",
            title="A compiled encoder called in a loop",
            headline=("latency_p50_ms", "latency_p99_ms", "throughput_items_s", "max_abs_err", "accuracy_ratio"),
            needs=("compiled_model",),
        )
    )
    register(
        LaneInfo(
            name="embedding",
            title="Sentence embeddings, pooled and of length 1",
            headline=("latency_p50_ms", "latency_p99_ms", "throughput_items_s", "input_token_throughput_tok_s"),
            needs=("compiled_model",),
        )
    )
    register(
        LaneInfo(
            name="seq2seq",
            title="Text to text: an encoder and a greedy decoder, a fixed number of tokens",
            headline=(
                "latency_p50_ms",
                "latency_per_token_p50_ms",
                "latency_per_token_p99_ms",
                "total_token_throughput_tok_s",
                "output_token_throughput_tok_s",
            ),
            needs=("compiled_model",),
        )
    )
    register(
        LaneInfo(
            name="vision",
            title="Image models: classifiers, encoders, the towers of CLIP",
            headline=("latency_p50_ms", "latency_p99_ms", "throughput_items_s", "max_abs_err"),
            needs=("compiled_model",),
        )
    )
    register(
        LaneInfo(
            name="asr",
            title="Speech to text, sound in, tokens out",
            headline=("latency_p50_ms", "rtf_p50", "rtf", "output_token_throughput_tok_s"),
            needs=("compiled_model",),
        )
    )
    register(
        LaneInfo(
            name="host",
            title="What the host can do at best",
            headline=("memory_bandwidth_max_GB_s", "matmul_rate_max_GFLOP_s", "tokenizer_rate_tok_s"),
            leads=True,
        )
    )
    register(
        LaneInfo(
            name="microbench",
            title="Functions timed by pytest-benchmark",
            headline=("call_time_p50_ms", "call_time_p99_ms", "call_time_mean_ms"),
        )
    )


@hookimpl
def register_sinks(register: Callable[[SinkInfo], None]) -> None:
    register(SinkInfo(name="mlflow", title="MLflow tracking", target="neuronbench.sinks.mlflow:MlflowSink"))


@hookimpl
def finish_record(record: Record) -> list[Metric]:
    from neuronbench import beside_published

    return beside_published.add(record)


@hookimpl(trylast=True)
def measuring(run: Callable[[], Any]) -> Any:
    return run()


@hookimpl(trylast=True)
def check_point(point: Point) -> Unsupported | None:
    """Prompt and answer must fit the context that the point asks for."""
    asked = [point.get("input_tokens"), point.get("output_tokens"), point.get("max_model_len")]
    if not all(isinstance(number, int) for number in asked) or asked[0] + asked[1] <= asked[2]:
        return None
    return Unsupported(
        reason=f"{asked[0]} input + {asked[1]} output tokens do not fit a context of {asked[2]} (max_model_len)"
    )
