"""A model served by vLLM on Neuron, whichever generation of it the stack holds.

Parameters of a point that are this provider's business (others are ignored):

| parameter | default | meaning |
|---|---|---|
| `model` | – | model reference (`neuronbench.models`) |
| `served_model` | from `model` | name under which it is served |
| `dtype` | `bfloat16` | |
| `max_model_len` | the model's | context in tokens |
| `max_num_seqs` | the generation's | requests the engine works on at once: the compiled batch |
| `prefix_caching` | false | off, because a second repeat sends the same prompts and would find them all cached |
| `tensor_parallel` | cores of a device | cores that one copy of the model is spread over |
| `cores` | one a rank | cores that are leased for the server |
| `buckets` | {} | compiled sizes: `prefill` (prompt tokens), `decode` (sequences), `context` (tokens looked back at) |
| `neuron_config` | {} | more keys for Neuron, in the generation's own names; unknown ones are refused |
| `unchecked_keys` | [] | keys of `neuron_config` to pass on although nobody here knows them |
| `max_num_batched_tokens` | the last prefill bucket, else 8192 | prompt tokens of one step (generation 2) |
| `block_size` | 32 with prefix caching in generation 1 | tokens of a block of the KV cache |
| `speculative_config` | null | draft model and method |
| `artifacts` | made by neuronbench | folder of a model that was compiled before (generations 0 and 1) |
| `compile_cache` | this environment's, else the usual | folder of compiled graphs |
| `require_cached` | false | fail instead of compiling (generation 2) |
| `compile_timeout_s` | the boot's deadline | limit for compiling one graph (generation 2) |
| `engine_args` | {} | more command-line arguments of vLLM, `{name: value}` |
| `server_env` | {} | more environment variables |
| `profile` | false | the runtime captures a profile from start to end of a server that is this point's alone |
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench import Backend, BootContext, BootError, ProviderInfo, Unsupported, modelfiles, models
from neuronbench.definitions import metric
from neuronbench.model import Failure, FrozenMap, Json, Point, ResourceSpec, fingerprint
from neuronbench.protocols import Stack
from neuronbench.serving import identity, vllm
from neuronbench.serving.openai_server import boot as boot_server
from neuronbench.serving.server import OpenAIServer
from neuronbench_neuron import caches, compat, cores, stacks
from neuronbench_neuron.hardware import Hardware
from neuronbench_neuron.profile import tools as profiler
from neuronbench_neuron.serving import buckets, command, evidence, generations, profiled, readiness, told
from neuronbench_neuron.serving.generations import Generation
from neuronbench_neuron.serving.log import CAPPED, NEURON
from neuronbench_neuron.serving.server import Caches, NeuronServer, compile_metrics, state
from neuronbench_neuron.serving.settings import (
    APC_BLOCK,
    DEFAULTS,
    edges_of,
    memory_of,
    most_tokens,
    of_host,
    ranks,
    refused,
    tensor_parallel,
    wrong,
)

if TYPE_CHECKING:
    from neuronbench.config import Settings


_PLACES: Final = frozenset({"artifacts", "compile_cache", "compile_timeout_s", "cores", "require_cached"})


class NeuronServingProvider:
    """`neuronbench.protocols.Provider` of endpoints on Neuron."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        """What to serve and how; parameters that are not given have their defaults written out."""
        made = vllm.spec(point, backend, self.info, DEFAULTS)
        copies, asked = made.settings["tensor_parallel"], made.settings["cores"]
        whole = all(one is None or (isinstance(one, int) and one > 0) for one in (copies, asked))
        whole = whole and isinstance(made.settings["engine_args"], Mapping)
        held = (asked or ranks(made.settings, backend.info.name)) if whole else 1
        return replace(made, settings=profiled.of_point(made.settings, point), cores=held)

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        reason = wrong(spec.settings)
        if reason:
            return Unsupported(reason=reason)
        verdict = vllm.too_long(spec.settings, settings)
        if verdict is not None:
            return verdict
        try:
            stack = backend.stack("serving", settings)
        except LookupError as error:
            return vllm.no_stack(error)
        config = known_config(str(spec.settings["model"]), settings)
        length = spec.settings["max_model_len"] or models.metadata(spec.settings["model"], settings).max_model_len
        host = host_of(backend)
        verdict = compat.refusal(use(spec, stack, host, config, length))
        if verdict is not None and not verdict.known_bad:
            return verdict
        try:
            generation = generations.of(stack.packages)
        except generations.UnknownGeneration as error:
            return Unsupported(reason=str(error))
        reason = (
            refused(spec.settings, generation, length)
            or of_host(spec.settings, spec.cores, host)
            or profiler.refused(
                spec.settings.get("profile"), spec.settings["server_env"], host.root, profiled.mode(generation)
            )
        )
        return Unsupported(reason=reason) if reason else verdict

    def boot(self, spec: ResourceSpec, context: BootContext) -> NeuronServer:
        """Lease cores, start the server, send it a request of each compiled size. Raises `BootError`."""
        return _Boot(spec, context).run()


def host_of(backend: Any) -> Hardware:
    """What the backend found on this host."""
    found: Hardware = backend.found
    return found


def known_config(reference: str, settings: Settings) -> Mapping[str, Any]:
    """The model's `config.json` where it is local already; empty where it is not."""
    try:
        folder = models.parse(reference).folder(settings.root)
        return modelfiles.read_config(folder) if (folder / "config.json").is_file() else {}
    except (models.ModelError, ValueError, OSError):
        return {}


def use(spec: ResourceSpec, stack: Stack, host: Hardware, config: Mapping[str, Any], length: int | None) -> compat.Use:
    """What `compat` judges: the settings of a point in the names of its rules."""
    asked = spec.settings
    try:
        generation: Generation | None = generations.of(stack.packages)
    except generations.UnknownGeneration:
        generation = None
    judged: dict[str, Any] = {
        "tensor_parallel_size": tensor_parallel(asked, spec.backend),
        "max_model_len": length,
        "max_num_seqs": asked["max_num_seqs"] or (generation.max_num_seqs if generation else None),
        "dtype": asked["dtype"],
        "enable_prefix_caching": asked["prefix_caching"],
        "block_size": asked["block_size"] or (APC_BLOCK if asked["prefix_caching"] else None),
        "speculative_config": asked["speculative_config"],
        **memory_of(asked),
        **{vllm.argument_name(name): value for name, value in asked["engine_args"].items()},
    }
    if generation is not None:
        judged["max_num_batched_tokens"] = most_tokens(asked, generation, length)
        judged["context_buckets"] = edges_of(asked, generation, "prefill")
        judged["decode_buckets"] = edges_of(asked, generation, "context")
        judged["seqs_buckets"] = edges_of(asked, generation, "decode")
    known = compat.host_of(host, stack)
    return compat.Use(purpose="serve", backend=spec.backend, model=config, settings=judged, **known)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class _Start:
    """All that is known of a server before it starts."""

    generation: Generation
    host: Hardware
    length: int | None
    places: command.Places
    caches: Caches
    buckets: buckets.BucketMap


class _Boot:
    """One start."""

    def __init__(self, spec: ResourceSpec, context: BootContext) -> None:
        self.spec, self.context, self.settings = spec, context, spec.settings
        self.deadline = time.monotonic() + context.deadline_s
        self.facts: dict[str, Json] = {}
        self.captured: Path | None = None
        """Where the runtime leaves a profile, where one was asked for."""

    def run(self) -> NeuronServer:
        found = vllm.prepare(self.spec, self.context, self.deadline)
        self.facts.update(found.facts)
        start = self._start(found)
        lease = self._cores(start)
        try:
            before = start.caches.look()
            argv, env = self._command(found, start, lease)
            server = boot_server(
                command.command(self.settings, argv, env), self.spec, self.context, flavour=NEURON, facts=self.facts,
                vocabulary=found.vocabulary, deadline=self.deadline,
            )  # fmt: skip
        except BaseException:
            lease.release()
            self._discard()
            raise
        try:
            return self._ready(server, lease, start, before)
        except BaseException:
            server.stop()
            lease.release()
            self._discard()
            raise

    def _discard(self) -> None:
        if self.captured is not None:
            shutil.rmtree(self.captured, ignore_errors=True)

    # -- before

    def _start(self, found: vllm.Prepared) -> _Start:
        backend = self.context.backend
        host = host_of(backend)
        try:
            generation = generations.of(found.stack.packages)
        except generations.UnknownGeneration as error:
            raise self.error("stack_unknown", str(error), "Use an environment of a Neuron image.") from error
        config = modelfiles.read_config(found.model.path)
        length = self.settings["max_model_len"] or modelfiles.max_model_len(found.model.path, config)
        judged = use(self.spec, found.stack, host, config, length)
        verdict = compat.refusal(judged)
        self.facts.update(compat.facts(judged))
        if verdict is not None and not verdict.known_bad:
            raise self.error("unsupported", verdict.reason, "See what the reason says to do.")
        reason = refused(self.settings, generation, length)
        if reason:
            raise self.error("unsupported", reason, "Change the point's parameters as said.")
        # Where compiled graphs are kept, and how long they may take, does not change what is answered.
        asked = {name: value for name, value in self.settings.items() if name not in _PLACES | profiled.SETTINGS}
        self.facts["artifact"] = identity.artifact(
            replace(self.spec, settings=FrozenMap(asked)),
            weights=found.model.facts(),
            versions=found.stack.packages,
            target={"core_version": host.core_version, "logical_core_config": host.logical_core_config},
        )
        places, artifacts = self._places(generation, found, host)
        folder = command.compiled_in(places.cache, generation)
        known = buckets.of_artifacts(places.artifacts) if self.settings["artifacts"] and places.artifacts else None
        return _Start(
            generation=generation, host=host, length=length, places=places,
            caches=Caches(folder, generation.cache, artifacts),
            buckets=known or buckets.of_settings(self.settings, generation, length),
        )  # fmt: skip

    def _places(
        self, generation: Generation, found: vllm.Prepared, host: Hardware
    ) -> tuple[command.Places, Path | None]:
        cache = command.cache_folder(self.settings, generation, host.root, os.environ)
        artifacts: Path | None = None
        if generation.major in ("0", "1"):
            # A folder for exactly these settings: what is found there is never of others, which would be ignored.
            given = self.settings["artifacts"]
            weights = found.model.facts().get("weights_digest") or str(found.model.path)
            settled = {name: value for name, value in self.settings.items() if name not in profiled.SETTINGS}
            name = fingerprint(
                {"settings": settled, "weights": weights, "packages": found.stack.packages,
                 "target": host.instance_type or host.family, "cores": host.logical_core_config},
                digest_bytes=12,
            )  # fmt: skip
            artifacts = Path(given).expanduser() if given else self.context.settings.cache_dir / caches.SERVED / name
            artifacts.mkdir(parents=True, exist_ok=True)
        prometheus: Path | None = None
        if generation.metrics:
            prometheus = self.context.folder / "prometheus"
            prometheus.mkdir(parents=True, exist_ok=True)
        return command.Places(cache=cache, artifacts=artifacts, prometheus=prometheus), artifacts

    def _cores(self, start: _Start) -> cores.CoreLease:
        try:
            lease = cores.take(self.spec.cores, host=start.host, owner=f"server {self.settings['served_model']}")
        except cores.CoresBusy as error:
            raise self.error("cores_busy", str(error), "End who has them, or wait.") from error
        except ValueError as error:
            raise self.error("unsupported", str(error), "Lower tensor_parallel or cores.") from error
        kept = start.places.artifacts
        if kept is not None and not self.settings["artifacts"]:  # `neuronbench cache prune` leaves it alone meanwhile
            lease.also(caches.served(kept.parent).use(kept.name))
        return lease

    def _command(self, found: vllm.Prepared, start: _Start, lease: cores.CoreLease) -> tuple[list[str], dict[str, str]]:
        host = command.Host(family=self.spec.backend, instance_type=start.host.instance_type)
        argv = command.words(self.settings, start.generation, found.stack, found.model, host, start.length)
        base = stacks.environment(found.stack, start.host.root)
        left_out = command.dropped(base)
        version = str(found.stack.packages.get("vllm", ""))
        env = command.environment(
            self.settings, start.generation, lease.environ(base, vllm=version), lease.ids, start.places, host,
            boot_s=max(1.0, self.deadline - time.monotonic()),
        )  # fmt: skip
        if "profile" in self.settings:
            self.captured = profiled.folder(self.context)
            env.update(profiled.environment(self.captured, start.generation))
            self.context = profiled.patient(self.context)
            self.facts["profile"] = profiled.mode(start.generation)
        self.facts.update(
            generation=start.generation.id,
            generation_title=start.generation.title,
            cores=list(lease.ids),
            tensor_parallel=tensor_parallel(self.settings, self.spec.backend),
            environment_left_out=left_out,
        )
        return argv, env

    # -- after

    def _ready(self, server: OpenAIServer, lease: cores.CoreLease, start: _Start, before: list[Any]) -> NeuronServer:
        readings: Mapping[str, Any] = server.facts.get("readings") or {}
        if command.neuron_config(self.settings, start.generation) and readings.get("overrides"):
            raise self.error(
                "config_ignored",
                "the server took no keys for Neuron, although the point gives some: it would measure something else",
                "Check the generation that was told (facts of the boot) against what is installed.",
                line="No neuron overrides are passed via additional_config",
                server=server,
            )
        started = time.monotonic()
        probed: Any = "no vocabulary to make prompts of"
        if server.vocabulary is not None:
            try:
                probed = readiness.probe(
                    server.base_url, server.model, server.vocabulary, start.buckets, length=start.length,
                    deadline=self.deadline, progress=self.context.progress,
                )  # fmt: skip
            except readiness.NotReady as error:
                raise BootError(
                    self._not_ready(server, error), metrics=server.boot_metrics, facts=server.facts
                ) from error
        happened = start.caches.since(before)
        cache: dict[str, Json] = {
            "state": state(happened),
            "compiles": sum(delta.compiles for delta in happened),
            "folder": start.places.cache,
            "what": [delta.to_json() for delta in happened],
        }
        capped = readings.get(CAPPED)
        known = evidence.Known(
            buckets=start.buckets,
            sequences=self.settings["max_num_seqs"] or start.generation.max_num_seqs,
            capped=int(capped) if capped is not None and str(capped).isdecimal() else None,
            cache=cache,
            reports=start.generation.metrics,
        )
        facts: dict[str, Json] = {
            **server.facts,
            "buckets": start.buckets.to_json(),
            "compile_cache": cache,
            "effective_concurrency": known.capped if known.capped is not None else known.sequences,
            "readiness": probed,
            "server_metrics": told.by_metrics(server.metrics_url),
            "notices": told.by_log(server.logs),
        }
        was_probed = isinstance(probed, list)
        took = metric(
            "boot_buckets",
            round(time.monotonic() - started, 3) if was_probed else None,
            n=len(probed) if was_probed else 0,
            note="" if was_probed else str(probed),
        )
        made = compile_metrics(happened)
        return NeuronServer(
            server, lease, known, start.caches, facts=facts, boot_metrics=[*server.boot_metrics, took, *made],
            captured=self.captured, root=start.host.root,
        )  # fmt: skip

    def _not_ready(self, server: OpenAIServer, error: readiness.NotReady) -> Failure:
        found = server.diagnose("boot")
        if found is not None:
            return found
        if time.monotonic() >= self.deadline:
            return Failure(
                kind="boot_timeout", phase="boot", message=str(error), causal_line=str(error),
                cause="a compiled size had its first request, and did not answer before the deadline",
                remedy="Raise the deadline (`--nb-deadline boot=SECONDS`).", log="server.log",
            )  # fmt: skip
        return Failure(
            kind="generation_failed", phase="boot", message=str(error), causal_line=str(error),
            cause="a size that the server should have compiled cannot be used",
            remedy="Leave the size out of buckets, or look for what the server's log says of it.", log="server.log",
        )  # fmt: skip

    def error(
        self, kind: str, text: str, remedy: str, *, line: str = "", server: OpenAIServer | None = None
    ) -> BootError:
        failure = Failure(kind=kind, phase="boot", message=text, causal_line=line or text, remedy=remedy)
        facts = self.facts if server is None else server.facts
        return BootError(failure, metrics=() if server is None else server.boot_metrics, facts=facts)
