"""A model's tokenizer in a worker of its own, open for as long as queries come.

`measure.lease("tokenizer", tokenizer=FOLDER)`: `FOLDER` is that of the model's files, with `tokenizer.json` in it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench import Backend, BootContext, Failure, Point, PointFailure, ProviderInfo, ResourceSpec, Unsupported
from neuronbench.model import FrozenMap, Json, Metric
from neuronbench.stacks import clean_environment
from neuronbench.worker.boot import OFFLINE, Boot
from neuronbench.worker.client import Launch, Worker

HANDLERS: Final = Path(__file__).parent / "handlers"
CALL_S: Final = 30.0


class TokenizerProvider:
    """`neuronbench.protocols.Provider` of tokenizers. Its parameter is `tokenizer`, a folder."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        given = FrozenMap(folder=str(point.get("tokenizer") or ""))
        return ResourceSpec(
            kind="tokenizer", backend=backend.info.name, provider=self.info.name, settings=given, cores=0
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        folder = spec.settings["folder"]
        if not folder or not Path(folder, "tokenizer.json").is_file():
            return Unsupported(reason=f"no tokenizer.json in {folder or 'the weights, which have no folder'}")
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> Tokenizer:
        boot = Boot(spec, context)
        return boot.told(lambda: self._boot(boot))

    def _boot(self, boot: Boot) -> Tokenizer:
        stack = boot.stack("compile")
        launch = Launch(python=stack.python, handlers=HANDLERS, module="tokens", env={**clean_environment(), **OFFLINE})
        worker = Worker.start(
            launch, name=boot.spec.id, folder=boot.context.folder, spawn=boot.context.spawn, deadline_s=boot.left_s()
        )
        try:
            opened = worker.call("open", {"folder": boot.spec.settings["folder"]}, deadline_s=boot.left_s())
        except BaseException:
            worker.stop()
            raise
        return Tokenizer(boot.spec, worker, opened.value)


class Tokenizer:
    """`neuronbench.protocols.Resource`. May be used by several threads: they wait for each other."""

    def __init__(self, spec: ResourceSpec, worker: Worker, opened: Mapping[str, Json]) -> None:
        self.spec, self._worker, self.facts = spec, worker, dict(opened)
        self.boot_metrics: Sequence[Metric] = ()
        self.padding = int(opened["padding"])
        self._lock = threading.Lock()

    @property
    def logs(self) -> Sequence[Path]:
        return [self._worker.log]

    def encode(self, texts: Sequence[str], length: int) -> Mapping[str, Any]:
        """`ids`, `special` (1 for a token that stands for no text) of each text; how many were `truncated`."""
        with self._lock:
            value: Mapping[str, Any] = self._worker.call(
                "encode", {"texts": list(texts), "length": length}, deadline_s=CALL_S
            ).value
        return value

    def alive(self) -> bool:
        return self._worker.alive()

    def pids(self) -> Sequence[int]:
        return [self._worker.pid] if self._worker.alive() else []

    def diagnose(self, phase: str) -> Failure | None:
        return self._worker.diagnose(phase)

    def stop(self) -> None:
        self._worker.stop()


__all__ = ["PointFailure", "Tokenizer", "TokenizerProvider"]
