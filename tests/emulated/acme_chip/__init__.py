"""Acme's chip for neuronbench."""

from __future__ import annotations

from collections.abc import Callable

from neuronbench import BackendInfo, ProviderInfo, hookimpl

NEURONBENCH_API = "1.1"


@hookimpl
def register_backends(register: Callable[[BackendInfo], None]) -> None:
    register(BackendInfo(name="acme1", title="Acme chip", family="acme", target="acme_chip.backend:AcmeBackend"))


@hookimpl
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    for kind, target in (("endpoint", "served:AcmeServer"), ("compiled_model", "compiled:AcmeCompiler")):
        register(ProviderInfo(name=f"{kind}/acme", kind=kind, families=("acme",), target=f"acme_chip.{target}"))
