"""A compiled model on the chip."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from acme_chip.backend import COMPILER, AcmeBackend, compile_s
from neuronbench import BootContext, BootError, Point, PointFailure, ProviderInfo, ResourceSpec, Unsupported
from neuronbench.artifacts import ArtifactCache
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap
from neuronbench.protocols import Floor
from neuronbench.stacks import clean_environment
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import Plan, WorkerModel, start_copy

HANDLERS = Path(__file__).parent / "handlers"
BATCH = 2


class AcmeCompiler:
    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: AcmeBackend, settings: Any) -> ResourceSpec:
        given = {"work_us": point.get("work_us", 500.0), "batch_size": point.get("batch_size", BATCH)}
        return ResourceSpec(
            kind="compiled_model", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given)
        )

    def check(self, spec: ResourceSpec, backend: AcmeBackend, settings: Any) -> Unsupported | None:
        if spec.settings["batch_size"] != BATCH:
            return Unsupported(reason=f"batch_size {spec.settings['batch_size']}: the chip takes {BATCH} and no other")
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerModel:
        launch = Launch(
            python=Path(sys.executable), handlers=HANDLERS, module="chip", env=clean_environment(),
            arguments={"work_us": spec.settings["work_us"]}, rules=context.backend.failure_rules(),
        )  # fmt: skip

        def compile(folder: Path) -> Any:
            worker = Worker.start(
                launch, name="acmecc", folder=context.folder, spawn=context.spawn, deadline_s=context.deadline_s
            )
            try:
                asked = {"target": str(folder), "seconds": compile_s()}
                return worker.call("compile", asked, deadline_s=context.deadline_s, phase="boot").value
            finally:
                worker.stop()

        try:
            found = ArtifactCache(context.settings.cache_dir).obtain(
                {"compiler": COMPILER, "batch_size": BATCH}, compile,
                progress=context.progress, deadline_s=context.deadline_s,
            )  # fmt: skip
            plan = Plan(
                launch=lambda index: launch, load={"folder": str(found.folder)}, reference=launch,
                folder=context.folder, spawn=context.spawn, name=spec.id,
                call_deadline_s=30.0, load_deadline_s=context.deadline_s,
            )  # fmt: skip
            worker, loaded = start_copy(plan, 0)
        except PointFailure as error:
            raise BootError(error.failure) from error
        return WorkerModel(
            spec, plan, worker, loaded.value,
            batch_size=BATCH, floor=Floor(launch_us=50.0, source="Acme"), max_workers=context.backend.probe().cores,
            facts={"artifact": {"key": found.key, "cache": "hit" if found.hit else "miss"}},
            boot_metrics=[
                metric("cache_hits", int(found.hit), n=1), metric("cache_misses", int(not found.hit), n=1),
            ],
        )  # fmt: skip
