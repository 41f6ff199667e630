"""vLLM's command line and environment on Neuron, by generation: data of `generations.toml` put into words."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench.model import FrozenMap, Json
from neuronbench.models import ResolvedModel
from neuronbench.protocols import Stack
from neuronbench.serving import vllm
from neuronbench.serving.openai_server import ServerCommand
from neuronbench_neuron.serving.generations import Generation
from neuronbench_neuron.serving.settings import APC_BLOCK, most_tokens, tensor_parallel

XLA_CACHE: Final = "var/tmp/neuron-compile-cache"
"""Where compilers keep graphs unless told otherwise, below the host's root."""
NATIVE_CACHE: Final = "neuron/compile_cache"
"""Below VLLM_CACHE_ROOT."""
COMPILE_TIMEOUT_S: Final = 600
"""Generation 2's own limit for compiling one graph."""
EXECUTE_TIMEOUT_S: Final = 300
"""vLLM's own limit for one step, the first of which may compile."""
BARRIER_TIMEOUT_S: Final = 3600
READY_TIMEOUT_S: Final = 600
"""vLLM's own limit for its engine to be ready, from 0.16 on."""
_DROPPED: Final = (
    "NEURON_CC_FLAGS", "NEURON_COMPILED_ARTIFACTS", "NEURON_COMPILE_CACHE_URL", "NEURON_RT_INSPECT_ENABLE",
    "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "NEURON_RT_STOCHASTIC_ROUNDING_EN", "NEURON_RT_ALLOW_LEGACY_NEFF",
    "NEURON_ON_DEVICE_SAMPLING_DISABLED", "DISABLE_NEURON_CUSTOM_SCHEDULER", "PROMETHEUS_MULTIPROC_DIR",
)  # fmt: skip
_DROPPED_PREFIXES: Final = ("VLLM_NEURON_", "NXD_", "NKI_", "XLA_")


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders of one server. None where a generation has no use for one."""

    cache: str
    """Of compiled graphs: a folder, or a URL."""
    artifacts: Path | None = None
    """Of the whole compiled model (generations 0 and 1)."""
    prometheus: Path | None = None
    """Of metrics that several processes share (generation 2): a new one for each start."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """What of the host decides words of the command."""

    family: str
    instance_type: str = ""


def words(
    settings: FrozenMap, generation: Generation, stack: Stack, model: ResolvedModel, host: Host, length: int | None
) -> list[str]:
    """The command line. `length`: max_model_len of the point, else of the model; None when nobody knows."""
    caching = settings["prefix_caching"]
    own: dict[str, Json] = {
        **generation.arguments,
        "tensor_parallel_size": tensor_parallel(settings, host.family),
        "max_model_len": settings["max_model_len"],
        "max_num_seqs": settings["max_num_seqs"],
        "max_num_batched_tokens": most_tokens(settings, generation, length),
        "enable_prefix_caching": caching,
        "block_size": settings["block_size"],
        "speculative_config": settings["speculative_config"],
    }
    if generation.major == "1" and caching:
        own["block_size"] = settings["block_size"] or APC_BLOCK
    if generation.blocks:
        own["num_gpu_blocks_override"] = _blocks(settings, generation, length, own["block_size"])
    if generation.bucket_rule == "native" and settings["speculative_config"] is not None:
        own["async_scheduling"] = False
    config = neuron_config(settings, generation)
    if config and generation.config:
        argument, *tables = generation.config
        for table in reversed(tables):
            config = {table: config}
        own[argument] = config
    return [*vllm.words(stack, model, settings), *vllm.flags({**own, **settings["engine_args"]})]


def neuron_config(settings: FrozenMap, generation: Generation) -> dict[str, Any]:
    """The keys for Neuron that a point gives, buckets under their key of this generation."""
    found = FrozenMap(settings["neuron_config"]).to_json()
    for name, edges in settings["buckets"].items():
        found[generation.buckets[name]] = list(edges)
    return dict(found)


def _blocks(settings: FrozenMap, generation: Generation, length: int | None, block: int | None) -> int | None:
    """Blocks of the KV cache, which NxD Inference compiles in and vLLM's scheduler has to know."""
    seqs: int = settings["max_num_seqs"] or generation.max_num_seqs
    if not settings["prefix_caching"]:
        return seqs
    return None if length is None else math.ceil(length / (block or APC_BLOCK)) * seqs


def environment(
    settings: FrozenMap,
    generation: Generation,
    base: Mapping[str, str],
    cores: Sequence[int],
    places: Places,
    host: Host,
    *,
    boot_s: float,
) -> dict[str, str]:
    """What generation and point add to `base`, which is the stack's environment without what speaks of other cores.

    What this process's own environment says of compilers and of Neuron's plugin is left out: it would change results
    and show nowhere. `boot_s`: seconds that the start may take; limits inside the server are not below it.
    """
    env = {name: value for name, value in base.items() if name not in dropped(base)}
    env.update(vllm.QUIET)
    env.update(generation.environment)
    env.pop("NEURON_RT_VISIBLE_CORES", None)
    env.pop("NEURON_VISIBLE_DEVICES", None)
    env.pop("NEURON_RT_NUM_CORES", None)
    env[generation.visible] = ",".join(map(str, cores))
    if generation.cache == "vllm":
        env["VLLM_CACHE_ROOT"] = places.cache
        limit = settings["compile_timeout_s"] or max(COMPILE_TIMEOUT_S, math.ceil(boot_s))
        env["VLLM_NEURON_COMPILATION_TIMEOUT"] = str(limit)
        env["VLLM_NEURON_BARRIER_TIMEOUT"] = str(max(BARRIER_TIMEOUT_S, math.ceil(boot_s)))
        if settings["require_cached"]:
            env["VLLM_NEURON_ASSERT_CACHE_HIT"] = "1"
        if host.instance_type == "trn2.3xlarge":
            env["NEURON_SKIP_EFA_AFFINITY"] = "1"
    else:
        env["NEURON_COMPILE_CACHE_URL"] = places.cache
    if generation.major != "0":
        env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = str(max(EXECUTE_TIMEOUT_S, math.ceil(boot_s)))
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = str(max(READY_TIMEOUT_S, math.ceil(boot_s)))
    if places.artifacts is not None:
        env["NEURON_COMPILED_ARTIFACTS"] = str(places.artifacts)
    if places.prometheus is not None:
        env["PROMETHEUS_MULTIPROC_DIR"] = str(places.prometheus)
    env.update({name: str(value) for name, value in settings["server_env"].items()})
    return env


def dropped(base: Mapping[str, str]) -> list[str]:
    """Variables of an environment that are not handed on to a server."""
    return sorted(name for name in base if name in _DROPPED or name.startswith(_DROPPED_PREFIXES))


def shown(env: Mapping[str, str], settings: FrozenMap) -> list[str]:
    """Variables whose values belong into a record."""
    prefixes = ("NEURON_", "VLLM_", "PROMETHEUS_")
    return sorted({*(name for name in env if name.startswith(prefixes)), *settings["server_env"], *vllm.QUIET})


def cache_folder(
    settings: FrozenMap, generation: Generation, root: Path, environ: Mapping[str, str] = os.environ
) -> str:
    """Value of the variable that names the compile cache: told, else this process's, else the usual place."""
    if settings["compile_cache"]:
        return str(settings["compile_cache"])
    if generation.cache == "vllm":
        return environ.get("VLLM_CACHE_ROOT") or str(
            Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm"
        )
    return environ.get("NEURON_COMPILE_CACHE_URL") or str(root / XLA_CACHE)


def compiled_in(cache: str, generation: Generation) -> Path | None:
    """The folder whose modules tell what was compiled; None for a cache that is no folder."""
    if "://" in cache:
        return None
    return Path(cache).expanduser() / (NATIVE_CACHE if generation.cache == "vllm" else "")


def command(settings: FrozenMap, argv: Sequence[str], env: Mapping[str, str]) -> ServerCommand:
    """What to start."""
    return ServerCommand(
        argv=list(argv), env=dict(env), model_name=settings["served_model"], shown_env=shown(env, settings)
    )
