"""What a point may ask of vLLM on Neuron, and what of it cannot work on a generation: found before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench.model import FrozenMap, Json, closest
from neuronbench.serving import vllm
from neuronbench_neuron import cores
from neuronbench_neuron.caches.places import MISSPELT, XLA_VARIABLE, cache_dir_of
from neuronbench_neuron.hardware import GROUP_VARIABLES, Hardware
from neuronbench_neuron.serving.generations import Generation

DEFAULTS: Final[Mapping[str, Json]] = {
    **vllm.COMMON,
    "tensor_parallel": None,
    "cores": None,
    "buckets": {},
    "neuron_config": {},
    "unchecked_keys": [],
    "max_num_batched_tokens": None,
    "block_size": None,
    "speculative_config": None,
    "artifacts": None,
    "compile_cache": None,
    "require_cached": False,
    "compile_timeout_s": None,
}
"""Parameters of a point by name; what they mean is in the table of `neuronbench_neuron.serving.endpoint`."""
OURS: Final = vllm.OURS | {
    "additional_config", "override_neuron_config", "device", "tensor_parallel_size", "max_num_batched_tokens",
    "block_size", "num_gpu_blocks_override", "speculative_config",
}  # fmt: skip
"""Arguments of vLLM that the generation decides."""
OWN_PARAMETER: Final = {
    "max_num_seqs": "max_num_seqs", "max_model_len": "max_model_len", "enable_prefix_caching": "prefix_caching",
    "dtype": "dtype",
}  # fmt: skip
"""Arguments of vLLM → the parameter of a point that is meant: sizes and limits are judged by the parameter alone."""
DTYPES: Final = ("auto", "bfloat16", "float", "float16", "float32", "half")
BUCKETED: Final = ("prefill", "decode", "context")
NATIVE_MOST_TOKENS: Final = 8192
"""Prompt tokens of one step of generation 2 where the point does not say."""
NATIVE_TILE: Final = 128
"""Context buckets of generation 2 are multiples of it."""
APC_BLOCK: Final = 32
"""Tokens of a block of the KV cache with prefix caching in generation 1, where the point does not say."""


def tensor_parallel(settings: FrozenMap, family: str) -> int:
    """Cores that one copy of the model is spread over: what the point says, else those of one device."""
    told = settings["tensor_parallel"]
    return int(told) if told is not None else (4 if family == "trn2" else 2)


def ranks(settings: FrozenMap, family: str) -> int:
    """Cores that all copies of the model take together; `engine_args` may ask for more than one."""
    count = tensor_parallel(settings, family)
    for name, value in settings["engine_args"].items():
        parallel = vllm.argument_name(name) in ("data_parallel_size", "pipeline_parallel_size")
        if parallel and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            count *= value
    return count


def wrong(settings: FrozenMap) -> str:
    """What makes these settings impossible on any generation, in one line; empty when nothing does."""
    found = vllm.wrong_settings(settings, whole=(*_WHOLE, "compile_timeout_s"), ours=OURS)
    if found:
        return found
    for name in ("buckets", "neuron_config"):
        if not isinstance(settings[name], Mapping):
            return f"{name}: expected a table, found {settings[name]!r}"
    for name, edges in settings["buckets"].items():
        if name not in BUCKETED:
            return f"buckets: expected {', '.join(BUCKETED)}, found {name!r}{closest(name, BUCKETED)}"
        text = _wrong_edges(edges)
        if text:
            return f"buckets.{name}: {text}"
    if settings["speculative_config"] is not None and not isinstance(settings["speculative_config"], Mapping):
        return f"speculative_config: expected a table, found {settings['speculative_config']!r}"
    for check in (_types, _arguments, _variables):
        found = check(settings)
        if found:
            return found
    asked, copies = settings["cores"], settings["tensor_parallel"]
    if asked is not None and copies is not None and asked < copies:
        return f"cores: {asked} cannot hold a model spread over {copies} (tensor_parallel)"
    return ""


_WHOLE: Final = ("tensor_parallel", "cores", "max_num_batched_tokens", "block_size")
_PLACED: Final[Mapping[str, str]] = {
    XLA_VARIABLE: "compile_cache", "VLLM_CACHE_ROOT": "compile_cache", "NEURON_COMPILED_ARTIFACTS": "artifacts",
    "VLLM_NEURON_ASSERT_CACHE_HIT": "require_cached", "VLLM_NEURON_COMPILATION_TIMEOUT": "compile_timeout_s",
}  # fmt: skip
"""Variables → the parameter that is meant: what the variable alone says is not watched for compiles."""


def _types(settings: FrozenMap) -> str:
    for name in ("prefix_caching", "require_cached"):
        if not isinstance(settings[name], bool):
            return f"{name}: expected true or false, found {settings[name]!r}"
    for name in ("artifacts", "compile_cache"):
        if settings[name] is not None and not (isinstance(settings[name], str) and settings[name]):
            return f"{name}: expected a folder, found {settings[name]!r}"
    if settings["dtype"] not in DTYPES:
        return f"dtype: expected {', '.join(DTYPES)}, found {settings['dtype']!r}"
    unchecked = settings["unchecked_keys"]
    if isinstance(unchecked, str) or not isinstance(unchecked, Sequence) or not all(type(k) is str for k in unchecked):
        return f"unchecked_keys: expected a list of names, found {unchecked!r}"
    return ""


def _arguments(settings: FrozenMap) -> str:
    """vLLM's parser takes the beginning of an argument for all of it, and the last of two counts."""
    decided = sorted(OURS | OWN_PARAMETER.keys())
    for given in settings["engine_args"]:
        name = vllm.argument_name(given).removeprefix("no_")
        whole = next((argument for argument in decided if name and argument.startswith(name)), "")
        if whole in OWN_PARAMETER:
            return f"engine_args may not set {given!r}: it is the parameter {OWN_PARAMETER[whole]} of the point"
        if whole:
            return f"engine_args may not set {given!r}, which vLLM would take for {whole}: neuronbench decides that"
    return ""


def _variables(settings: FrozenMap) -> str:
    given = settings["server_env"]
    named = cores.named_by("server_env", given, "a server", "tensor_parallel")
    if named:
        return named
    for name in given:
        if name in _PLACED:
            return f"server_env may not set {name}: give the parameter {_PLACED[name]} of the point, which is watched"
        if name == MISSPELT:
            return f"server_env: {name} is read by nothing; give the parameter compile_cache of the point"
    if cache_dir_of(str(given.get("NEURON_CC_FLAGS", ""))):
        return (
            "server_env: --cache_dir in NEURON_CC_FLAGS goes before every other place, and what is compiled there "
            "would not be seen; give the parameter compile_cache of the point"
        )
    return ""


def of_host(settings: FrozenMap, leased: int, host: Hardware) -> str:
    """What of these settings this host does not have, in one line; empty when it has all. `leased`: how many cores."""
    told = settings["artifacts"]
    if told and not (Path(told).expanduser().is_dir() and any(Path(told).expanduser().iterdir())):
        return f"artifacts: expected a folder with a model that was compiled before, found nothing at {told}"
    there = len(host.visible)
    if there and leased > there:
        limit = f" ({host.visible_source})" if host.visible_source else ""
        return f"cores: expected at most the {there} of this host{limit}, found {leased}"
    group = settings["neuron_config"].get("logical_nc_config")
    if group is not None and host.logical_core_config is not None and group != host.logical_core_config:
        return (
            f"neuron_config: logical_nc_config = {group!r}, but {host.logical_core_config} physical cores are one core "
            f"on this host as it is set up; leave it out, or start neuronbench with {GROUP_VARIABLES[0]}={group}"
        )
    return ""


def _wrong_edges(edges: Any) -> str:
    if not isinstance(edges, Sequence) or isinstance(edges, str) or not edges:
        return f"expected a list of whole numbers, found {edges!r}"
    if any(not isinstance(edge, int) or isinstance(edge, bool) or edge < 1 for edge in edges):
        return f"expected whole numbers from 1, found {list(edges)!r}"
    if list(edges) != sorted(set(edges)):
        return f"expected them in ascending order, each once; found {list(edges)!r}"
    return ""


def refused(settings: FrozenMap, generation: Generation, max_model_len: int | None) -> str:
    """What a generation cannot do of these settings, in one line; empty when it can do it all.

    `max_model_len`: of the point, else of the model; None when nobody knows.
    """
    for check in (_keys, _contradictions, _buckets, _beyond, _features):
        found = check(settings, generation, max_model_len)
        if found:
            return f"{generation.title}: {found}"
    return ""


def _keys(settings: FrozenMap, generation: Generation, length: int | None) -> str:
    """Unknown keys are ignored by vLLM and by NxD Inference, and the run would measure something else."""
    given = settings["neuron_config"]
    if not given:
        return ""
    if not generation.config:
        return (
            "neuron_config has no effect there, since the model is as it was exported; "
            "export it otherwise (optimum-cli export neuron)"
        )
    for key in given:
        if key in generation.keys or key in settings["unchecked_keys"]:
            continue
        spelled = key.replace("-", "_")
        if spelled in generation.keys:
            return f"neuron_config: {key!r} would be ignored without a word: keys have underscores, {spelled!r}"
        return (
            f"neuron_config: {key!r} is no key of it{closest(key, sorted(generation.keys))}, and would be ignored "
            f"without a word; if you know better, name it in unchecked_keys"
        )
    for key in generation.buckets.values():
        text = _wrong_edges(given[key]) if key in given and key not in settings["unchecked_keys"] else ""
        if text:
            return f"neuron_config: {key}: {text}"
    twice = sorted(
        set(given) & {generation.buckets[name] for name in settings["buckets"] if name in generation.buckets}
    )
    return f"{', '.join(twice)} is given twice: in neuron_config and in buckets" if twice else ""


_SAYS: Final[Mapping[str, str]] = {
    "tp_degree": "tensor_parallel", "batch_size": "max_num_seqs", "max_batch_size": "max_num_seqs",
    "seq_len": "max_model_len", "max_length": "max_model_len",
}  # fmt: skip
"""Keys of NxD Inference → the parameter that says the same to vLLM."""


def _contradictions(settings: FrozenMap, generation: Generation, length: int | None) -> str:
    """What is compiled for other sizes than vLLM schedules by fails when all is compiled, or with the first batch."""
    meant = {
        "tensor_parallel": settings["tensor_parallel"],
        "max_num_seqs": settings["max_num_seqs"] or generation.max_num_seqs,
        "max_model_len": length,
    }
    for key, name in _SAYS.items():
        said = settings["neuron_config"].get(key)
        if (
            key in generation.keys
            and said is not None
            and key not in settings["unchecked_keys"]
            and said != meant[name]
        ):
            instead = "nothing" if meant[name] is None else meant[name]
            return f"neuron_config: {key} = {said!r}, but {name} says {instead}: set {name}, which vLLM schedules by"
    return ""


def _buckets(settings: FrozenMap, generation: Generation, length: int | None) -> str:
    for name in settings["buckets"]:
        if name not in generation.buckets:
            can = ", ".join(generation.buckets) or "none: they are those of the export"
            return f"it has no buckets over {name!r}; it has: {can}"
    return ""


def edges_of(settings: FrozenMap, generation: Generation, name: str) -> list[int] | None:
    """Edges that the point gives, in `buckets` or under their own key in `neuron_config`; None where it gives none."""
    found = settings["buckets"].get(name)
    if found is None and name in generation.buckets:
        found = settings["neuron_config"].get(generation.buckets[name])
    return sorted(found) if found is not None and not _wrong_edges(found) else None


_SPREAD: Final = ("attention_dp_degree", "cp_degree", "flash_decoding_enabled", "pa_num_blocks")
"""Keys of NxD Inference with which a core keeps less than all sequences at their full length."""


def memory_of(settings: FrozenMap) -> dict[str, Json]:
    """What keys for Neuron say of weights and cache, in the words of `compat`: less memory than they would be."""
    given = settings["neuron_config"]
    found: dict[str, Json] = {}
    if given.get("quantized") or given.get("quantization"):
        found["quantization"] = str(given.get("quantization_dtype") or given.get("quantization") or "int8")
    if given.get("kv_cache_quant") or given.get("kv_quant_config"):
        found["kv_cache_dtype"] = "fp8"
    if any(given.get(key) for key in _SPREAD):
        found["kv_cache_bounded"] = True
    return found


def most_tokens(settings: FrozenMap, generation: Generation, length: int | None) -> int | None:
    """Prompt tokens that generation 2 computes in one step: the last prefill bucket, which has to be exactly that."""
    if generation.bucket_rule != "native":
        told: int | None = settings["max_num_batched_tokens"]
        return told
    edges = edges_of(settings, generation, "prefill")
    asked: int = settings["max_num_batched_tokens"] or (edges[-1] if edges else NATIVE_MOST_TOKENS)
    return asked if length is None else min(asked, length)


def _beyond(settings: FrozenMap, generation: Generation, length: int | None) -> str:
    """Lengths and batches that no bucket holds."""
    prefill, decode, context = (edges_of(settings, generation, name) for name in BUCKETED)
    seqs = settings["max_num_seqs"] or generation.max_num_seqs
    if generation.bucket_rule == "native":
        most = most_tokens(settings, generation, length)
        if prefill and most is not None and prefill[-1] != most:
            return (
                f"the last prefill bucket has to be min(max_num_batched_tokens, max_model_len) = {most}, "
                f"found {prefill[-1]}"
            )
        if decode and decode[-1] != seqs:
            return f"the last decode bucket has to be max_num_seqs = {seqs}, found {decode[-1]}"
        if context and length is not None and context[-1] >= length:
            return f"context buckets are below max_model_len = {length} (which is one by itself), found {context[-1]}"
        odd = [edge for edge in context or () if edge % NATIVE_TILE]
        return f"context buckets are multiples of {NATIVE_TILE}, found {odd[0]}" if odd else ""
    if length is not None:
        for name, edges in (("prefill", prefill), ("context", context)):
            if edges and edges[-1] > length:
                return f"the last {name} bucket, {edges[-1]}, is beyond max_model_len = {length}"
        if context and context[-1] < length:
            return (
                f"max_model_len = {length} is beyond the last context bucket, {context[-1]}: longer requests would "
                "fail while they are generated"
            )
    if decode and decode[-1] > seqs:
        return f"the last decode bucket, {decode[-1]}, is beyond max_num_seqs = {seqs}"
    return ""


def _features(settings: FrozenMap, generation: Generation, length: int | None) -> str:
    if generation.id == "H":
        if settings["prefix_caching"]:
            return "it switches prefix caching off, and would not say so"
        if settings["speculative_config"] is not None:
            return "it has no speculative decoding"
    if settings["require_cached"] and generation.cache != "vllm":
        return (
            "require_cached: only generation 2 can be told to fail where a graph is not cached "
            "(VLLM_NEURON_ASSERT_CACHE_HIT)"
        )
    if generation.cache == "vllm" and "://" in (settings["compile_cache"] or ""):
        return f"compile_cache: it keeps compiled graphs in a folder of this host, found {settings['compile_cache']!r}"
    if settings["artifacts"] is not None:
        if generation.major not in ("0", "1"):
            return "artifacts: it keeps compiled graphs in its cache (compile_cache) and has no precompiled artifacts"
        if settings["neuron_config"] or settings["buckets"]:
            return (
                "artifacts that are compiled already are loaded as they are, and neuron_config and buckets would be "
                "ignored without a word: leave them out (what the artifacts have is read from them), or leave out "
                "artifacts"
            )
    if settings["block_size"] is not None and not settings["prefix_caching"] and generation.major in ("0", "1"):
        return "block_size is max_model_len there unless prefix_caching is on, and would be ignored"
    return ""


def prompt_refused(settings: FrozenMap, generation: Generation, *, prompt: int, output: int, length: int | None) -> str:
    """Why requests of `prompt` tokens and `output` more cannot be served; empty when they can."""
    if length is not None and prompt + output > length:
        return f"{prompt} tokens of input and {output} of output are beyond max_model_len = {length}"
    prefill = edges_of(settings, generation, "prefill")
    if prefill and generation.bucket_rule != "native" and prompt > prefill[-1]:
        return f"{prompt} tokens of input are beyond the last prefill bucket, {prefill[-1]}"
    return ""
