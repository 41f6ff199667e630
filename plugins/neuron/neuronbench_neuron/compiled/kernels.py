"""Kernels of NKI as compiled models: simulated against numpy first, and timed on a core by the SDK's own loop.

Parameters of a point with `family` = `nki`:

| parameter | default | meaning |
|---|---|---|
| `task` | – | the kernel: `add`, `softmax`, `rms_norm` |
| `rows` | 128 | of each input; whole tiles of 128 |
| `columns` | 512 | |
| `weights_seed` | 0 | of the inputs that the simulator is checked with |
| `compiler_flags`, `worker_env` | | as of other compiled models |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from neuronbench import Stack, artifacts
from neuronbench.definitions import metric
from neuronbench.model import Json, Metric
from neuronbench.protocols import Floor
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import WorkerModel
from neuronbench_neuron.compiled.boot import HANDLERS, VERSIONS, NeuronCompiledBoot, lnc_of, target_of
from neuronbench_neuron.compiled.profiled import ProfiledModel

FAMILY: Final = "nki"
MODULE: Final = "kernels"
KERNELS: Final = ("add", "softmax", "rms_norm")
DEFAULTS: Final[Mapping[str, Json]] = {"rows": 128, "columns": 512}
TILE: Final = 128
COLUMNS: Final = 8192
"""Of fp32 that a partition holds several tiles of beside each other."""
BOUNDED: Final = {0.5: 100, 0.99: 1000}
"""Executions that a percentile takes: there are no samples whose order could bound it."""


def wrong(given: Mapping[str, Json]) -> str:
    """What makes these settings impossible, in one line; empty when nothing does."""
    if given["task"] not in KERNELS:
        return f"task: expected a kernel, one of {', '.join(KERNELS)}; found {given['task']!r}"
    if given["dtype"] != "float32":
        return f"dtype: kernels are of float32, found {given['dtype']!r}"
    for name, step, most in (("rows", TILE, 1 << 20), ("columns", 1, COLUMNS)):
        value = given[name]
        if not isinstance(value, int) or isinstance(value, bool) or not step <= value <= most or value % step:
            return f"{name}: expected a multiple of {step} up to {most}, found {value!r}"
    return ""


class KernelModel(ProfiledModel):
    """A kernel on a core. Its calls give answers; its times come from the SDK's own loop."""

    def device_times(self, *, warmup: int, iterations: int) -> list[Metric]:
        """Time of one execution on the device, p50 and p99; null where so many executions do not make a percentile."""
        percentiles = sorted(BOUNDED)
        arguments: dict[str, Json] = {
            "warmup": warmup, "iterations": iterations, "percentiles": [100 * each for each in percentiles],
        }  # fmt: skip
        told = self._ask(0, "device_times", arguments, self._batch).value
        found = []
        for percentile, us in zip(percentiles, told["us"], strict=True):
            enough = iterations >= BOUNDED[percentile]
            note = f"by {told['source']}, which gives no samples; not observed by neuronbench"
            if not enough:
                note = f"{iterations} executions; it takes {BOUNDED[percentile]}"
            value = us if enough else None
            found.append(metric("kernel_time", value, stat=f"p{100 * percentile:g}", n=iterations, note=note))
        return found


class KernelBoot(NeuronCompiledBoot):
    """One boot of a kernel: there are no weights, and the simulator comes before the device."""

    model_class: ClassVar[type[WorkerModel]] = KernelModel

    def title(self) -> str:
        given = self.given
        return f"NKI {given['task']} {given['rows']}×{given['columns']} {given['dtype']}"

    def key_parts(self, stack: Stack, identity: Mapping[str, Json]) -> dict[str, Json]:
        given = self.given
        return {
            "compiler": "nki",
            "model": dict(identity),
            "family": FAMILY,
            "task": given["task"],
            "shape": {name: given[name] for name in DEFAULTS},
            "dtype": given["dtype"],
            "threads": given["threads"],
            "flags": self.arguments(),
            "env": given["worker_env"],
            "versions": {name: stack.packages.get(name) for name in (*VERSIONS, "numpy")},
            "target": {"target": target_of(self.host), "core": self.host.core_version, "lnc": lnc_of(self.host)},
            "handler": artifacts.source_digest(HANDLERS / f"{MODULE}.py"),
        }

    def aside(self, stack: Stack, *, compiling: bool) -> Launch:
        given = self.given
        return Launch(
            python=stack.python, handlers=HANDLERS, module=MODULE, rules=self.rules,
            arguments={"kernel": given["task"], "rows": given["rows"], "columns": given["columns"]},
            env=self._environment(stack, self._lease(0) if compiling else None),
        )  # fmt: skip

    def neff_of(self, part: str) -> str:
        return "kernel"

    def build(self, source: Mapping[str, Json], *, reference: bool) -> dict[str, Json]:
        return {}

    def compile_options(self) -> dict[str, Json]:
        return {"arguments": self.arguments(), "seed": self.given["weights_seed"]}

    def load_options(self, made: Mapping[str, Json]) -> dict[str, Json]:
        return {}

    def floor(self, made: Mapping[str, Json]) -> Floor:
        return Floor()

    def max_workers(self) -> int:
        return 1

    def ready(self, model: WorkerModel, worker: Worker) -> None:
        (told,) = self.facts["artifact"]["parts_made"].values()
        self.facts["neuron"] = {**self._told(), "simulated_error": told["simulated_error"], "neff": told["neff"]}

    def sourced(self, stack: Stack) -> tuple[dict[str, Json], dict[str, Json]]:
        self.facts["model"] = {"reference": None, "weights": "none", "note": "a kernel: inputs from a seed"}
        return {}, {"kernel": self.given["task"], "seed": self.given["weights_seed"]}
