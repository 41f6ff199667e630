"""A served model on the chip: as many answers at once as there are chips, the others wait."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acme_chip.backend import COMPILER, AcmeBackend, compile_s
from neuronbench import BackendInfo, BootContext, Endpoint, Point, ProviderInfo, ResourceSpec, Unsupported, Vocabulary
from neuronbench.artifacts import ArtifactCache
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Json
from neuronbench.serving.openai_server import ServerCommand, boot

DEFAULTS: Mapping[str, Json] = {"model": "acme", "ttft_ms": 20.0, "tpot_ms": 2.0, "tensor_parallel": 1, "flags": ""}


class AcmeServer:
    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: AcmeBackend, settings: Any) -> ResourceSpec:
        given = {name: point.get(name, default) for name, default in DEFAULTS.items()}
        return ResourceSpec(
            kind="endpoint", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given),
            cores=max(backend.chips, 1),
        )  # fmt: skip

    def check(self, spec: ResourceSpec, backend: AcmeBackend, settings: Any) -> Unsupported | None:
        wanted = spec.settings["tensor_parallel"]
        if wanted > max(backend.chips, 1):
            return Unsupported(reason=f"tensor_parallel {wanted} needs as many chips, there are {backend.chips}")
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> Endpoint:
        given, backend = spec.settings, context.backend
        assert isinstance(backend, AcmeBackend)
        compiled = ArtifactCache(context.settings.cache_dir).obtain(
            {"compiler": COMPILER, "model": given["model"], "tensor_parallel": given["tensor_parallel"]},
            _compile, progress=context.progress, deadline_s=context.deadline_s,
        )  # fmt: skip
        argv = [sys.executable, "-m", "neuronbench.testing.truth_server", "--port", "{port}"]
        argv += ["--ttft-ms", str(given["ttft_ms"]), "--tpot-ms", str(given["tpot_ms"])]
        argv += ["--max-concurrency", str(backend.chips), *given["flags"].split()]
        command = ServerCommand(argv=argv, env=dict(os.environ), model_name="truth")
        server = boot(command, spec, context, vocabulary=Vocabulary(size=30000, max_model_len=4096))
        server.boot_metrics = [
            *server.boot_metrics,
            metric("cache_hits", int(compiled.hit), n=1),
            metric("cache_misses", int(not compiled.hit), n=1),
        ]
        return server


def _compile(folder: Path) -> Mapping[str, Json]:
    time.sleep(compile_s())
    (folder / "model.acme").write_bytes(b"a program for the chip")
    return {"compiler": COMPILER}


__all__ = ["AcmeServer", "BackendInfo"]
