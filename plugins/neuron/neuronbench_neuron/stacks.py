"""Environments with the Neuron SDK: told apart by what they hold, and what a program of one needs around it.

AWS's images have several side by side in `/opt`, for serving, tracing and training; which is which is asked of their
interpreters, not read from their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench import Stack
from neuronbench.stacks import Candidate, Need, clean_environment, find, inspect, interpreter

PLACEHOLDERS: Final[Mapping[str, Sequence[str]]] = {
    "torch-neuronx": ("1.0",),
    "neuronx-cc": ("1.0.post1",),
    "neuronx-distributed": ("0.1",),
    "neuronx-distributed-inference": ("0.1.0",),
    "libneuronxla": ("1.0",),
    "nki": ("0.0.1",),
    "vllm-neuron": ("0.1.0",),
    "neuronperf": ("1.0",),
}
"""Packages of the Neuron SDK whose names on PyPI are taken by empty stand-ins, and those versions."""
FAKE: Final = "neuronbench-fake-stack"
"""Distribution that made-up environments claim to have (see `neuronbench.testing.neuron`)."""
NEEDS: Final[Mapping[str, Sequence[Need]]] = {
    "serving": (Need(module="vllm"), Need(module="torch_neuronx", distributions=("torch-neuronx",))),
    "compile": (Need(module="torch_neuronx", distributions=("torch-neuronx",)),),
    "train": (Need(module="torch_neuronx", distributions=("torch-neuronx",)),),
}
PREFERRED: Final[Mapping[str, Sequence[str]]] = {
    "serving": ("vllm-neuron", "optimum-neuron"),
    "compile": ("neuronx-cc",),
    "train": ("optimum-neuron", "neuronx-distributed", "trl", "peft"),
}
"""Of environments that all will do, the one with more of these is taken; on a tie the newest name."""
PACKAGES: Final = (
    "accelerate", "datasets", "libneuronxla", "neuronx-cc", "neuronx-distributed", "neuronx-distributed-inference",
    "nki", "numpy", "optimum", "optimum-neuron", "peft", "safetensors", "tokenizers", "torch", "torch-neuronx",
    "torch-xla", "transformers", "trl", "vllm", "vllm-neuron",
)  # fmt: skip
"""Distributions whose versions can change results."""
PJRT_TOOL: Final = "libneuronpjrt-path"
"""A program of libneuronxla that torch-xla runs by name to find the device: it must be on PATH."""
TOOLS: Final = "opt/aws/neuron/bin"


def choose(
    kind: str,
    settings: Any,
    venvs: Sequence[Path],
    *,
    made_up_host: bool,
    fits: Callable[[Mapping[str, str], str], bool] = lambda packages, python: True,
) -> Stack:
    """The environment for `kind` (`serving`, `compile`, `train`): told, or the one of `venvs` that holds most for it.

    `fits(packages, python)` says whether software runs on this host's cores: what does not is taken last.

    Raises `LookupError` that lists where it looked, and for a made-up environment on a host that is not made up.
    """
    if kind not in NEEDS:
        raise LookupError(f"Neuron has no stack for {kind!r}; it has: {', '.join(NEEDS)}")
    ordered = list(venvs)
    if kind not in settings.stacks and "any" not in settings.stacks:
        ordered.sort(key=lambda path: _rank(kind, path, fits))  # keeps the order of equals: newest names first
    stack = find(
        kind,
        settings,
        [Candidate(path=path, source="the environments of the Neuron image") for path in ordered],
        needs=NEEDS[kind],
        packages=(*PACKAGES, FAKE),
        placeholders=PLACEHOLDERS,
        remedy="use an image with the Neuron SDK, whose environments are /opt/aws_neuronx_venv_*, "
        f"or name one: --nb-stack {kind}=PATH",
    )
    if FAKE in stack.packages and not made_up_host:
        raise LookupError(
            f"{stack.python} is a made-up environment ({FAKE}), and this host is not: what it measures would look "
            f"real\n  To do: name another with --nb-stack {kind}=PATH"
        )
    return stack


def environment(stack: Stack, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for a program of `stack`: this process's, with the environment's own programs first on PATH.

    Neuron's libraries run `libneuronpjrt-path` by name, and its tools are on the PATH of login shells only.
    """
    environment = clean_environment(environ)
    path = environment.get("PATH", os.defpath)
    environment["PATH"] = os.pathsep.join([str(stack.python.parent), path, str(root / TOOLS)])
    return environment


def lacks_pjrt_tool(stack: Stack) -> bool:
    """Whether the environment has torch-xla but not the program it needs: lanes then fail with a missing file."""
    return "torch-xla" in stack.packages and not (stack.python.parent / PJRT_TOOL).exists()


def _rank(kind: str, venv: Path, fits: Callable[[Mapping[str, str], str], bool]) -> tuple[bool, int]:
    """Lower is better: what runs here first, then what holds more of what is wanted."""
    python = interpreter(venv)
    if python is None:
        return True, 0
    names = {*PACKAGES, FAKE, *(name for need in NEEDS[kind] for name in need.names)}
    found = inspect(python, packages=names, modules=[need.module for need in NEEDS[kind]], placeholders=PLACEHOLDERS)
    return not fits(found.packages, found.version), -sum(name in found.packages for name in PREFERRED[kind])
