"""A model served by vLLM on the CPU.

Parameters of a point that are this provider's business (others are ignored):

| parameter | default | meaning |
|---|---|---|
| `model` | – | model reference (`neuronbench.models`) |
| `served_model` | from `model` | name under which it is served |
| `dtype` | `bfloat16` | |
| `max_model_len` | the model's | context in tokens |
| `max_num_seqs` | vLLM's | requests the engine works on at once |
| `enforce_eager` | true | no graph compilation: a start of 20 s instead of one to two minutes |
| `prefix_caching` | false | off, because a second repeat sends the same prompts and would find them all cached |
| `kv_cache_gib` | 1 | whole GiB |
| `omp_threads_bind` | vLLM's `auto` | cores of the compute threads; `auto` leaves one to everything else |
| `engine_args` | {} | more command-line arguments of vLLM, `{name: value}` |
| `server_env` | {} | more environment variables |
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from neuronbench import models
from neuronbench.environment import host_facts
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.protocols import Backend, BootContext, ProviderInfo, Stack, Unsupported
from neuronbench.serving import identity, vllm
from neuronbench.stacks import clean_environment

if TYPE_CHECKING:  # what only a boot needs is imported by it: a provider is asked at every collection
    from neuronbench.config import Settings
    from neuronbench.serving.openai_server import ServerCommand
    from neuronbench.serving.server import OpenAIServer

DEFAULTS: Final[Mapping[str, Json]] = {
    **vllm.COMMON,
    "enforce_eager": True,
    "kv_cache_gib": 1,
    "omp_threads_bind": None,
}
_SHOWN_ENV: Final = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", *vllm.QUIET)


class VllmCpuProvider:
    """`neuronbench.protocols.Provider` of endpoints on the CPU."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        """What to serve and how; parameters that are not given have their defaults written out."""
        return vllm.spec(point, backend, self.info, DEFAULTS)

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        wrong = _wrong_settings(spec.settings)
        if wrong:
            return Unsupported(reason=wrong)
        verdict = vllm.too_long(spec.settings, settings)
        if verdict is not None:
            return verdict
        try:
            backend.stack("serving", settings)
        except LookupError as error:
            return vllm.no_stack(error)
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> OpenAIServer:
        from neuronbench.serving.openai_server import boot
        from neuronbench.serving.phases import VLLM

        deadline = time.monotonic() + context.deadline_s
        found = vllm.prepare(spec, context, deadline)
        return boot(
            command(spec, found.stack, found.model),
            spec,
            context,
            flavour=VLLM,
            facts={
                **found.facts,
                "artifact": identity.artifact(
                    spec,
                    weights=found.model.facts(),
                    versions=found.stack.packages,
                    target={name: host_facts()[f"host.{name}"] for name in ("arch", "cpu_model")},
                ),
            },
            vocabulary=found.vocabulary,
            deadline=deadline,
        )


def command(spec: ResourceSpec, stack: Stack, model: models.ResolvedModel) -> ServerCommand:
    """vLLM's command line and environment for a spec."""
    from neuronbench.serving.openai_server import ServerCommand

    settings = spec.settings
    own: dict[str, Json] = {
        "max_model_len": settings["max_model_len"],
        "max_num_seqs": settings["max_num_seqs"],
        "enforce_eager": settings["enforce_eager"] or None,
        "enable_prefix_caching": settings["prefix_caching"],
    }
    argv = [*vllm.words(stack, model, settings), *vllm.flags({**own, **settings["engine_args"]})]
    env = {**clean_environment(), **vllm.QUIET}
    if settings["kv_cache_gib"] is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(settings["kv_cache_gib"])
    if settings["omp_threads_bind"] is not None:
        env["VLLM_CPU_OMP_THREADS_BIND"] = str(settings["omp_threads_bind"])
    env.update({name: str(value) for name, value in settings["server_env"].items()})
    return ServerCommand(
        argv=argv, env=env, model_name=settings["served_model"], shown_env=(*_SHOWN_ENV, *settings["server_env"])
    )


def _wrong_settings(settings: FrozenMap) -> str:
    """What makes these settings impossible, in one line; empty when nothing does."""
    wrong = vllm.wrong_settings(settings)
    if wrong:
        return wrong
    gib = settings["kv_cache_gib"]
    if gib is not None and (not isinstance(gib, int) or isinstance(gib, bool) or gib < 1):
        return f"kv_cache_gib: vLLM takes whole GiB from 1, found {gib!r}"
    return ""
