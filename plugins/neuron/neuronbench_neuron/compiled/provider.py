"""A model traced and compiled for NeuronCores, in workers, each copy on cores of its own.

Parameters of a point: those of `neuronbench.compiled.settings` (`threads` are torch's on the host), and

| parameter | default | meaning |
|---|---|---|
| `auto_cast` | `none` | what the compiler casts: `none`, `matmult`, `all`; or with the type, `matmult-bf16` |
| `auto_cast_type` | `bf16` | to what: `bf16`, `fp16`, `tf32`, `fp8_e4m3` |
| `optlevel` | 2 | of the compiler |
| `compiler_model_type` | `generic` | its `--model-type`: `generic`, `transformer`, `unet-inference` |
| `cores` | 1 | NeuronCores of a copy, as programs see them |
| `placement` | `cores` | or `data_parallel`: a call's batch is split over the copy's cores; `multicore`: replicated |
| `num_workers` | – | of `data_parallel`; the library's own default is two for each core |
| `loading` | `eager` | or `lazy`, `async`: kept in the saved file; the first call then pays, and is timed apart |
| `inline_weights` | true | weights are part of the NEFF |
| `analyze` | true | ask `torch_neuronx.analyze` before the compiler runs; unsupported operators fail then and there |
| `profile` | false | when the point has ended, the tool executes its NEFFs once more and captures a profile |

With `family` = `nki` it is a kernel instead: see `kernels.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from neuronbench import Backend, compiled
from neuronbench.compiled import CompiledProvider
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.protocols import BootContext, Unsupported
from neuronbench.worker.boot import without_stack
from neuronbench.worker.compiled import WorkerModel
from neuronbench_neuron import compat, cores
from neuronbench_neuron.compiled import flags, kernels
from neuronbench_neuron.compiled.boot import NeuronCompiledBoot, host_of, split_of, use_of
from neuronbench_neuron.profile import tools as profiler

if TYPE_CHECKING:
    from neuronbench.config import Settings

PLACEMENTS: Final = ("cores", "data_parallel", "multicore")
LOADINGS: Final = ("eager", "lazy", "async")


class NeuronCompiledProvider(CompiledProvider):
    """`neuronbench.protocols.Provider` of compiled models on Neuron."""

    defaults: ClassVar[Mapping[str, Json]] = {
        **compiled.DEFAULTS, **flags.DEFAULTS, "cores": 1, "placement": "cores", "num_workers": None,
        "loading": "eager", "inline_weights": True, "analyze": True, **kernels.DEFAULTS,
    }  # fmt: skip
    booting = NeuronCompiledBoot

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerModel:
        kind = kernels.KernelBoot if spec.settings["family"] == kernels.FAMILY else self.booting
        return kind(spec, context).run()

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        given = spec.settings
        variables = given["worker_env"] if isinstance(given["worker_env"], Mapping) else {}  # else said below
        unseen = profiler.refused(given.get("profile"), variables, host_of(backend).root)
        unseen = unseen or cores.named_by("worker_env", variables, "a model", "cores")
        if unseen:
            return Unsupported(reason=unseen)
        if given["family"] != kernels.FAMILY:
            return super().check(spec, backend, settings)
        wrong = kernels.wrong(given) or flags.wrong(given)
        if wrong:
            return Unsupported(reason=wrong)
        return without_stack(backend, "compile", settings) or self.missing(spec, backend, settings)

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        """It has all cores of the host: as many copies as fit may be asked for. One that leaves a profile is nobody
        else's: it ends with its point."""
        spec = super().spec(point, backend, settings)
        given = spec.settings
        if point.get("profile", False) is not False:
            given = FrozenMap({**given, "profile": True, "profile_of": point.id})
        return replace(spec, settings=given, cores=max(len(host_of(backend).visible), 1))

    def missing(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        """A combination of hardware and software that cannot work."""
        try:
            stack = backend.stack("compile", settings)
        except LookupError:
            return None  # said by whoever looks for the stack
        if spec.settings["family"] == kernels.FAMILY and "neuronx-cc" not in stack.packages:
            return Unsupported(reason=f"no neuronx-cc, which brings NKI, in {stack.python} ({stack.source})")
        return compat.refusal(use_of(spec, host_of(backend), stack))

    def wrong(self, given: FrozenMap, backend: Backend, settings: Settings) -> str:
        if given["tp_degree"] != 1:
            return (
                f"tp_degree {given['tp_degree']}: torch_neuronx.trace does not spread one model over cores; "
                "`placement` = data_parallel splits its batch"
            )
        host = host_of(backend)
        if host.cores and (type(given["cores"]) is not int or not 1 <= given["cores"] <= len(host.visible)):
            return f"cores: expected 1 to {len(host.visible)} of this host, found {given['cores']!r}"
        for name, known in (("placement", PLACEMENTS), ("loading", LOADINGS)):
            if given[name] not in known:
                return f"{name}: expected one of {', '.join(known)}, found {given[name]!r}"
        if given["batch_size"] % split_of(given):
            return f"batch_size {given['batch_size']} does not go into {given['cores']} cores of data_parallel"
        if split_of(given) > 1 and given["family"] in ("asr", "seq2seq"):
            return f"data_parallel: a {given['family']} model is a loop of graphs, which is not split"
        workers = given["num_workers"]
        if workers is not None and (type(workers) is not int or workers < 1):
            return f"num_workers: expected a whole number from 1, found {workers!r}"
        for name in ("inline_weights", "analyze"):
            if not isinstance(given[name], bool):
                return f"{name}: expected true or false, found {given[name]!r}"
        return flags.wrong(given)
