"""Compiling that takes as long as it is told to: the log's lines, and what is left in the cache on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from .failing import fail
from .plan import Plan
from .settings import Told

COMPILER: Final = "neuronxcc-2.21.33363.0+82129205"
NEFF: Final = b"NEFF" * 64


def say(text: str, level: str = "INFO") -> None:
    """A line as vLLM's engine writes it."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"(EngineCore_DP0 pid={os.getpid()}) {level} {stamp} [neuron.py:1] {text}", flush=True)


def plain(text: str) -> None:
    print(text, flush=True)


class Compiler:
    """Compiles graphs of a plan, unless the cache has them."""

    def __init__(self, plan: Plan, told: Told) -> None:
        self.plan, self.told = plan, told
        self.seconds: dict[str, float] = {}
        """Graph → what it took, cached or not."""
        if plan.native:
            kept = os.environ.get("VLLM_CACHE_ROOT") or os.path.expanduser("~/.cache/vllm")
            self.folder = Path(kept) / "neuron" / "compile_cache"
        else:
            # That of the made-up host: the real one's is never touched.
            root = Path(os.environ.get("NEURONBENCH_NEURON_ROOT") or "/")
            url = os.environ.get("NEURON_COMPILE_CACHE_URL") or str(root / "var/tmp/neuron-compile-cache")
            # s3://... is no folder of whoever runs it; environments are in the made-up host's /opt
            store = Path(sys.prefix).parents[1] / "var/tmp/stores" / url.replace("://", "/")
            self.folder = (store if "://" in url else Path(url)) / COMPILER

    def key(self, graph: str) -> str:
        plan = self.plan
        flags = os.environ.get("NEURON_CC_FLAGS", "")
        parts = [graph, plan.version, Path(plan.model).name, plan.cores, plan.seqs, plan.length, plan.overrides, flags]
        return hashlib.md5(json.dumps(parts, sort_keys=True, default=list).encode(), usedforsecurity=False).hexdigest()

    def graph(self, name: str) -> None:
        """Compile one graph or find it."""
        if name in self.seconds:
            return
        started = time.monotonic()
        if self.plan.native:
            self._native(name)
        else:
            self._xla(name)
        self.seconds[name] = round(time.monotonic() - started, 3)

    def _native(self, name: str) -> None:
        key = self.key(name)
        say(f"Compilation cache key: {key}")
        folder = self.folder / key
        if (folder / ".compilation_complete").exists():
            say(f"Local cache hit for key: {key}")
            return
        if os.environ.get("VLLM_NEURON_ASSERT_CACHE_HIT") == "1":
            fail("cache_miss")
        say("Compiling...")
        self._wait()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "graph.hlo").write_bytes(b"hlo")
        (folder / f"graph_{key}.neff").write_bytes(NEFF)
        (folder / "command.txt").write_text(
            f"neuronx-cc compile --framework XLA graph.hlo --target trn2 -lnc 2 {name}\n"
        )
        (folder / "log-neuron-cc.txt").write_text("Compiler status PASS\n")
        (folder / ".artifact_metadata_v0.json").write_text("{}")
        (folder / ".compilation_complete").write_text(f"completed:{time.time()}\nneff_size:{len(NEFF)}\n")
        say(f"Compilation complete in {max(self.told.compile_s, 0.01):.2f} seconds")

    def _xla(self, name: str) -> None:
        folder = self.folder / f"MODULE_{self.key(name)[:20]}+39f12043"
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        if (folder / "model.done").exists():
            plain(f"{stamp}.000737:  {os.getpid()}  INFO ||NEURON_CC_WRAPPER||: Using a cached neff at "
                  f"{folder / 'model.neff'}. Exiting with a successfully compiled graph.")  # fmt: skip
            return
        if (folder / "model.log").exists():
            fail("poisoned")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.hlo_module.pb").write_bytes(b"hlo")
        (folder / "compile_flags.json").write_text(json.dumps(["--target=trn1", "--model-type=transformer"]))
        source, into = folder / "model.hlo_module.pb", folder / "model.neff"
        plain(
            f"{stamp}.000297:  {os.getpid()}  INFO ||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc compile "
            f"--target=trn1 --framework=XLA {source} --output {into}"
        )
        self._wait()
        (folder / "model.neff").write_bytes(NEFF)
        (folder / "model.done").write_bytes(b"")
        plain("Compiler status PASS")

    def _wait(self) -> None:
        if self.told.fail and self.told.fail_at == "compile":
            fail(self.told.fail)
        time.sleep(self.told.compile_s)

    def artifacts(self) -> bool:
        """Whether the whole compiled model is there already (generation 1); else it will be from now on."""
        told = os.environ.get("NEURON_COMPILED_ARTIFACTS")
        if not told:
            return False
        folder = Path(told)
        if (folder / "model.pt").exists():
            say(f"Successfully loaded precompiled model artifacts from {folder}")
            return True
        say(f"Unable to find precompiled artifacts from {folder}. Compiling.", "WARNING")
        return False

    def keep_artifacts(self) -> None:
        told = os.environ.get("NEURON_COMPILED_ARTIFACTS")
        if told and not self.plan.native:
            folder = Path(told)
            folder.mkdir(parents=True, exist_ok=True)
            config = {"tp_degree": self.plan.cores, "seq_len": self.plan.length, "max_context_length": self.plan.length,
                      "batch_size": self.plan.seqs, "enable_bucketing": True,
                      "context_encoding_buckets": list(self.plan.prefill)}  # fmt: skip
            (folder / "neuron_config.json").write_text(json.dumps({"neuron_config": config}))
            (folder / "model.pt").write_bytes(NEFF)
