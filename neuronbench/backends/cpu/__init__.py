"""The embedded default backend: vLLM on the host's CPU. Registered through the same hooks a third party uses."""

from __future__ import annotations

from collections.abc import Callable

from neuronbench.hookspecs import hookimpl
from neuronbench.model import Point
from neuronbench.protocols import BackendInfo, ProviderInfo, Unsupported


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


@hookimpl
def check_point(point: Point, backend: BackendInfo) -> Unsupported | None:
    """Prompt and answer must fit into the context that the server is started with."""
    if backend.family != "cpu":
        return None
    lengths = [point.get(name) for name in ("input_tokens", "output_tokens", "max_model_len")]
    if not all(isinstance(length, int) for length in lengths):
        return None
    given, asked, context = lengths
    if given + asked <= context:
        return None
    return Unsupported(
        reason=f"input_tokens {given} + output_tokens {asked} = {given + asked} tokens do not fit into "
        f"max_model_len {context}"
    )
