"""How vLLM on Neuron words its start, its compiles and what it silently does otherwise than asked."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from neuronbench.serving.phases import VLLM, Flavour

COMPILES: Final = re.compile(
    r"Call compiler with cmd|Compilation complete in [\d.]+ ?s|forcing recompilation|Compiling and tracing time"
)
"""A graph was, or is being, compiled."""
HITS: Final = re.compile(r"Using a cached neff|Local cache hit for key")
"""A compiled graph was found."""
NO_OVERRIDES: Final = re.compile(r"No neuron overrides are passed via additional_config")
"""Generation 1 found no keys for Neuron where it looks for them."""
CAPPED: Final = "effective_concurrency"
NEURON: Final[Flavour] = dataclasses.replace(
    VLLM,
    name="vllm-neuron",
    stages=(
        *VLLM.stages[:2],
        (re.compile(r"Compilation cache key|Call compiler with cmd|\bCompiling\b"), "compiling"),
        (HITS, "loading compiled graphs"),
        (re.compile(r"Total model loading time|Loading weights took"), "loading the model on the device"),
        *VLLM.stages[3:],
    ),
    readings=(
        *VLLM.readings,
        (re.compile(r"Effective concurrency will be capped at (\d+)"), CAPPED),
        (re.compile(r"Compiling and tracing time: ([\d.]+) seconds"), "compile_s"),
        (re.compile(r"Total model loading time: ([\d.]+) seconds"), "load_s"),
        (re.compile(r"Compile cache path: (\S+)"), "compile_cache"),
        (re.compile(r"(No neuron overrides) are passed via additional_config"), "overrides"),
        (re.compile(r"(Unable to find precompiled artifacts|Failed to load from \S+\. Recompiling)"), "artifacts"),
    ),
)
"""The start of vLLM on Neuron."""
