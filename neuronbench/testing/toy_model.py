"""A compiled model that needs no accelerator's software: real workers, real protocol, a pause for a device.

For tests of benchmarks, plugins and the harness itself. Register it in a `conftest.py`:

```python
@hookimpl
def register_resources(register):
    register(ProviderInfo(name="compiled_model/toy", kind="compiled_model", families=("fake",),
                          target="neuronbench.testing.toy_model:ToyProvider"))
```

Parameters of a point: `behaviour` (see `toy_handlers/toy.py`), `work_us` (how long a call takes), `launch_us` (the
floor it declares), `flags` (of its compiler; `{"break": true}` raises, `{"die": true}` is killed).
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from neuronbench import artifacts
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Point, ResourceSpec
from neuronbench.protocols import Backend, BootContext, BootError, Floor, PointFailure, ProviderInfo, Unsupported
from neuronbench.stacks import clean_environment
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import WorkerModel
from neuronbench.worker.copies import Plan, start_copy

HANDLERS: Final = Path(__file__).parent / "toy_handlers"
DEFAULTS: Final = {"behaviour": "plain", "work_us": 300.0, "launch_us": 20.0, "flags": {}}
BATCH: Final = 2


def launch(behaviour: str = "plain", work_us: float = 300.0, **changes: Any) -> Launch:
    """How to start a worker with the toy handler, in this very interpreter."""
    given: dict[str, Any] = {
        "python": Path(sys.executable),
        "handlers": HANDLERS,
        "module": "toy",
        "env": clean_environment(),
        "arguments": {"behaviour": behaviour, "work_us": work_us},
    }
    return Launch(**{**given, **changes})


class ToyProvider:
    """`neuronbench.protocols.Provider` of toys."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        given = {name: point.get(name, default) for name, default in DEFAULTS.items()}
        return ResourceSpec(
            kind="compiled_model", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given)
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerModel:
        """Through the artifact cache, in a compiler's worker and a model's worker, as a real one."""
        given = spec.settings
        start = launch(given["behaviour"], given["work_us"])
        facts: dict[str, Any] = {}

        def compile(folder: Path) -> Any:
            worker = Worker.start(
                start, name=f"{spec.id}-compiler", folder=context.folder, spawn=context.spawn,
                deadline_s=context.deadline_s,
            )  # fmt: skip
            try:
                arguments = {"target": str(folder), "flags": given["flags"]}
                reply = worker.call("compile", arguments, deadline_s=context.deadline_s, phase="boot")
            finally:
                worker.stop()
            return {**reply.value, "wall_s": reply.elapsed_s}

        try:
            found = artifacts.ArtifactCache(context.settings.cache_dir).obtain(
                {"compiler": "toy", "flags": given["flags"]},
                compile,
                progress=context.progress,
                deadline_s=context.deadline_s,
                failure_of=lambda error: error.failure if isinstance(error, PointFailure) else None,
            )
            facts["artifact"] = {
                "key": found.key, "cache": "hit" if found.hit else "miss", "notes": list(found.notes),
            }  # fmt: skip
            return load(spec, context.folder, context.spawn, start, facts=facts, hit=found.hit)
        except PointFailure as error:
            raise BootError(error.failure, facts=facts) from error


def load(
    spec: ResourceSpec,
    folder: Path,
    spawn: Any,
    start: Launch,
    *,
    facts: Any = None,
    hit: bool = False,
    pinned: bool = False,
) -> WorkerModel:
    """A toy in its worker; `pinned`: each copy to a core of its own."""
    cores = sorted(os.sched_getaffinity(0)) if pinned else []

    def copy(index: int) -> Launch:
        return replace(start, cores=[cores[index]]) if pinned else start

    plan = Plan(
        launch=copy, load={}, reference=start, folder=folder, spawn=spawn, name=spec.id, call_deadline_s=30.0,
        load_deadline_s=30.0,
    )  # fmt: skip
    worker, loaded = start_copy(plan, 0)
    return WorkerModel(
        spec, plan, worker, loaded.value,
        batch_size=BATCH, floor=Floor(launch_us=float(spec.settings["launch_us"])), max_workers=os.cpu_count() or 1,
        facts=facts or {},
        boot_metrics=[
            metric("load_time", loaded.value["seconds"], n=1),
            metric("cache_hits", int(hit), n=1),
            metric("cache_misses", int(not hit), n=1),
        ],
    )  # fmt: skip


def toy_spec(**settings: Any) -> ResourceSpec:
    """The spec of a toy, for tests without a provider."""
    return ResourceSpec(
        kind="compiled_model",
        backend="fake",
        provider="compiled_model/toy",
        settings=FrozenMap({**DEFAULTS, **settings}),
    )
