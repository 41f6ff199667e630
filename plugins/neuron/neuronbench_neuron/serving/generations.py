"""Which generation of vLLM on Neuron a stack holds: told by its packages, never assumed.

The table is `generations.toml`. What a stack holds may also be no generation at all: versions that do not belong
together, or two plugins of which vLLM activates none; such a stack is refused with what would make it one.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, Literal

from neuronbench.model import FrozenMap, Json

PLUGINS: Final = ("vllm-neuron", "optimum-neuron")
"""Distributions that make vLLM know Neuron; one stack can have one of them."""
BucketRule = Literal["nxdi", "native", "static"]


class UnknownGeneration(LookupError):
    """A stack is none that we know how to start; the text says what it has and what would do."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How one generation is told what to do."""

    id: str
    title: str
    vllm: tuple[str, ...]
    """Versions, by prefix."""
    plugin: tuple[str, tuple[str, ...]] | None
    """Distribution and its versions by prefix; None: Neuron is in vLLM itself."""
    sdk: str
    families: tuple[str, ...]
    config: tuple[str, ...]
    """Argument, and table inside it, that hold keys for Neuron; empty where there are none."""
    keys: frozenset[str]
    """What that table may hold."""
    buckets: Mapping[str, str]
    """`prefill`, `decode`, `context` → its key."""
    bucket_rule: BucketRule
    visible: str
    """Variable that names the cores of the process."""
    cache: Literal["xla", "vllm"]
    """Layout of its compile cache (`neuronbench_neuron.caches`)."""
    arguments: Mapping[str, Json]
    """Arguments that are always given."""
    environment: Mapping[str, str]
    blocks: bool
    """Whether the number of blocks of the KV cache has to be said, or ids run out of bounds."""
    metrics: bool
    """Whether it has metrics of its own, `vllm_neuron:*`."""
    max_num_seqs: int
    """Its own default."""
    sources: tuple[str, ...]

    @property
    def major(self) -> str:
        """`0`, `1`, `2` or `H`."""
        return self.id[0]


@functools.cache
def generations() -> tuple[Generation, ...]:
    """All that are known, oldest first."""
    table = tomllib.loads((resources.files(__package__) / "generations.toml").read_text(encoding="utf-8"))
    keys: Mapping[str, Sequence[str]] = table["keys"]
    return tuple(_read(entry, keys) for entry in table["generation"])


def _read(entry: Mapping[str, Any], keys: Mapping[str, Sequence[str]]) -> Generation:
    plugin = next(((name, tuple(versions)) for name, versions in entry.get("plugin", {}).items()), None)
    return Generation(
        id=entry["id"],
        title=entry["title"],
        vllm=tuple(entry["vllm"]),
        plugin=plugin,
        sdk=entry["sdk"],
        families=tuple(entry["families"]),
        config=tuple(part for part in entry["config"].split(".") if part),
        keys=frozenset(keys.get(entry["keys"], ())),
        buckets=FrozenMap(entry.get("buckets", {})),
        bucket_rule=entry["bucket_rule"],
        visible=entry["visible"],
        cache=entry["cache"],
        arguments=FrozenMap(entry.get("arguments", {})),
        environment=FrozenMap(entry.get("environment", {})),
        blocks=entry.get("blocks", False),
        metrics=entry.get("metrics", False),
        max_num_seqs=entry["max_num_seqs"],
        sources=tuple(entry["sources"]),
    )


def of(packages: Mapping[str, Json]) -> Generation:
    """The generation that a stack with these packages (name → version) is. Raises `UnknownGeneration`."""
    version = str(packages.get("vllm") or "")
    if not version:
        raise UnknownGeneration("the stack has no vllm, so nothing there can serve")
    there = {name: str(packages[name]) for name in PLUGINS if packages.get(name)}
    if len(there) > 1:
        raise UnknownGeneration(
            f"{_listed(there)} are both there, and vLLM activates only one platform plugin: "
            "serve from an environment that has one of them"
        )
    by_vllm = [each for each in generations() if _begins(version, each.vllm)]
    for each in by_vllm:
        if each.plugin is None and not there:
            return each
        if each.plugin is not None and each.plugin[0] in there and _begins(there[each.plugin[0]], each.plugin[1]):
            return each
    found = f"vllm {version}" + (f" with {_listed(there)}" if there else " without a Neuron plugin")
    if there:
        name = next(iter(there))
        fitting = [each for each in generations() if each.plugin and each.plugin[0] == name]
        pairs = "; ".join(f"{name} {' or '.join(each.plugin[1])} with vllm {' or '.join(each.vllm)}"
                          for each in fitting if each.plugin)  # fmt: skip
    else:
        pairs = "; ".join(f"{each.plugin[0]} {' or '.join(each.plugin[1])} for vllm {' or '.join(each.vllm)}"
                          for each in by_vllm or generations() if each.plugin)  # fmt: skip
    raise UnknownGeneration(f"the stack has {found}, which is no pair that belongs together; known: {pairs}")


def _begins(version: str, prefixes: Sequence[str]) -> bool:
    return any(version == prefix or version.startswith((f"{prefix}.", f"{prefix}+")) for prefix in prefixes)


def _listed(there: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in sorted(there.items()))
