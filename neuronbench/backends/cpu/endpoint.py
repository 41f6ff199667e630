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

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from neuronbench import models
from neuronbench.environment import host_facts
from neuronbench.model import Failure, FrozenMap, Json, Point, ResourceSpec, slug
from neuronbench.protocols import Backend, BootContext, BootError, ProviderInfo, Stack, Unsupported
from neuronbench.serving import identity
from neuronbench.serving.openai_server import ServerCommand, boot
from neuronbench.serving.phases import VLLM
from neuronbench.serving.server import OpenAIServer
from neuronbench.stacks import clean_environment

if TYPE_CHECKING:
    from neuronbench.config import Settings

DEFAULTS: Final[Mapping[str, Json]] = {
    "model": "",
    "served_model": None,
    "dtype": "bfloat16",
    "max_model_len": None,
    "max_num_seqs": None,
    "enforce_eager": True,
    "prefix_caching": False,
    "kv_cache_gib": 1,
    "omp_threads_bind": None,
    "engine_args": {},
    "server_env": {},
}
_OURS: Final = frozenset({"model", "host", "port", "served_model_name", "uds"})
"""Arguments of vLLM that this module decides."""
_QUIET: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_SHOWN_ENV: Final = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", *_QUIET)


class VllmCpuProvider:
    """`neuronbench.protocols.Provider` of endpoints on the CPU."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        """What to serve and how; parameters that are not given have their defaults written out."""
        given = {name: point.get(name, default) for name, default in DEFAULTS.items()}
        if not given["served_model"]:
            given["served_model"] = served_name(str(given["model"]))
        return ResourceSpec(
            kind="endpoint",
            backend=backend.info.name,
            provider=self.info.name,
            settings=FrozenMap(given),
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        wrong = _wrong_settings(spec.settings)
        if wrong:
            return Unsupported(reason=wrong)
        length = spec.settings["max_model_len"]
        known = models.metadata(spec.settings["model"], settings).max_model_len
        if length is not None and known is not None and length > known:
            return Unsupported(
                reason=f"max_model_len {length} is above the {known} tokens that {spec.settings['model']} was made for"
            )
        try:
            backend.stack("serving", settings)
        except LookupError as error:
            return Unsupported(reason=" ".join(str(error.args[0]).split()))
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> OpenAIServer:
        deadline = time.monotonic() + context.deadline_s
        try:
            stack = context.backend.stack("serving", context.settings)
        except LookupError as error:
            text = str(error.args[0])
            failure = Failure(
                kind="stack_missing", phase="boot", message=text, causal_line=text.partition("\n")[0],
                cause="no Python environment here can serve",
                remedy="Run `make stack`, or give one: --nb-stack serving=PATH.",
            )  # fmt: skip
            raise BootError(failure) from error
        context.progress(f"looking up {spec.settings['model']}")
        try:
            model = models.resolve(
                spec.settings["model"],
                context.settings,
                progress=context.progress,
                python=stack.python,
                spawn=context.spawn,
                deadline_s=deadline - time.monotonic(),
            )
        except models.ModelError as error:
            raise BootError(error.failure(), facts={"stack": _stack_facts(stack)}) from error
        vocabulary = model.vocabulary
        if vocabulary is not None and spec.settings["max_model_len"] is not None:
            vocabulary = replace(vocabulary, max_model_len=spec.settings["max_model_len"])
        return boot(
            command(spec, stack, model),
            spec,
            context,
            flavour=VLLM,
            facts={
                "stack": _stack_facts(stack),
                "model": model.facts(),
                "artifact": identity.artifact(
                    spec,
                    weights=model.facts(),
                    versions=stack.packages,
                    target={name: host_facts()[f"host.{name}"] for name in ("arch", "cpu_model")},
                ),
            },
            vocabulary=vocabulary,
            deadline=deadline,
        )


def served_name(reference: str) -> str:
    """A short name for a reference: the catalogue's, else its last part."""
    try:
        parsed = models.parse(reference)
    except models.ModelError:
        return ""
    entry = models.known(parsed.name)
    return str(entry["name"]) if entry else slug(parsed.name.rstrip("/").rpartition("/")[2])


def command(spec: ResourceSpec, stack: Stack, model: models.ResolvedModel) -> ServerCommand:
    """vLLM's command line and environment for a spec."""
    settings = spec.settings
    argv = [
        str(stack.python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model.path), "--served-model-name", settings["served_model"],
        "--host", "127.0.0.1", "--port", "{port}",
        "--dtype", settings["dtype"], "--disable-uvicorn-access-log",
    ]  # fmt: skip
    own: dict[str, Json] = {
        "max_model_len": settings["max_model_len"],
        "max_num_seqs": settings["max_num_seqs"],
        "enforce_eager": settings["enforce_eager"] or None,
        "enable_prefix_caching": settings["prefix_caching"],
    }
    argv += flags({**own, **settings["engine_args"]})
    env = {**clean_environment(), **_QUIET}
    if settings["kv_cache_gib"] is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(settings["kv_cache_gib"])
    if settings["omp_threads_bind"] is not None:
        env["VLLM_CPU_OMP_THREADS_BIND"] = str(settings["omp_threads_bind"])
    env.update({name: str(value) for name, value in settings["server_env"].items()})
    return ServerCommand(
        argv=argv, env=env, model_name=settings["served_model"], shown_env=(*_SHOWN_ENV, *settings["server_env"])
    )


def flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Command-line words for arguments by name: true → `--name`, false → `--no-name`, null → nothing, a mapping →
    JSON, a list → the name and all its values."""
    for name, value in arguments.items():
        option = "--" + name.lstrip("-").replace("_", "-")
        if value is None:
            continue
        if value is True:
            yield option
        elif value is False:
            yield "--no-" + option[2:]
        elif isinstance(value, Mapping):
            yield from (option, json.dumps(dict(value), sort_keys=True))
        elif isinstance(value, list):
            yield from (option, *map(str, value))
        else:
            yield from (option, str(value))


def _wrong_settings(settings: FrozenMap) -> str:
    """What makes these settings impossible, in one line; empty when nothing does."""
    if not settings["model"] or not isinstance(settings["model"], str):
        return "the point has no `model` (a model reference), so there is nothing to serve"
    if not settings["served_model"]:
        return f"{settings['model']!r} is not a model reference"
    for name in ("max_model_len", "max_num_seqs"):
        value = settings[name]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            return f"{name}: expected a whole number from 1, found {value!r}"
    gib = settings["kv_cache_gib"]
    if gib is not None and (not isinstance(gib, int) or isinstance(gib, bool) or gib < 1):
        return f"kv_cache_gib: vLLM takes whole GiB from 1, found {gib!r}"
    for name in ("engine_args", "server_env"):
        if not isinstance(settings[name], Mapping):
            return f"{name}: expected a table of names and values, found {settings[name]!r}"
    ours = sorted(_OURS & {name.lstrip("-").replace("-", "_") for name in settings["engine_args"]})
    if ours:
        return f"engine_args may not set {', '.join(ours)}: neuronbench decides that"
    return ""


def _stack_facts(stack: Stack) -> dict[str, Json]:
    return {"python": str(stack.python), "source": stack.source, "packages": stack.packages.to_json()}
