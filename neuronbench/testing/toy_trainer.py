"""A trainer that needs no accelerator's software: a real worker and protocol, a thread with a queue for a device.

For tests of benchmarks, plugins and the harness itself. Register it in a `conftest.py`:

```python
@hookimpl
def register_resources(register):
    register(ProviderInfo(name="trainer/toy", kind="trainer", families=("fake",),
                          target="neuronbench.testing.toy_trainer:ToyTrainerProvider"))
```

Parameters of a point: those of `TrainJob`, and `behaviour` and `at` (see `toy_handlers/toy_train.py`), `work_ms` (what
a micro-batch takes), `queue_depth` (how many may wait), `peak_flops` (what its core is said to do at best).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Point, ResourceSpec
from neuronbench.protocols import Backend, BootContext, BootError, Peak, PointFailure, ProviderInfo, Unsupported
from neuronbench.stacks import clean_environment
from neuronbench.training import TrainJob
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.trainer import WorkerTrainer

HANDLERS: Final = Path(__file__).parent / "toy_handlers"
DEFAULTS: Final = {
    "behaviour": "plain",
    "at": 3,
    "work_ms": 4.0,
    "queue_depth": 3,
    "world_size": 1,
    "peak_flops": 1e11,
}
HANDLER: Final = ("behaviour", "at", "work_ms", "queue_depth")
"""Those of `DEFAULTS` that the handler's constructor takes."""


class ToyTrainerProvider:
    """`neuronbench.protocols.Provider` of toy trainers."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        given = {name: point.get(name, default) for name, default in DEFAULTS.items()}
        return ResourceSpec(
            kind="trainer", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given)
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerTrainer:
        try:
            return start(spec, context.folder, context.spawn, deadline_s=context.deadline_s)
        except PointFailure as error:
            raise BootError(error.failure) from error


def start(spec: ResourceSpec, folder: Path, spawn: Any, *, deadline_s: float = 30.0) -> WorkerTrainer:
    """A toy in its worker, in this very interpreter."""
    given = spec.settings
    launch = Launch(
        python=Path(sys.executable),
        handlers=HANDLERS,
        module="toy_train",
        env=clean_environment(),
        arguments={name: given[name] for name in HANDLER},
    )

    def started(number: int) -> Worker:
        name = spec.id if number == 1 else f"{spec.id}-{number}"
        return Worker.start(launch, name=name, folder=folder, spawn=spawn, deadline_s=deadline_s)

    begun = time.monotonic()
    worker = started(1)
    return WorkerTrainer(
        spec,
        worker,
        world_size=given["world_size"],
        cores=given["world_size"],
        peak=Peak(flops=float(given["peak_flops"]), dtype="float32", source="the toy says so", date="2025-01-01"),
        facts={"device": "a thread with a queue"},
        boot_metrics=[metric("load_time", time.monotonic() - begun, n=1)],
        call_deadline_s=deadline_s,
        restart=started,
    )


def toy_spec(**settings: Any) -> ResourceSpec:
    """The spec of a toy, for tests without a provider."""
    return ResourceSpec(
        kind="trainer", backend="fake", provider="trainer/toy", settings=FrozenMap({**DEFAULTS, **settings})
    )


def toy_job(**changes: Any) -> TrainJob:
    """A job that a toy trains in a moment."""
    given: dict[str, Any] = {
        "method": "lora_sft",
        "steps": 12,
        "model": "toy",
        "sequence_length": 32,
        "batch_size": 2,
        "packing": False,
    }
    return TrainJob(**{**given, **changes})
