"""The embedded default backend, the CPU of this host: vLLM, AOTInductor, trl. Registered as a third party does it."""

from __future__ import annotations

from collections.abc import Callable

from neuronbench.hookspecs import hookimpl
from neuronbench.protocols import BackendInfo, ProviderInfo

NEURONBENCH_API = "1.1"


@hookimpl
def register_backends(register: Callable[[BackendInfo], None]) -> None:
    register(
        BackendInfo(
            name="cpu",
            title="This host's CPU",
            target="neuronbench.backends.cpu.backend:CpuBackend",
            family="cpu",
        )
    )


@hookimpl
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    register(
        ProviderInfo(
            name="endpoint/vllm-cpu",
            kind="endpoint",
            families=("cpu",),
            target="neuronbench.backends.cpu.endpoint:VllmCpuProvider",
        )
    )
    register(
        ProviderInfo(
            name="compiled_model/aoti-cpu",
            kind="compiled_model",
            families=("cpu",),
            target="neuronbench.backends.cpu.compiled:AotiCpuProvider",
        )
    )
    register(
        ProviderInfo(
            name="trainer/trl-cpu",
            kind="trainer",
            families=("cpu",),
            target="neuronbench.backends.cpu.trainer:TrlCpuProvider",
        )
    )
