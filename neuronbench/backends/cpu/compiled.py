"""A model compiled ahead of time for the CPU (AOTInductor), in workers.

Parameters of a point: those of `neuronbench.compiled.provider`. `threads` are pinned to as many cores and are part of
what is compiled; `compiler_flags` are options of Inductor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench import artifacts, compiled
from neuronbench.backends.cpu.processor import cores_of, cpu_flags, cxx, floor, host_cores
from neuronbench.compiled import CompiledBoot, CompiledProvider
from neuronbench.environment import host_facts
from neuronbench.model import FrozenMap, Json, ResourceSpec, fingerprint
from neuronbench.protocols import Backend, Floor, Stack, Unsupported
from neuronbench.stacks import clean_environment
from neuronbench.weights.shared_artifacts import scope_part
from neuronbench.worker.boot import OFFLINE
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import WorkerModel

if TYPE_CHECKING:
    from neuronbench.config import Settings

HANDLERS: Final = Path(__file__).parent / "handlers"
MODULE: Final = "aoti"


class AotiBoot(CompiledBoot):
    """One boot: each copy on cores of the host of its own."""

    def key_parts(self, stack: Stack, identity: Mapping[str, Json]) -> dict[str, Json]:
        return key_parts(self.given, stack, identity)

    def launch(self, stack: Stack, index: int) -> Launch:
        return replace(self.aside(stack, compiling=False), cores=cores_of(index, self.given["threads"]))

    def aside(self, stack: Stack, *, compiling: bool) -> Launch:
        given = self.given
        return Launch(
            python=stack.python, handlers=HANDLERS, module=MODULE, env=environment(given, self.scratch),
            arguments={"threads": given["threads"], "family": given["family"]}, rules=self.rules,
        )  # fmt: skip

    def compile_options(self) -> dict[str, Json]:
        return {"flags": {"cpp.threads": self.given["threads"], **self.given["compiler_flags"]}}

    def floor(self, made: Mapping[str, Json]) -> Floor:
        return floor(made["flops_per_call"], self.given["dtype"], self.given["threads"])

    def max_workers(self) -> int:
        threads: int = self.given["threads"]
        return max(len(host_cores()) // threads, 1)

    def ready(self, model: WorkerModel, worker: Worker) -> None:
        model.host_bound = True


class AotiCpuProvider(CompiledProvider):
    """`neuronbench.protocols.Provider` of compiled models on the CPU."""

    booting = AotiBoot

    def wrong(self, given: FrozenMap, backend: Backend, settings: Settings) -> str:
        if given["tp_degree"] != 1:
            return f"tp_degree {given['tp_degree']}: a model is not spread over cores here; give a copy more `threads`"
        if given["threads"] > len(host_cores()):
            return f"threads: {given['threads']} are asked for, this process may use {len(host_cores())} cores"
        return ""

    def missing(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        if not cxx():
            return Unsupported(reason="no C++ compiler on the PATH; AOTInductor needs one: install g++, or set CXX")
        return None


def key_parts(given: FrozenMap, stack: Stack, identity: Mapping[str, Json]) -> dict[str, Json]:
    """All that decides what the compiler makes; the digest of it is the artifact's key."""
    versions = {name: stack.packages.get(name) for name in ("torch", "transformers", "python")}
    return {
        "compiler": "aoti",
        "model": dict(identity),
        "family": given["family"],
        "task": given["task"],
        "shape": {name: given[name] for name in compiled.SHAPE},
        "dtype": given["dtype"],
        "threads": given["threads"],
        "flags": given["compiler_flags"],
        "env": given["worker_env"],
        "versions": {**versions, "cxx": cxx()},
        "target": target(),
        "handler": artifacts.source_digest(HANDLERS / f"{MODULE}.py", *compiled.family_files(given["family"])),
    }


def target() -> dict[str, Json]:
    """The machine code is for the processor it was made on."""
    host = host_facts()
    return {"arch": host["host.arch"], "cpu": host["host.cpu_model"], "flags": fingerprint(list(cpu_flags()))}


def scopes(settings: Settings, backend: Backend) -> list[str]:
    """For what artifacts must have been made to be of use on this host: its stack's torch, and this very processor."""
    try:
        version = backend.stack("compile", settings).packages.get("torch")
    except LookupError:  # nothing is compiled here
        return []
    return [scope_part("aoti", str(version), target())] if version else []


def environment(given: FrozenMap, scratch: Path) -> dict[str, str]:
    """Of the worker: as many threads as the model copy has, and every cache that a compiler might keep in a folder that
    goes with the resource, so that a cold compile is cold."""
    threads = str(given["threads"])
    env = {**clean_environment(), **OFFLINE}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env[name] = threads
    env.update(TORCHINDUCTOR_CACHE_DIR=str(scratch / "inductor"), TMPDIR=str(scratch))
    env.update({name: str(value) for name, value in given["worker_env"].items()})
    return env
