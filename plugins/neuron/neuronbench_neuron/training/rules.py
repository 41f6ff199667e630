"""What the libraries that train on Neuron cannot do, by what their sources say; known before anything boots."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from packaging.version import InvalidVersion, Version

from neuronbench.model import FrozenMap, Json, Point
from neuronbench.training import TrainJob
from neuronbench.training.job import PREFERENCE
from neuronbench_neuron import cores
from neuronbench_neuron.caches.places import cache_dir_of

WRITTEN_TO: Final = {"optimum-neuron": ("0.4.0", "0.5.0.dev0"), "neuronx-distributed": ("0.9", "1")}
"""Versions whose interfaces the handlers are written to: from, to below."""
OPTIMUM_OPTIMIZERS: Final = ("adamw", "sgd")
RESUMING: Final = ("checkpoint",)
"""Lanes whose benchmarks go on from a checkpoint."""

INSTEAD: Final[Mapping[str, str]] = {
    "NEURON_CC_FLAGS": "cc_flags", "NEURON_COMPILE_CACHE_URL": "compile_cache",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": "stochastic_rounding", "NEURON_EXTRACT_GRAPHS_ONLY": "precompile",
}  # fmt: skip
"""Variables → the parameter that is meant, which is in the record."""


def wrong_places(given: FrozenMap) -> str:
    """What would be said behind the record's back: cores, flags and caches of a job, in variables; empty for none."""
    named = cores.named_by("worker_env", given["worker_env"], "a trainer", "world_size")
    if named:
        return named
    for name in given["worker_env"]:
        if name in INSTEAD:
            return f"worker_env may not set {name}: give the parameter {INSTEAD[name]} of the point"
    if cache_dir_of(given["cc_flags"]):
        return "cc_flags: --cache_dir would keep graphs where they are not counted; give the parameter compile_cache"
    told = given["compile_cache"]
    if told is not None and not (isinstance(told, str) and told):
        return f"compile_cache: expected a folder or s3://BUCKET/PREFIX, found {told!r}"
    return ""


def no_method(provider: str, method: str, methods: tuple[str, ...]) -> str:
    """Why a provider does not train by a method."""
    known = ", ".join(methods)
    if method == "orpo" and provider == "trainer/optimum-neuron":
        return (
            "method: optimum-neuron has no NeuronORPOTrainer since 0.4.0 (the last with one is 0.3.0); to train by "
            "orpo, pin optimum-neuron 0.3.x in an environment of its own and a trainer written to it, or train on cpu; "
            f"{provider} has {known}"
        )
    if method in PREFERENCE:
        return f"method: no library for Neuron that {provider} is written to trains by {method}; it has {known}"
    if method == "lora_sft":
        return f"method: {provider} trains all weights; take trainer_provider = 'optimum-neuron' for adapters"
    return f"method: {provider} has {known}; found {method!r}"


def wrong_version(library: str, version: str) -> str:
    """Why a version of a library is none that the handlers are written to; empty when it is."""
    first, after = WRITTEN_TO[library]
    try:
        fits = Version(first) <= Version(version) < Version(after)
    except InvalidVersion:
        return f"{library}: expected a version from {first} to below {after}, found {version!r}"
    if fits:
        return ""
    return (
        f"{library}: the trainer is written to versions from {first} to below {after}, found {version}; "
        f"pin {library}>={first},<{after} in the environment of --nb-stack train=PATH"
    )


def parameters_of(config: Mapping[str, Json]) -> int | None:
    """Of a decoder with a gated feed-forward part, by its configuration, norms left out; None where a size is not
    there."""
    wide, layers, inner = (config.get(name) for name in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    heads, vocabulary = config.get("num_attention_heads"), config.get("vocab_size")
    if not (wide and layers and inner and heads and vocabulary):
        return None
    size = config.get("head_dim") or wide // heads
    shared = config.get("num_key_value_heads") or heads
    attention = wide * size * (2 * heads + 2 * shared)
    embeddings = vocabulary * wide * (1 if config.get("tie_word_embeddings") else 2)
    return int(layers * (attention + 3 * wide * inner) + embeddings)


def too_large(job: TrainJob, parameters: int | None, ranks: int, copies: int, core_bytes: float | None) -> str:
    """Whether what a run cannot do without is more than a core has; empty where it fits, or is not known.

    `ranks` share a copy of the model, `copies` share the optimizer's state. Weights always; where all of them are
    trained a gradient each, and eight bytes of state for AdamW. Activations come to that: what fits here may still
    fail.
    """
    if parameters is None or core_bytes is None:
        return ""
    size = {"float32": 4, "bfloat16": 2}.get(job.dtype, 2)
    each = float(size)
    if job.adapter is None:
        each += size + (8 / copies if job.optimizer == "adamw" else 0)
    needed = parameters * each / ranks
    if needed <= core_bytes:
        return ""
    fitting = math.ceil(parameters * each / core_bytes)
    return (
        f"world_size: weights{'' if job.adapter is not None else ', gradients and state'} of {parameters / 1e9:.3g}e9 "
        f"parameters in {job.dtype} take {needed / 2**30:.1f} GiB of each of {ranks} cores that share a model, a core "
        f"has {core_bytes / 2**30:.1f} GiB; expected at least {fitting} (world_size and tensor_parallel_size)"
    )


def of_optimum(job: TrainJob, point: Point) -> str:
    """What optimum-neuron 0.4's trainers cannot do."""
    if point.lane in RESUMING:
        return (
            "optimum-neuron's NeuronTrainer refuses resume_from_checkpoint (`not supported by the NeuronTrainer`); "
            "take trainer_provider = 'nxd' with method full_sft or pretrain"
        )
    if point.get("pipeline_parallel_size", 1) > 1 and job.adapter is not None:
        return "pipeline_parallel_size: adapters are trained without pipeline stages here; found more than 1"
    return ""


def of_nxd(job: TrainJob, point: Point) -> str:
    """What the loop over neuronx-distributed does not do."""
    tensor = point.get("tensor_parallel_size", 1)
    shared = (job.architecture or FrozenMap()).get("num_key_value_heads") or tensor
    if shared % tensor:
        return (
            f"tensor_parallel_size: trainer/nxd gives each core whole key-value heads, expected a divisor of {shared}; "
            f"found {tensor}"
        )
    if point.get("pipeline_parallel_size", 1) > 1:
        return (
            "pipeline_parallel_size: trainer/nxd has tensor and data parallelism; found more than 1. Take "
            "trainer_provider = 'optimum-neuron' for pipeline stages"
        )
    return ""
