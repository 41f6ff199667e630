"""One boot on NeuronCores: cores are taken first, arguments are said in full, each copy is on cores of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from neuronbench import Backend, Stack, artifacts, compiled
from neuronbench.catalog.accelerators import accelerator_of
from neuronbench.compiled import CompiledBoot
from neuronbench.definitions import metric
from neuronbench.model import Failure, Json, ResourceSpec
from neuronbench.protocols import Floor, PointFailure
from neuronbench.worker.boot import OFFLINE
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import WorkerModel
from neuronbench_neuron import compat, cores, stacks
from neuronbench_neuron.compiled import flags
from neuronbench_neuron.compiled.profiled import Captured, ProfiledModel
from neuronbench_neuron.hardware import Hardware, tool_environment

HANDLERS: Final = Path(__file__).parent / "handlers"
MODULE: Final = "traced"
FOR_HANDLER: Final = ("threads", "family", "placement", "cores", "num_workers", "loading")
LAUNCH_US: Final = 5.0
"""Half of the smallest gap between two executions that is documented (10 to 13 µs, asynchronous, up to SDK 2.30): no
call is faster."""
VERSIONS: Final = ("neuronx-cc", "torch-neuronx", "torch", "torch-xla", "libneuronxla", "transformers", "python")


class NeuronModel(ProfiledModel):
    """A traced model on cores of its own."""

    compile_cache: Path | None = None
    """Where its workers would keep what they compile: nothing, once it is loaded."""
    leases: Mapping[int, cores.CoreLease] = MappingProxyType({})
    """Copy → the NeuronCores it has."""

    @property
    def core_ids(self) -> list[int]:
        """Of all its copies: what `neuron-monitor` is to look at."""
        return sorted(core for lease in self.leases.values() for core in lease.ids)

    def cores_of(self, index: int) -> Sequence[int] | None:
        lease = self.leases.get(index)
        return None if lease is None else lease.ids


class NeuronCompiledBoot(CompiledBoot):
    """One boot. Cores are taken before anything starts and given back when the model has stopped."""

    model_class: ClassVar[type[WorkerModel]] = NeuronModel

    def __init__(self, spec: ResourceSpec, context: Any) -> None:
        super().__init__(spec, context)
        self.host: Hardware = host_of(context.backend)
        self._leases: dict[int, cores.CoreLease] = {}

    def run(self) -> WorkerModel:
        model = super().run()
        if "profile" in self.given and isinstance(model, ProfiledModel):
            model.captured = self._captured()
        return model

    def begin(self, stack: Stack) -> None:
        self.facts.update(compat.facts(use_of(self.spec, self.host, stack)))

    def key_parts(self, stack: Stack, identity: Mapping[str, Json]) -> dict[str, Json]:
        given = self.given
        return {
            "compiler": "neuronx-cc",
            "model": dict(identity),
            "family": given["family"],
            "task": given["task"],
            "shape": self._shape(),
            "dtype": given["dtype"],
            "threads": given["threads"],
            "flags": self.arguments(),
            "loading": given["loading"],
            "inline_weights": given["inline_weights"],
            "env": given["worker_env"],
            "versions": {name: stack.packages.get(name) for name in VERSIONS},
            "target": {"target": target_of(self.host), "core": self.host.core_version, "lnc": lnc_of(self.host)},
            "handler": artifacts.source_digest(HANDLERS / f"{MODULE}.py", *compiled.family_files(given["family"])),
        }

    def arguments(self) -> list[str]:
        """Of the compiler."""
        return flags.arguments(self.given, target=target_of(self.host), lnc=lnc_of(self.host))

    def launch(self, stack: Stack, index: int) -> Launch:
        return replace(self.aside(stack, compiling=False), env=self._environment(stack, self._lease(index)))

    def aside(self, stack: Stack, *, compiling: bool) -> Launch:
        """Tracing loads what it has compiled: the compiler's worker has the first copy's cores while no copy runs."""
        given = self.given
        arguments = {
            name: given[name] for name in ("threads", "family", "placement", "cores", "num_workers", "loading")
        }
        return Launch(
            python=stack.python, handlers=HANDLERS, module=MODULE, rules=self.rules, arguments=arguments,
            env=self._environment(stack, self._lease(0) if compiling else None),
        )  # fmt: skip

    def build(self, source: Mapping[str, Json], *, reference: bool) -> dict[str, Json]:
        found = super().build(source, reference=reference)
        return found if reference else {**found, "shape": self._shape()}

    def compile_options(self) -> dict[str, Json]:
        given = self.given
        return {
            "arguments": self.arguments(), "analyze": given["analyze"], "inline_weights": given["inline_weights"],
        }  # fmt: skip

    def load_options(self, made: Mapping[str, Json]) -> dict[str, Json]:
        return {"writes": {name: told["writes"] for name, told in made["parts"].items()}, "split": split_of(self.given)}

    def floor(self, made: Mapping[str, Json]) -> Floor:
        given = self.given
        kind = flags.arithmetic(given)
        chip = accelerator_of(self.host.instance_type or self.host.family)
        peak = (
            chip.peak(kind if kind != "float16" else "bfloat16", logical_core_config=lnc_of(self.host))
            if chip
            else None
        )
        return Floor(
            launch_us=LAUNCH_US,
            flops_per_call=made["flops_per_call"] * split_of(given),
            peak_flops=peak.flops * given["cores"] if peak else 0.0,
            source=f"{peak.source}, {given['cores']} of them" if peak else f"no documented peak for {kind}",
        )

    def max_workers(self) -> int:
        return max(len(self.host.visible) // int(self.given["cores"]), 1)

    def ready(self, model: WorkerModel, worker: Worker) -> None:
        given, made = self.given, self.facts["artifact"]
        if isinstance(model, NeuronModel):
            model.compile_cache, model.leases = self.compile_cache, self._leases
        neffs = {name: told["neff"] for name, told in made["parts_made"].items()}
        known = [told["bytes"] for told in neffs.values() if told]
        self.metrics.append(metric("executable_size", sum(known) if known else None, n=len(known)))
        self.metrics.append(metric("first_call", model.call().duration_ns / 1e6, n=1))
        self.facts["neuron"] = {
            **self._told(),
            "placement": given["placement"],
            "compiled_batch": self._shape()["batch_size"],
            "neff": neffs,
            "analyze": {name: told["analyze"] for name, told in made["parts_made"].items()},
            "caches_through_host": any(told["writes"] for told in made["parts_made"].values()),
        }

    def neff_of(self, part: str) -> str:
        """Name of the file, without its suffix, in which a part's NEFF is kept with the artifact."""
        return part

    def let_go(self) -> None:
        for lease in self._leases.values():
            lease.release()

    # -- parts

    @property
    def compile_cache(self) -> Path:
        """Of the workers: it begins empty and goes with them."""
        return self.scratch / "neuron-compile-cache"

    def _captured(self) -> Captured:
        made = self.facts["artifact"]["parts_made"]
        kept = {name: told["neff"] for name, told in made.items() if told["neff"]}
        return Captured(
            neffs={name: f"{self.neff_of(name)}.neff" for name in kept},
            executables={name: told["executables"] for name, told in kept.items()},
            host=self.host, environ=tool_environment(self.host.root),
        )  # fmt: skip

    def _told(self) -> dict[str, Json]:
        what, to = flags.auto_cast(self.given)
        return {
            "compiler_arguments": self.arguments(),
            "auto_cast": what if what == "none" else f"{what}-{to}",
            "arithmetic": flags.arithmetic(self.given),
            "target": target_of(self.host),
            "core_version": self.host.core_version,
            "logical_core_config": lnc_of(self.host),
            "cores": list(self._lease(0).ids),
        }

    def _shape(self) -> dict[str, Json]:
        shape = {name: self.given[name] for name in compiled.SHAPE}
        return {**shape, "batch_size": shape["batch_size"] // split_of(self.given)}

    def _lease(self, index: int) -> cores.CoreLease:
        if index not in self._leases:
            try:
                self._leases[index] = cores.take(
                    int(self.given["cores"]), host=self.host, owner=f"copy {index} of compiled model {self.spec.id}"
                )
            except (cores.CoresBusy, ValueError) as error:
                line = " ".join(str(error).split())
                raise PointFailure(
                    Failure(
                        kind="cores_busy", phase="boot" if index == 0 else "warmup", message=line, causal_line=line,
                        cause="NeuronCores belong to one process at a time, and those that are free do not suffice",
                        remedy="Wait for who has them or end it; or ask for fewer copies: --nb-set workers=1.",
                    )
                ) from error  # fmt: skip
        return self._leases[index]

    def _environment(self, stack: Stack, lease: cores.CoreLease | None) -> dict[str, str]:
        given = self.given
        base = {**stacks.environment(stack, self.host.root), **OFFLINE}
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            base[name] = str(given["threads"])
        # A compile that is called cold is cold: nothing of another run is at hand.
        base.update(TMPDIR=str(self.scratch), NEURON_COMPILE_CACHE_URL=str(self.compile_cache))
        base.pop("NEURON_CC_FLAGS", None)  # arguments come from the point alone
        if lease is not None:
            base = lease.environ(base)
        return {**base, **{name: str(value) for name, value in given["worker_env"].items()}}


def host_of(backend: Backend) -> Hardware:
    found = getattr(backend, "found", None)
    if not isinstance(found, Hardware):
        raise TypeError(f"the provider of Neuron's compiled models is for Neuron's backends, found {backend!r}")
    return found


def use_of(spec: ResourceSpec, host: Hardware, stack: Stack) -> compat.Use:
    """What is about to be used, for the rules of what cannot work."""
    settings = {"sequence_length": spec.settings["sequence_length"], "dtype": spec.settings["dtype"]}
    told: dict[str, Any] = compat.host_of(host, stack)
    return compat.Use(purpose="compile", backend=spec.backend, settings=settings, **told)


def split_of(given: Mapping[str, Json]) -> int:
    """Parts that a call's batch is split into."""
    return int(given["cores"]) if given["placement"] == "data_parallel" else 1


def target_of(host: Hardware) -> str:
    """The compiler's `--target` for a host."""
    return host.instance.compiler_target if host.instance else host.family


def lnc_of(host: Hardware) -> int:
    """Physical cores of a logical one."""
    return host.logical_core_config or 1
