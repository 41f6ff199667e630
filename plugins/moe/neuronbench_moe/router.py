"""A model's router as a resource: the model of the point in a worker of the stack, asked for its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench import Backend, BootContext, Failure, ResourceSpec, Unsupported
from neuronbench.model import Json, Metric
from neuronbench.stacks import clean_environment
from neuronbench.worker.batches import to_tensors
from neuronbench.worker.boot import OFFLINE, Boot, without_stack
from neuronbench.worker.client import Launch, Worker
from neuronbench_moe import shape as shapes
from neuronbench_moe.models import ModelProvider, MoeModel, obtain

HANDLERS: Final = Path(__file__).parent / "handlers"
CALL_S: Final = 1800.0


class RouterProvider(ModelProvider):
    """`neuronbench.protocols.Provider` of routers, on the host whatever the hardware; parameters are the model's."""

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        if spec.settings["weights"] == "dummy":
            return Unsupported(reason="weights dummy: the server draws them, and nobody else knows them; take 'seeded'")
        if spec.settings["arm"] != "moe":
            return Unsupported(reason=f"arm {spec.settings['arm']}: a dense model has no router")
        return super().check(spec, backend, settings) or without_stack(backend, "compile", settings)

    def boot(self, spec: ResourceSpec, context: BootContext) -> Router:  # type: ignore[override]
        boot = Boot(spec, context)
        return boot.told(lambda: self._boot(boot))

    def _boot(self, boot: Boot) -> Router:
        model = obtain(boot)
        launch = Launch(
            python=boot.stack("compile").python, handlers=HANDLERS, module="router",
            env={**clean_environment(), **OFFLINE}, arguments={"folder": str(model.folder)},
        )  # fmt: skip
        worker = Worker.start(
            launch, name=boot.spec.id, folder=boot.context.folder, spawn=boot.context.spawn, deadline_s=boot.left_s(),
            progress=boot.context.progress,
        )  # fmt: skip
        try:
            told = worker.call("facts", deadline_s=boot.left_s(), phase="boot").value
        except BaseException:
            worker.stop()
            raise
        return Router(boot.spec, model, worker, told)


class Router:
    """`neuronbench.protocols.Resource`."""

    def __init__(self, spec: ResourceSpec, model: MoeModel, worker: Worker, told: Mapping[str, Json]) -> None:
        self.spec, self.model, self._worker, self.told = spec, model, worker, told
        self.facts: dict[str, Json] = {**model.facts, "router": dict(told)}
        self.boot_metrics: Sequence[Metric] = ()

    @property
    def shape(self) -> shapes.Shape:
        return self.model.shape

    @property
    def logs(self) -> Sequence[Path]:
        return [self._worker.log]

    def text(self, texts: Sequence[str], sequences: int, length: int) -> list[list[int]]:
        """Tokens of texts, `sequences` of `length`. Raises `PointFailure` for texts that are too short."""
        return self._rows("tokens", {"texts": list(texts), "sequences": sequences, "length": length})

    def random(self, sequences: int, length: int, seed: int) -> list[list[int]]:
        """Tokens drawn evenly from the vocabulary."""
        return self._rows("random_tokens", {"sequences": sequences, "length": length, "seed": seed})

    def logits(self, rows: Sequence[Sequence[int]]) -> Any:
        """[layers, sequences, positions, experts] in fp32 of sequences of equal length."""
        import numpy as np

        inputs = to_tensors({"input_ids": np.array(rows, dtype="int64")})
        return self._worker.call("reference", inputs=inputs, deadline_s=CALL_S).tensors["logits"].numpy()

    def _rows(self, verb: str, arguments: Mapping[str, Json]) -> list[list[int]]:
        rows: list[list[int]] = self._worker.call(verb, arguments, deadline_s=CALL_S).value
        return rows

    def alive(self) -> bool:
        return self._worker.alive()

    def pids(self) -> Sequence[int]:
        return [self._worker.pid] if self._worker.alive() else []

    def diagnose(self, phase: str) -> Failure | None:
        return self._worker.diagnose(phase)

    def stop(self) -> None:
        self._worker.stop()
