"""AWS Trainium and Inferentia for neuronbench: registers the backends `trn1`, `trn2` and `inf2`, and what runs on them.

What does the work is imported on first use: this module costs a run on other hardware nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from neuronbench import BackendInfo, Point, ProviderInfo, Record, Resource, SamplerSpec, Unsupported, hookimpl

NEURONBENCH_API = "1"

TITLES = {
    "trn1": "AWS Trainium (Trn1 instances)",
    "trn2": "AWS Trainium2 (Trn2 instances)",
    "inf2": "AWS Inferentia2 (Inf2 instances)",
}


@hookimpl
def register_backends(register: Callable[[BackendInfo], None]) -> None:
    for name, title in TITLES.items():
        register(
            BackendInfo(name=name, title=title, family="neuron", target="neuronbench_neuron.backend:NeuronBackend")
        )


@hookimpl
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    register(
        ProviderInfo(
            name="compiled_model/neuron",
            kind="compiled_model",
            families=("neuron",),
            target="neuronbench_neuron.compiled.provider:NeuronCompiledProvider",
        )
    )
    register(
        ProviderInfo(
            name="endpoint/vllm-neuron",
            kind="endpoint",
            families=("neuron",),
            target="neuronbench_neuron.serving.endpoint:NeuronServingProvider",
        )
    )
    for name, target in (("optimum-neuron", "OptimumProvider"), ("nxd", "NxdProvider")):
        register(
            ProviderInfo(
                name=f"trainer/{name}",
                kind="trainer",
                families=("neuron",),
                target=f"neuronbench_neuron.training.provider:{target}",
            )
        )


@hookimpl
def configured(session: Any) -> None:
    _sessions[:] = [session]


@hookimpl
def check_point(point: Point, backend: BackendInfo) -> Unsupported | None:
    """Requests that no compiled size of the server holds are refused before it boots."""
    if backend.family != "neuron" or not _sessions:
        return None
    from neuronbench_neuron.serving.hooks import check_point

    return check_point(point, _sessions[0])


@hookimpl(wrapper=True)
def measuring(point: Point, resource: Resource | None, record: Record) -> Generator[None, Any, Any]:
    """Whether a server or a compiled model on Neuron compiled anything under the load, its warm-up included."""
    provider = resource.spec.provider if resource is not None else ""
    if resource is None or provider not in ("endpoint/vllm-neuron", "compiled_model/neuron"):
        return (yield)
    if provider == "compiled_model/neuron":
        from neuronbench_neuron.compiled.hooks import watched
    else:
        from neuronbench_neuron.serving.hooks import watched

    with watched(resource, record):
        return (yield)


@hookimpl
def finish_record(record: Record) -> None:
    """Strangers on the devices, sources that disagree about the host, rules that were set aside: marked."""
    if record.point.backend not in TITLES:
        return
    from neuronbench_neuron.marks import mark

    mark(record, _sessions[0].plugins.backend(record.point.backend).found if _sessions else None)


@hookimpl
def telemetry_samplers(point: Point, resource: Resource) -> list[SamplerSpec]:
    """`neuron-monitor` and the driver's counters, over the cores that the resource has."""
    if point.backend not in TITLES or not _sessions:
        return []
    from neuronbench_neuron.monitor.hooks import samplers

    return samplers(point, resource, _sessions[0].plugins.backend(point.backend).found)


_sessions: list[Any] = []
"""The session that is going on, for hooks that are not told of it."""
