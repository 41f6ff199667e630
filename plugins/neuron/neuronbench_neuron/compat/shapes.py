"""Rules of shapes: heads, parallelism, sequences, buckets, and what must fit into the memory of the cores.

Memory is judged by what a run cannot do without (weights, and the cache that was asked for), never by an estimate of
the rest: what is refused here cannot fit, what is not refused may still fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from neuronbench.catalog.instances import instance_of
from neuronbench_neuron.compat.use import Finding, Use, holds, numbers, table

BYTES: Final = {
    "float32": 4.0, "float": 4.0, "fp32": 4.0, "bfloat16": 2.0, "bf16": 2.0, "float16": 2.0, "fp16": 2.0, "half": 2.0,
    "int8": 1.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "mxfp8": 1.0, "mxfp4": 0.5,
}  # fmt: skip
MOE_TILE: Final = 128
TRAINING_SEQUENCE: Final = 2048
SINCE_NATIVE: Final = ">=0.21.dev0"
"""The vLLM of the plugin that is not NxD Inference, with what was released of it beforehand."""
BEFORE_NATIVE: Final = "<0.21.dev0"
LATENT: Final = "kv_lora_rank"
"""Key of models that keep a latent in place of keys and values."""
MOST_CORES: Final = 128
"""Of an instance: how far to look for degrees of parallelism where its cores are not known."""


def broken(use: Use) -> Iterator[Finding]:
    """Rules that are broken."""
    yield from _grouping(use)
    yield from _parallel(use)
    yield from _heads(use)
    yield from _moe(use)
    yield from _sequences(use)
    yield from _prefix_caching(use)
    yield from _buckets(use)
    yield from _memory(use)


def _grouping(use: Use) -> Iterator[Finding]:
    asked, instance = use.number("logical_core_config"), instance_of(use.instance_type)
    if asked and instance is not None and asked not in instance.logical_core_configs:
        offered = " or ".join(map(str, sorted(instance.logical_core_configs)))
        yield Finding(
            id="logical-core-config",
            rule=f"the cores of a {instance.name} can be grouped by {offered}",
            observed=f"logical_core_config = {asked}",
            limit=offered,
            remedy="Leave it out, or set one that the hardware has.",
            source="AWS Neuron documentation: the compiler's error NCC_EARG001",
        )


def _parallel(use: Use) -> Iterator[Finding]:
    tp = use.tensor_parallel_size
    world = use.number("world_size") or tp * use.number("pipeline_parallel_size", 1) * use.number(
        "data_parallel_size", 1
    )
    if use.logical_cores and max(tp, world) > use.logical_cores:
        yield Finding(
            id="more-cores-than-there-are",
            rule="a run takes a core for each of its ranks",
            observed=f"{world} ranks (tensor parallel {tp})",
            limit=f"{use.logical_cores} cores of {use.instance_type or use.backend}",
            remedy="Less tensor parallelism, fewer replicas, or a larger instance.",
            source="AWS Neuron documentation: NEURON_RT_NUM_CORES; vllm-neuron, issue 7",
        )
    # Replicas of a served model have nothing to say to each other; ranks that train exchange gradients.
    together = world // use.number("data_parallel_size", 1) if use.purpose == "serve" else world
    for entry in table()["collectives"]:
        if use.backend not in entry["families"]:
            continue
        degrees, step = entry["degrees"], entry["multiples_of"]
        for what, count in (("tensor_parallel_size", tp), ("world_size", together)):
            if count not in degrees and count % step:
                yield Finding(
                    id="collective-degree",
                    rule=f"collectives on {use.backend} are between {', '.join(map(str, degrees))} or n × {step} cores",
                    observed=f"{what} = {count}",
                    limit=f"{', '.join(map(str, degrees))} or a multiple of {step}",
                    remedy="Take one of these.",
                    source=entry["source"],
                )
                break


def _heads(use: Use) -> Iterator[Finding]:
    tp = use.tensor_parallel_size
    heads, kv = use.of_model("num_attention_heads", "n_head"), use.of_model("num_key_value_heads")
    if heads and heads % tp:
        fitting = [degree for degree in range(1, (use.logical_cores or MOST_CORES) + 1) if heads % degree == 0]
        yield Finding(
            id="heads-over-cores",
            rule="attention heads divide evenly over the cores of tensor parallelism",
            observed=f"{heads} heads over {tp} cores",
            limit=f"tensor parallelism over {', '.join(map(str, fitting))}",
            remedy=f"Spread the model over {', '.join(map(str, fitting))} cores, or take another model. vllm-neuron "
            "switches vLLM's own check off, since NxD Inference pads the heads of some models: {allow} tries it.",
            source="vLLM's check of its configuration; a public study (`15 is not divisible by 2`)",
        )
    if kv and kv % tp and tp % kv:
        yield Finding(
            id="kv-heads-over-cores",
            rule="key-value heads divide over the cores, or cores over the heads (then heads are copied)",
            observed=f"{kv} key-value heads over {tp} cores",
            limit=f"a divisor or a multiple of {kv}",
            remedy="Spread the model over such a number of cores.",
            source="vLLM: attention layers; vllm-neuron, issue 7",
        )


def _moe(use: Use) -> Iterator[Finding]:
    hidden = use.of_model("hidden_size")
    newer = use.purpose == "serve" and holds(SINCE_NATIVE, use.packages.get("vllm", "")) is True
    if use.experts and hidden % MOE_TILE and not newer:
        yield Finding(
            id="moe-hidden-size",
            rule=f"kernels for mixtures of experts need a hidden size in multiples of {MOE_TILE}",
            observed=f"hidden_size {hidden}",
            limit=f"a multiple of {MOE_TILE}",
            remedy="Use a model whose hidden size is one, or vLLM Neuron from 0.21 on (Trn2).",
            source="the compiler's error NCC_INKI016 in a public study (gpt-oss-20b on an inf2.xlarge)",
        )


def _sequences(use: Use) -> Iterator[Finding]:
    length = use.number("sequence_length")
    if use.purpose == "train" and length > TRAINING_SEQUENCE and length % TRAINING_SEQUENCE:
        yield Finding(
            id="training-sequence",
            rule=f"training kernels take long sequences in multiples of {TRAINING_SEQUENCE}",
            observed=f"sequence_length {length}",
            limit=f"a multiple of {TRAINING_SEQUENCE}",
            remedy=f"Use {length // TRAINING_SEQUENCE * TRAINING_SEQUENCE}, or the next multiple.",
            source="`Only support sequence as multiples of 2K` in a public study",
        )
    longest = use.of_model("max_position_embeddings", "n_positions")
    for name in ("max_model_len", "sequence_length"):
        if longest and use.number(name) > longest and not use.model.get("rope_scaling"):
            yield Finding(
                id="longer-than-the-model",
                rule="a context is no longer than the model's positions",
                observed=f"{name} {use.number(name)}",
                limit=f"{longest} positions",
                remedy=f"Lower {name}.",
                source="the model's config.json",
            )


def _prefix_caching(use: Use) -> Iterator[Finding]:
    first = use.purpose == "serve" and holds(BEFORE_NATIVE, use.packages.get("vllm", "")) is True
    if not (first and use.settings.get("enable_prefix_caching") and use.packages.get("vllm-neuron")):
        return
    if not use.number("block_size"):
        yield Finding(
            id="prefix-caching-block-size",
            rule="prefix caching of vllm-neuron before 0.21 needs block_size",
            observed="enable_prefix_caching without block_size",
            limit="",
            remedy="Set block_size (32 for one), or leave prefix caching off.",
            source="`When prefix caching is enabled block_size must be set` in a public study",
        )
    if use.backend == "trn1":
        yield Finding(
            id="prefix-caching-on-trn1",
            rule="graphs of prefix caching do not compile on trn1",
            observed="enable_prefix_caching",
            limit="",
            remedy="Leave it off on trn1.",
            source="the compiler's error NCC_ITEN404 (AWS Neuron, issue 1304)",
            known_bad=True,
        )
    if holds("<0.3", use.packages["vllm-neuron"]) and use.number("max_num_seqs") == 1:
        yield Finding(
            id="prefix-caching-of-one-sequence",
            rule="prefix caching of vllm-neuron 0.2 answers wrong with one sequence",
            observed="max_num_seqs 1",
            limit="2",
            remedy="Raise max_num_seqs, or leave prefix caching off.",
            source="vllm-neuron 0.2.0: its known limits",
            known_bad=True,
        )


def _buckets(use: Use) -> Iterator[Finding]:
    pairs = (
        ("context_buckets", "input_tokens", "max_model_len"),
        ("decode_buckets", "", "max_model_len"),
        ("seqs_buckets", "max_num_seqs", "max_num_seqs"),
        ("batched_tokens_buckets", "max_num_batched_tokens", "max_num_batched_tokens"),
    )
    for name, needed, upper in pairs:
        edges = numbers(use.settings.get(name))
        if not edges:
            continue
        most = use.number(upper)
        if most and max(edges) > most:
            yield _edge(name, f"an edge at {max(edges)}", f"{upper} {most}", f"Drop the edges above {upper}.")
        want = use.number(needed) if needed else 0
        if want and max(edges) < want:
            yield _edge(name, f"the last edge at {max(edges)}", f"{needed} {want}", f"Add an edge from {want} on.")


def _edge(name: str, observed: str, limit: str, remedy: str) -> Finding:
    return Finding(
        id="bucket-edges",
        rule=f"{name} reach as far as what is asked for, and no farther than what can be",
        observed=observed,
        limit=limit,
        remedy=remedy,
        source="AWS Neuron documentation: bucketing",
    )


# -- memory -----------------------------------------------------------------------------------------------------------


def _memory(use: Use) -> Iterator[Finding]:
    instance = instance_of(use.instance_type)
    if instance is None or not use.logical_cores:
        return
    group = use.number("logical_core_config") or None
    try:
        limit = instance.memory_bytes_per_core(group)
    except ValueError:
        return  # said already
    tp = use.tensor_parallel_size * use.number("pipeline_parallel_size", 1)
    weights = weight_bytes(use) / tp
    cache = kv_bytes(use) / use.number("pipeline_parallel_size", 1) if use.purpose == "serve" else 0.0
    gradients = weights if use.purpose == "train" and use.settings.get("method") == "full" else 0.0
    if weights + cache + gradients > limit:
        parts = {"weights": weights, "cache": cache, "gradients": gradients}
        shown = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in parts.items() if size)
        yield Finding(
            id="device-memory",
            rule="weights and cache of a core fit into its device memory, before anything else does",
            observed=f"{(weights + cache + gradients) / 2**30:.1f} GiB a core ({shown}) over {tp} cores",
            limit=f"{limit / 2**30:g} GiB a core of {instance.name}",
            remedy="More tensor parallelism, a lower max_model_len or max_num_seqs, or quantised weights.",
            source=f"{instance.source}; weights and cache by the model's config.json",
        )


def weight_bytes(use: Use) -> float:
    """Bytes of the weights at least; 0 when the configuration does not say enough."""
    count = use.number("parameter_count") or parameters(use)
    quantised = str(use.settings.get("quantization") or "").lower()
    told = str(use.settings.get("dtype") or use.model.get("dtype") or use.model.get("torch_dtype") or "bfloat16")
    each = BYTES.get(quantised, 0.5 if quantised else BYTES.get(told.removeprefix("torch."), 2.0))
    if not quantised and use.model.get("quantization_config"):
        each = 0.5  # whatever it is, it is no smaller
    return count * each


def parameters(use: Use) -> int:
    """Parameters that a decoder of this configuration has at least: its matrices, no biases, norms or adapters.

    Embeddings vocabulary × hidden (twice unless tied); each layer: q and o, k and v, and three matrices of the MLP
    (two for models that are not gated), in layers with experts for each of them. Latent attention is left out. 0 when a
    number is missing.
    """
    hidden, layers = use.of_model("hidden_size"), use.of_model("num_hidden_layers")
    heads, vocabulary = use.of_model("num_attention_heads"), use.of_model("vocab_size")
    dense = use.of_model("intermediate_size")
    inner = use.of_model("moe_intermediate_size", "intermediate_size") if use.experts else dense
    if not (hidden and layers and heads and vocabulary and inner):
        return 0
    size = use.of_model("head_dim") or hidden // heads
    kv = use.of_model("num_key_value_heads") or heads
    gated = 3 if str(use.model.get("hidden_act", "silu")) in ("silu", "swiglu") else 2
    attention = 0 if use.of_model(LATENT) else 2 * hidden * heads * size + 2 * hidden * kv * size
    sparse = layers_with_experts(use) if use.experts else 0
    matrices = sparse * inner * use.experts + (layers - sparse) * dense
    tied = use.model.get("tie_word_embeddings", True)
    return layers * attention + gated * hidden * matrices + vocabulary * hidden * (1 if tied else 2)


def layers_with_experts(use: Use) -> int:
    """Layers of a mixture of experts that have them, by the keys of Llama 4, DeepSeek, Qwen; else all.

    `interleave_moe_layer_step`, `decoder_sparse_step`, `moe_layer_freq`: one layer of so many has them;
    `first_k_dense_replace`: how many at the beginning do not; `mlp_only_layers`: which others do not.
    """
    layers = use.of_model("num_hidden_layers")
    step = use.of_model("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq") or 1
    without = use.model.get("mlp_only_layers")
    count = (layers - use.of_model("first_k_dense_replace")) // step
    return max(count - (len(without) if isinstance(without, (list, tuple)) else 0), 0)


def kv_bytes(use: Use) -> float:
    """Bytes of keys and values on one core, for all sequences at their full length; 0 when not all is known.

    2 (keys, values) × layers × heads on the core × size of a head × tokens × bytes. With more cores than heads each
    core has one. Layers with a window that slides keep less than that: they are counted with their window.
    """
    layers, heads = use.of_model("num_hidden_layers"), use.of_model("num_attention_heads")
    kv, hidden = use.of_model("num_key_value_heads") or heads, use.of_model("hidden_size")
    length, sequences = use.number("max_model_len"), use.number("max_num_seqs")
    if not (layers and heads and hidden and length and sequences):
        return 0.0
    if holds(SINCE_NATIVE, use.packages.get("vllm", "")) is True:
        return 0.0  # its cache is what is left of the memory: sequences beyond it wait
    if use.settings.get("kv_cache_bounded"):
        return 0.0  # how much a core keeps is told in the server's own words
    if use.of_model(LATENT):
        return 0.0  # latent attention keeps much less, and how much depends on who computes it
    window = use.of_model("sliding_window")
    tokens = min(length, window) if window and use.model.get("use_sliding_window", True) else length
    size = use.of_model("head_dim") or hidden // heads
    told = str(use.settings.get("kv_cache_dtype") or "auto")
    each = BYTES.get(told, 2.0)
    return 2 * layers * max(kv / use.tensor_parallel_size, 1) * size * tokens * sequences * each
