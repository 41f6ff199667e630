"""What the core itself registers: its lanes, the MLflow sink, and the default way to boot and to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronbench.hookspecs import hookimpl
from neuronbench.model import Metric, Point, Record
from neuronbench.protocols import LaneInfo, SinkInfo, Unsupported

NEURONBENCH_API = "1.1"


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
                "max_rate_under_slo_req_s",
                "goodput_req_s",
                "audits_passed_audits",
            ),
            needs=("endpoint",),
        )
    )
    register(
        LaneInfo(
            name="quantization",
            title="Quantised forms of a served model beside itself",
            headline=(
                "output_throughput_tok_s",
                "tpot_p50_ms",
                "weights_size_bytes",
                "kv_bytes_per_token_bytes",
                "accuracy_ratio",
            ),
            needs=("endpoint",),
            definitions={
                "weights_size": ("B", "lower", "bytes of the weight files that the server loaded"),
                "kv_bytes_per_token": ("B", "lower", "bytes of the KV cache / tokens that fit into it, by the server"),
                "changed_tokens": (
                    "share", None, "greedy tokens after random prompts that are not the unquantised server's / all"
                ),
                "vs_unquantized": ("", None, "what the server did / the same of the unquantised one in this session"),
            },
        )
    )  # fmt: skip
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
            name="nki",
            title="Kernels of NKI on one NeuronCore, timed by the SDK's own loop",
            headline=("kernel_time_p50_us", "kernel_time_p99_us", "max_abs_err"),
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
    for lane in _training_lanes():
        register(lane)
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


RATES = ("train_throughput_tok_s", "step_time_p50_ms", "step_time_wall_ms", "mfu_pct")
LOSSES = ("loss_first", "loss_last")


def _training_lanes() -> list[LaneInfo]:
    needs = ("trainer",)

    def lane(name: str, title: str, *headline: str) -> LaneInfo:
        return LaneInfo(name=name, title=title, headline=headline, needs=needs)

    return [
        lane("lora_sft", "Fine-tuning with a low-rank adapter", *RATES, *LOSSES),
        lane("full_sft", "Fine-tuning of all weights", *RATES, *LOSSES),
        lane("preference", "Preference tuning on pairs of answers", *RATES, *LOSSES, "preference_accuracy_share"),
        lane("pretrain", "Training from random weights, in parallel too", *RATES, *LOSSES, "scaling_efficiency_share"),
        lane(
            "checkpoint",
            "What saving and restoring costs, and whether training goes on as if nothing had happened",
            "checkpoint_time_mean_s",
            "checkpoint_size_bytes",
            "restore_time_s",
            "step_time_p50_ms",
            "loss_difference_max",
        ),
        lane(
            "quality",
            "Loss on what was never trained on, before and after",
            "holdout_loss_before",
            "holdout_loss_after",
            "holdout_loss_ratio",
            *LOSSES,
        ),
        lane("data_isolation", "Real input against synthetic of equal shapes", *RATES, "input_cost_share"),
        lane("batch_ladder", "Rates over the micro-batch, up to the wall", *RATES, "largest_batch_sequences"),
        lane("context_ladder", "Rates over the sequence length, up to the wall", *RATES, "largest_context_tokens"),
        lane(
            "determinism",
            "Same seed, same losses to the bit; another seed, others",
            "loss_difference_max",
            "loss_last",
            "train_throughput_tok_s",
        ),
        LaneInfo(
            name="e2e",
            title="Train, merge, ship, serve: what is served is what was trained",
            headline=(
                "train_to_serve_time_s",
                "train_throughput_tok_s",
                "loss_last",
                "ttft_p50_ms",
                "tpot_p50_ms",
                "output_throughput_tok_s",
            ),
            needs=("trainer", "endpoint"),
        ),
    ]


@hookimpl
def register_sinks(register: Callable[[SinkInfo], None]) -> None:
    register(SinkInfo(name="mlflow", title="MLflow tracking", target="neuronbench.sinks.mlflow:MlflowSink"))


@hookimpl
def finish_record(record: Record) -> list[Metric]:
    from neuronbench import beside_published, costs

    return [*beside_published.add(record), *costs.of(record)]


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
