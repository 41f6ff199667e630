"""What the core itself registers: its lanes, the MLflow sink, and the default way to boot and to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronbench.hookspecs import hookimpl
from neuronbench.model import Point
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
            headline=("latency_p50_ms", "latency_p99_ms", "throughput_items_s", "max_abs_err"),
            needs=("compiled_model",),
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
