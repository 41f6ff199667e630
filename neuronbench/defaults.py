"""What the core itself registers: its lanes, the MLflow sink, and the default way to boot and to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronbench.hookspecs import hookimpl
from neuronbench.protocols import LaneInfo, SinkInfo


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
                "e2e_p50_ms",
                "output_throughput_tok_s",
                "request_throughput_req_s",
                "error_rate_share",
            ),
            needs=("endpoint",),
        )
    )


@hookimpl
def register_sinks(register: Callable[[SinkInfo], None]) -> None:
    register(SinkInfo(name="mlflow", title="MLflow tracking", target="neuronbench.sinks.mlflow:MlflowSink"))


@hookimpl(trylast=True)
def measuring(run: Callable[[], Any]) -> Any:
    return run()
