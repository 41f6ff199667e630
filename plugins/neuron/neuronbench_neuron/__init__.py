"""AWS Trainium and Inferentia for neuronbench: registers the backends `trn1`, `trn2` and `inf2`."""

from __future__ import annotations

from collections.abc import Callable

from neuronbench import BackendInfo, hookimpl

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
