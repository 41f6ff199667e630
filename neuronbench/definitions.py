"""Metric definitions: the vocabulary of every number neuronbench writes.

A definition never changes under the same version; a changed meaning is a new version. Instants of a request:
`s` scheduled, `w` first byte written, `f` first chunk with generated output, `c` first chunk of answer text (after
reasoning), `l` last chunk with output, `e` end of body; `n` generated tokens by the server's own count, `m` tokens in
the first chunk. All on one monotonic clock; where the kernel stamps received data, a chunk's instant is the kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from neuronbench.model import Better, Metric, unit_slug


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What a metric id means."""

    id: str
    text: str
    unit: str
    better: Better = None
    version: int = 1


def _table(*rows: tuple[str, str, Better, str]) -> Mapping[str, Definition]:
    return MappingProxyType(
        {id_: Definition(id=id_, unit=unit, better=better, text=text) for id_, unit, better, text in rows}
    )


DEFINITIONS: Final = _table(
    # requests to an endpoint
    ("ttft", "ms", "lower", "time to first token, f − w"),
    ("ttft_due", "ms", "lower", "time to first token from the scheduled instant, f − s"),
    ("ttfat", "ms", "lower", "time to first answer token (after reasoning), c − w"),
    ("tpot", "ms", "lower", "time per output token after the first chunk, (l − f)/(n − m); null when n ≤ m"),
    ("icl", "ms", "lower", "inter-chunk latency: gaps between consecutive output chunks"),
    ("itl", "ms", "lower", "inter-token latency: icl where every chunk carried exactly one token, else null"),
    ("max_stall", "ms", "lower", "longest icl of a request"),
    ("e2e", "ms", "lower", "end to end, l − w"),
    ("e2e_due", "ms", "lower", "end to end from the scheduled instant, l − s"),
    ("send_lag", "ms", "lower", "w − s: how late the client wrote the request"),
    ("client_lag", "ms", "lower", "time of read − kernel receive time, per read"),
    ("output_throughput", "tok/s", "higher", "tokens emitted inside the window / window, by chunk time"),
    ("request_throughput", "req/s", "higher", "requests that ended inside the window / window"),
    ("goodput", "req/s", "higher", "requests scheduled in the window that met every SLO / window"),
    ("attainment", "share", "higher", "share of all scheduled requests that met every SLO"),
    (
        "max_rate_under_slo",
        "req/s",
        "higher",
        "highest rate of Poisson arrivals at which requests were shown to keep every limit; bounds: bracket",
    ),
    ("audits_passed", "audits", "higher", "audits of a server that found nothing, of those that could be made (n)"),
    ("error_rate", "share", "lower", "failed requests / scheduled requests"),
    ("achieved_rate", "req/s", None, "requests written / window"),
    ("in_flight", "requests", None, "time integral of requests in flight / window"),
    ("input_tokens", "tokens", None, "prompt tokens of a request by the server's count"),
    ("output_tokens", "tokens", None, "generated tokens of a request by the server's count"),
    ("tokens_per_chunk", "tokens", None, "generated tokens / output chunks of a request"),
    ("acceptance_rate", "share", "higher", "accepted / drafted tokens, from server counter deltas over the window"),
    ("accepted_per_step", "tokens", "higher", "accepted tokens per verification step, from server counters"),
    ("prefix_hit_rate", "share", "higher", "prefix cache hits / queries, from server counter deltas over the window"),
    ("kv_usage", "share", None, "share of the KV cache in use, mean over the window's samples"),
    ("queue_time", "ms", "lower", "mean time a request waited in the server's queue, from its counters"),
    # what is computed in static shapes
    (
        "prefill_fill",
        "share",
        "higher",
        "prompt tokens / prompt tokens computed, those padded to a compiled size included",
    ),
    (
        "decode_fill",
        "share",
        "higher",
        "sequences that decode / sequences of the compiled sizes that their steps ran in",
    ),
    (
        "useful_compute",
        "share",
        "higher",
        "tokens of use / token slots computed, of prompts and of decode steps together",
    ),
    (
        "device_executions",
        "executions",
        None,
        "compiled programs that the device ran in the window, by the server's count",
    ),
    # the server's process tree
    ("server_cpu", "%", None, "CPU of the server's process tree; 100 % is one core"),
    ("server_rss", "MiB", "lower", "resident memory of the server's process tree"),
    ("client_cpu", "%", None, "CPU of the load driver; 100 % is one core"),
    # boots and compiles
    ("boot_time", "s", "lower", "process start → first verified generated token"),
    ("boot_spawn", "s", "lower", "process start → the engine begins to load"),
    ("boot_weights", "s", "lower", "loading of weights, by the server's own log"),
    ("boot_compile", "s", "lower", "compilation, memory profiling and cache set-up, by the server's own log"),
    ("boot_listen", "s", "lower", "engine ready → the health check answers"),
    ("boot_first_token", "s", "lower", "health check answers → first verified generation"),
    ("boot_buckets", "s", "lower", "first verified generation → a request in each compiled size was answered"),
    ("compile_time", "s", "lower", "wall of producing an artifact, cold"),
    ("load_time", "s", "lower", "wall of loading an artifact"),
    ("export_time", "s", "lower", "wall of tracing a model to a graph, part of compile_time"),
    ("compile_stage", "s", "lower", "wall of one stage of producing an artifact, part of compile_time"),
    ("first_call", "ms", "lower", "the first call of a copy that was just loaded; what loading has put off is in it"),
    ("executable_size", "B", "lower", "bytes of the device's executables within an artifact"),
    ("kernel_time", "us", "lower", "one execution of a kernel on the device, by the SDK's own loop; host left out"),
    ("artifact_size", "B", "lower", "bytes of an artifact on disk"),
    ("graphs", "graphs", None, "graphs that an artifact consists of"),
    ("cache_hits", "artifacts", None, "artifacts found in the cache"),
    ("cache_misses", "artifacts", None, "artifacts that had to be compiled"),
    # device loops
    ("latency", "ms", "lower", "one call, device finished inside the timer"),
    ("latency_wall", "ms", "lower", "wall of the whole loop, last output on the host, / calls"),
    ("throughput", "items/s", "higher", "items finished in the window / window, over all parallel workers"),
    (
        "throughput_wall",
        "items/s",
        "higher",
        "items / wall of the whole loop, last output on the host, over all workers",
    ),
    ("total_token_throughput", "tok/s", "higher", "input (as compiled) and output tokens of finished items / window"),
    ("output_token_throughput", "tok/s", "higher", "output tokens of finished items / window"),
    ("input_token_throughput", "tok/s", "higher", "input tokens (as compiled) of finished items / window"),
    ("latency_per_token", "ms", "lower", "one call / (input tokens, as compiled, + output tokens) of an item"),
    ("latency_per_output_token", "ms", "lower", "one call, its encoder included, / output tokens of an item"),
    ("rtf", "", "lower", "real-time factor: processing wall / seconds of sound"),
    ("measured_over_published", "", None, "measured / published figure, on the same kind of instance only"),
    ("worker_cpu", "%", None, "CPU of the workers' process trees; 100 % is one core"),
    ("worker_rss", "MiB", "lower", "resident memory of the workers' process trees"),
    ("call_time", "ms", "lower", "one call of a function timed by pytest-benchmark, on the timer the record names"),
    ("max_abs_err", "", "lower", "largest difference of the outputs from those of the fp32 reference, same inputs"),
    # accuracy: a candidate beside the fp32 reference, same samples, same protocol; the level is in the note
    ("agreement", "share", "higher", "share of answers that are the reference's, at the level the note names"),
    ("accuracy", "share", "higher", "right answers / all, by the truth of the samples; of transcripts 1 − WER"),
    ("accuracy_ratio", "", "higher", "accuracy / accuracy of the reference, with a paired bootstrap interval"),
    ("error_increase", "share", "lower", "(error rate − the reference's) / the reference's"),
    ("max_rel_err", "", "lower", "largest difference of an output / the reference's largest value of it"),
    ("cosine", "", "higher", "cosine between an item's output and the reference's"),
    ("rank_agreement", "", "higher", "Spearman correlation of all pairwise similarities with the reference's"),
    ("exact_match", "share", "higher", "sequences that are the reference's to the last token / all"),
    ("first_divergence", "tokens", "higher", "tokens before the first that is not the reference's, where there is one"),
    ("token_gap", "nats", "lower", "how much less likely than its own choice the reference holds a chosen token"),
    ("wer", "share", "lower", "(S + I + D) / reference words, normaliser named"),
    # an accelerator by its own monitor
    ("accelerator_utilization", "%", None, "share of time in which a leased core executed; null where samples alias"),
    ("execution_latency", "ms", "lower", "one execution on the device, by the runtime's percentiles of each period"),
    ("executions", "executions", None, "executions that the runtime completed inside the window"),
    ("execution_errors", "errors", "lower", "executions that failed, and uncorrected memory errors, in the window"),
    ("device_memory", "B", "lower", "device memory that the runtimes of the leased cores hold"),
    ("device_power", "%", None, "power of the devices, share of their most; windows of minutes only"),
    # what the host can do at best
    ("memory_bandwidth", "GB/s", "higher", "STREAM triad a = b + s·c, 24 bytes an element, on so many cores at once"),
    ("matmul_rate", "GFLOP/s", "higher", "2n³ / the median time of an fp32 matrix product, on so many threads"),
    ("tokenizer_rate", "tok/s", "higher", "tokens / time of encoding text after text on one thread"),
    ("step_time", "ms", "lower", "optimiser step with a device barrier inside the timer"),
    ("step_time_wall", "ms", "lower", "(train wall − first step) / (steps − 1)"),
    ("train_throughput", "tok/s", "higher", "non-padding tokens counted from the batches / wall of the window"),
    (
        "train_throughput_padded",
        "tok/s",
        "higher",
        "all tokens of the batches, padding included / wall of the window",
    ),
    (
        "train_throughput_barrier",
        "tok/s",
        "higher",
        "non-padding tokens / sum of the steps' times with the barrier inside",
    ),
    ("first_step_time", "s", "lower", "first step: tracing, compilation and loading are in it; it is in no rate"),
    ("train_wall", "s", "lower", "first step's begin → device finished and all results on the host"),
    ("retention", "%", "higher", "mean rate of the last third of iterations / the first's, and / the best's"),
    ("mfu", "%", "higher", "model FLOPs utilisation by the named FLOP model, peak and cores used"),
    ("loss", "", "lower", "training loss of a step, the mean over all ranks; of the first, the last, the least"),
    ("grad_norm", "", None, "norm of the gradient before clipping"),
    ("holdout_loss", "", "lower", "loss on examples that were split off before packing; before and after training"),
    ("holdout_loss_ratio", "", "lower", "hold-out loss after training / before"),
    ("preference_accuracy", "share", "higher", "hold-out pairs whose chosen answer is the likelier one / all"),
    ("tokens", "tokens", None, "non-padding tokens of all distinct data shards that the steps consumed"),
    ("padding_share", "share", "lower", "padding / all tokens of the batches"),
    ("trainable_parameters", "parameters", None, "parameters that training changes, counted after the adapter"),
    ("total_parameters", "parameters", None, "all parameters, frozen ones and the adapter's included"),
    ("prepare_time", "s", "lower", "tokenising and packing the data, once per data set and settings"),
    ("checkpoint_time", "s", "lower", "writing a checkpoint, until it can be resumed from"),
    ("checkpoint_size", "B", "lower", "bytes of a checkpoint"),
    ("restore_time", "s", "lower", "from a checkpoint's files to a state that trains on"),
    # runs beside each other
    ("loss_difference", "", "lower", "difference of two runs' losses of the same step"),
    ("loss_correlation", "", "higher", "Pearson correlation of two runs' losses, aligned by step"),
    ("loss_divergence", "step", "higher", "first step at which two runs' losses differ by more than the tolerance"),
    ("scaling_efficiency", "share", "higher", "rate of N ranks / (N × the rate of one), same job otherwise"),
    ("input_cost", "share", "lower", "1 − rate with the real data / rate with synthetic data of equal shapes"),
    ("largest_batch", "sequences", "higher", "largest micro-batch that trains, below the first that fails"),
    ("largest_context", "tokens", "higher", "longest sequence that trains, below the first that fails"),
    # from a trainer to a server
    ("merge_time", "s", "lower", "merging the adapter into the weights and writing them"),
    ("ship_time", "s", "lower", "into the store and back, digests verified"),
    ("train_to_serve_time", "s", "lower", "training done → first verified token of the server of its weights"),
    ("taught", "share", "higher", "prompts that were not trained on, answered in the form that training taught / all"),
    ("vs_base", "", None, "what the tuned model's server did / the same of the base model's in this session"),
    ("cost_per_1m_tokens", "USD", "lower", "hourly price / 3600 / rate × 1e6"),
    ("cost_per_1m_inferences", "USD", "lower", "hourly price / 3600 / rate of items × 1e6"),
)


def metric(
    id: str,
    value: float | None,
    *,
    stat: str = "",
    n: int = 0,
    low: float | None = None,
    high: float | None = None,
    confidence: float | None = None,
    note: str = "",
    among: Mapping[str, Definition] = DEFINITIONS,
) -> Metric:
    """A `Metric` of a known definition, with its unit and direction filled in.

    Raises `KeyError` for an id that has no definition `among` these: a number without a definition is not recorded.
    Lanes with metrics of their own declare them in their `LaneInfo`, and make them with its method `metric`.
    """
    definition = among[id]
    return Metric(
        id=id,
        value=value,
        unit=definition.unit,
        stat=stat,
        better=definition.better,
        n=n,
        low=low,
        high=high,
        confidence=confidence,
        version=definition.version,
        note=note,
    )


def of_key(key: str, among: Mapping[str, Definition] = DEFINITIONS) -> Definition | None:
    """The definition that a metric's key, such as `ttft_p99_ms`, is of; None for none. The longest id that fits."""
    fitting = [
        definition
        for id_, definition in among.items()
        if f"{key}_".startswith(f"{id_}_") and f"_{key}".endswith(f"_{unit_slug(definition.unit)}".rstrip("_"))
    ]
    return max(fitting, key=lambda definition: len(definition.id), default=None)
