"""What command line and environment amount to: which vLLM this is, which sizes it compiles, and what is wrong."""

from __future__ import annotations

import importlib.metadata
import math
import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

NATIVE_SINCE: Final = (0, 21)
V1_SEQS: Final = 32


class Wrong(ValueError):
    """The configuration is one that the real one raises for."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is served and how it is compiled."""

    version: str
    plugin: str
    native: bool
    model: str
    served: str
    length: int
    seqs: int
    cores: int
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    chunk: int | None
    prefix_caching: bool
    overrides: Mapping[str, Any] | None
    """Keys for Neuron where the plugin looks for them; None where it finds none."""
    additional: Mapping[str, Any] = field(default_factory=dict)

    @property
    def graphs(self) -> list[str]:
        """Names of the graphs to compile."""
        return [f"prefill_s{edge}" for edge in self.prefill] + [f"decode_b{edge}" for edge in self.decode]


def installed() -> dict[str, str]:
    """Distributions that matter, and their versions."""
    found = {}
    for name in ("vllm", "vllm-neuron", "optimum-neuron"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def make(options: Namespace, there: Mapping[str, str], known_length: int | None) -> Plan:
    """The plan of a command line. Raises `Wrong`."""
    version = there["vllm"]
    native = number(version) >= NATIVE_SINCE
    length = options.max_model_len or known_length or 2048
    seqs = options.max_num_seqs or (V1_SEQS if "vllm-neuron" in there and not native else 256)
    cores = options.tensor_parallel_size or 1
    additional: Any = getattr(options, "additional_config", None) or {}
    if not isinstance(additional, dict):
        raise Wrong(f"additional_config: expected a table, got {additional!r}")
    chunk: int | None
    if native:
        keys = additional.get("neuron_config")
        prefill, decode, chunk = _native(keys or {}, options, length, seqs)
    else:
        keys = (
            additional.get("override_neuron_config") if number(version) >= (0, 10) else options.override_neuron_config
        )
        prefill, decode, chunk = _nxdi(keys or {}, length, seqs)
    visible = _visible(native)
    if visible is not None and cores > visible:
        raise Wrong(f"tensor_parallel_size ({cores}) is more than the {visible} visible cores")
    served = options.served_model_name
    return Plan(
        version=version,
        plugin=next((f"{name} {there[name]}" for name in ("vllm-neuron", "optimum-neuron") if name in there), ""),
        native=native, model=options.model, served=served[0] if isinstance(served, list) else served or options.model,
        length=length, seqs=seqs, cores=cores, prefill=prefill, decode=decode, chunk=chunk,
        prefix_caching=bool(getattr(options, "enable_prefix_caching", None)), overrides=keys, additional=additional,
    )  # fmt: skip


def _visible(native: bool) -> int | None:
    text = os.environ.get("NEURON_VISIBLE_DEVICES" if native else "NEURON_RT_VISIBLE_CORES")
    if not text:
        return None
    total = 0
    for part in text.split(","):
        low, _, high = part.partition("-")
        total += int(high or low) - int(low) + 1
    return total


def _native(
    keys: Mapping[str, Any], options: Namespace, length: int, seqs: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    most = min(options.max_num_batched_tokens or 8192, length)
    prefill, decode = keys.get("num_batched_tokens_buckets"), keys.get("num_seqs_buckets")
    for name, edges, last in (
        ("num_batched_tokens_buckets", prefill, most), ("num_seqs_buckets", decode, seqs),
    ):  # fmt: skip
        if edges is not None and (sorted(set(edges)) != list(edges) or edges[-1] != last):
            raise Wrong(f"Last value of {name} must be {last}, in strictly ascending order, got {edges}")
    for edge in keys.get("decode_context_length_buckets") or ():
        if edge >= length or edge % 128:
            raise Wrong(
                f"decode_context_length_buckets: {edge} must be below max_model_len={length} and divisible by 128"
            )
    return tuple(prefill or _doubling(128, most)), tuple(decode or _doubling(1, seqs)), most


def _nxdi(keys: Mapping[str, Any], length: int, seqs: int) -> tuple[tuple[int, ...], tuple[int, ...], None]:
    given = keys.get("context_encoding_buckets")
    if given is not None and given[-1] > length:
        raise Wrong(f"Context bucket {given[-1]} should be <= {length}")
    made = [length] if length <= 128 else [2**power for power in range(7, round(math.log2(length)))] + [length]
    if keys.get("enable_bucketing") is False:
        made = [length]
    return tuple(given or made), (seqs,), None


def _doubling(first: int, last: int) -> list[int]:
    edges = []
    while first < last:
        edges.append(first)
        first *= 2
    return [*edges, last]
