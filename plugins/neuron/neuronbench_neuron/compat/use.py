"""What is about to be used, and what is found to be wrong with it."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from neuronbench.model import Json

ALLOW_VARIABLE: Final = "NEURONBENCH_NEURON_ALLOW"
"""Ids of rules, with commas, that are not to stop a point; it is in the environment of its record then."""

_LARGEST: Final = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Use:
    """A purpose on some hardware with some software. What is not known is empty, and judged by no rule.

    `settings` are those of a resource's spec; these count, all else is ignored:
    `tensor_parallel_size`, `pipeline_parallel_size`, `data_parallel_size`, `world_size`, `logical_core_config`,
    `max_model_len`, `max_num_seqs`, `input_tokens`, `sequence_length`, `micro_batch_size`, `dtype`, `kv_cache_dtype`,
    `kv_cache_bounded` (it is smaller than all sequences at their full length), `quantization`, `parameter_count`,
    `method` (`lora`, `full`), `enable_prefix_caching`, `block_size`, `enable_lora`, `speculative_config`,
    `enable_chunked_prefill`, `context_buckets`, `decode_buckets`, `seqs_buckets`, `batched_tokens_buckets`,
    `max_num_batched_tokens`, `sdk`.
    """

    purpose: Literal["serve", "compile", "train"]
    backend: str
    """`trn1`, `trn2`, `inf2`."""
    instance_type: str
    """`inf2.xlarge`; empty when unknown."""
    core_version: str
    """`v2`, `v3`; empty when unknown."""
    logical_cores: int
    """Cores as programs see them that may be used; 0 when unknown."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution → version, of the stack."""
    python: str = ""
    """Version of the stack's Python."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The model's `config.json`."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str, default: int = 0) -> int:
        """A whole number above 0 among the settings; `default` for anything else."""
        number = whole(self.settings.get(name))
        return number if number is not None and number > 0 else default

    def of_model(self, *names: str) -> int:
        """The first of these numbers that the model's configuration has, in its text part too; 0 when it has none."""
        text = self.model.get("text_config")
        for part in (self.model, text if isinstance(text, Mapping) else {}):
            for name in names:
                number = whole(part.get(name))
                if number is not None and number > 0:
                    return number
        return 0

    @property
    def tensor_parallel_size(self) -> int:
        return self.number("tensor_parallel_size", 1)

    @property
    def experts(self) -> int:
        return self.of_model("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that is broken."""

    id: str
    rule: str
    """What must hold."""
    observed: str
    limit: str
    remedy: str
    source: str
    known_bad: bool = False
    """It starts, and fails or answers wrong: a defect that may be gone with the next release."""

    @property
    def text(self) -> str:
        remedy = self.remedy.replace("{allow}", f"{ALLOW_VARIABLE}={self.id}")
        limit = f" (limit: {self.limit})" if self.limit else ""
        return f"{self.rule}: found {self.observed}{limit}. To do: {remedy} [{self.id}: {self.source}]"


@functools.cache
def table() -> Mapping[str, Any]:
    """`table.toml`."""
    return tomllib.loads((resources.files(__name__.rpartition(".")[0]) / "table.toml").read_text(encoding="utf-8"))


def entry_for(section: str, packages: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The first entry of the table whose `match` holds for these packages."""
    entries: Sequence[Mapping[str, Any]] = table()[section]
    for entry in entries:
        if all(holds(specifier, packages.get(name, "")) is True for name, specifier in entry["match"].items()):
            return entry
    return None


def holds(specifier: str, version: str) -> bool | None:
    """Whether a version (empty: the package is not there) is one of `specifier`; None when it cannot be read."""
    if specifier == "absent":
        return not version
    if not version:
        return False
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def whole(value: Json) -> int | None:
    """A whole number, also as text; None for anything else, and for numbers that count nothing there is."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if (number == value or isinstance(value, str)) and abs(number) < _LARGEST else None


def numbers(value: Json) -> list[int]:
    """A list of whole numbers; empty for anything else."""
    found = [whole(one) for one in value] if isinstance(value, (list, tuple)) else []
    return [one for one in found if one is not None] if None not in found else []
