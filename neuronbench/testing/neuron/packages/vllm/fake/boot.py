"""From a command line to a server that listens, in the steps and with the words of vLLM on Neuron."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import options, plan
from .compiling import Compiler, say
from .failing import end, fail
from .profiling import Capture
from .settings import Told


def main(argv: Sequence[str]) -> None:
    """Start, or end as the real one would."""
    started = time.monotonic()
    told, there = Told.read(), plan.installed()
    version = there.get("vllm", options.versions()[-1])
    there["vllm"] = version
    asked = options.parser(version).parse_args(list(argv))
    if "vllm-neuron" in there and "optimum-neuron" in there:
        fail("two_plugins")
    if plan.number(version) >= (0, 10) and not {"vllm-neuron", "optimum-neuron"} & there.keys():
        fail("no_plugin")
    native = plan.number(version) >= plan.NATIVE_SINCE
    if native and "NEURON_RT_VISIBLE_CORES" in os.environ:
        fail("visible_cores")
    say("Resolved architecture: LlamaForCausalLM")
    try:
        made = plan.make(asked, there, _length(asked.model))
    except plan.Wrong as error:
        end("ERROR 11-30 02:00:00 [core.py:708] Traceback (most recent call last):",
            f"ERROR 11-30 02:00:00 [core.py:708] ValueError: {error}")  # fmt: skip
    say(f"Initializing a V1 LLM engine (v{version}) with {made.plugin or 'no plugin'}")
    say(f"Starting to load model {made.model}...")
    if not native and "vllm-neuron" in there:
        if made.overrides is None:
            given = dict(made.additional)
            say(f"No neuron overrides are passed via additional_config: {given}. Proceeding with defaults.")
        else:
            say(f"Retrieved override_neuron_config from additional_config: {dict(made.overrides)}")
    compiler = Compiler(made, told)
    if not told.lazy and not (not native and compiler.artifacts()):
        begun = time.monotonic()
        for graph in made.graphs:
            compiler.graph(graph)
        compiler.keep_artifacts()
        if not native:
            print(f"Compiling and tracing time: {time.monotonic() - begun:.2f} seconds", flush=True)
    else:
        for graph in () if told.lazy else made.graphs:
            compiler.seconds[graph] = 0.01
    if told.fail and told.fail_at == "load":
        fail(told.fail)
    time.sleep(told.load_s)
    say(f"Loading weights took {told.load_s:.2f} seconds")
    if not native:
        print(f"Total model loading time: {told.load_s:.2f} seconds", flush=True)
    working = made.seqs
    if told.kv_seqs is not None and told.kv_seqs < made.seqs:
        working = told.kv_seqs
        say(f"max_num_seqs ({made.seqs}) exceeds worst-case KV cache capacity ({working} concurrent requests at "
            f"max_model_len={made.length}, assuming no prefix cache hits). Effective concurrency will be capped at "
            f"{working} to prevent KV cache exhaustion and request preemption.", "WARNING")  # fmt: skip
    say(f"init engine (profile, create kv cache, warmup model) took {time.monotonic() - started:.2f} seconds")
    if told.fail and told.fail_at == "ready":
        fail(told.fail)
    _serve(made, told, compiler, working, port=int(asked.port or 8000), startup_s=time.monotonic() - started)


def _length(model: str) -> int | None:
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("max_position_embeddings")
    return found if isinstance(found, int) else None


def _serve(made: plan.Plan, told: Told, compiler: Compiler, working: int, *, port: int, startup_s: float) -> None:
    from neuronbench.testing.truth.server import serve
    from neuronbench.testing.truth.settings import Settings

    from .service import NeuronService
    from .watched import Runtime

    settings = Settings(
        port=port, ttft_ms=told.ttft_ms, tpot_ms=told.tpot_ms, max_concurrency=working, models=(made.served,),
        max_model_len=made.length, prefix_cache=made.prefix_caching,
    )  # fmt: skip
    capture, runtime = Capture(asynchronous=made.native), Runtime()
    service = functools.partial(
        NeuronService, plan=made, told=told, compiler=compiler, startup_s=startup_s, capture=capture, runtime=runtime
    )

    def ready(url: str) -> None:
        print(f"(APIServer pid={os.getpid()}) INFO:     Waiting for application startup.", file=sys.stderr)
        print(f"(APIServer pid={os.getpid()}) INFO:     Application startup complete.", file=sys.stderr, flush=True)

    try:
        serve(settings, service=service, ready=ready)
    finally:
        capture.close()
        runtime.close()
