"""Static shapes: which compiled size a request is padded to, and how much of what is computed is of use.

A prompt is padded to the edge of a prefill bucket; a step of decoding to the edge of a bucket of sequences (or to
`max_num_seqs`). Edges are those of the configuration where it gives them, else those that the generation makes by
itself, else those that its metrics name.

Which edge a prompt of exactly an edge's length goes to is documented as that one; there are measurements that look as
if it went to the next, by one token more. So such prompts are counted apart, and where the server counts executions by
bucket, what it counted is laid beside what was predicted.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from neuronbench.model import FrozenMap, Json
from neuronbench_neuron.serving.generations import Generation
from neuronbench_neuron.serving.settings import edges_of, most_tokens

FIRST: Final = 128
"""The smallest bucket that is made where none are given."""
_NAMED: Final = re.compile(r"^(?P<phase>prefill|decode)_(?:s|b)(?P<edge>\d+)")


@dataclass(frozen=True, kw_only=True)
class BucketMap:
    """The compiled sizes of a server. Empty where they are not known."""

    prefill: tuple[int, ...] = ()
    """Prompt tokens."""
    decode: tuple[int, ...] = ()
    """Sequences of a step."""
    context: tuple[int, ...] = ()
    """Tokens that a step of decoding can look back at."""
    chunk: int | None = None
    """Longer prompts are computed in parts of so many tokens; None where a prompt is computed at once."""
    source: str = "unknown"
    """`configuration`, `defaults`, `artifacts`, `metrics`."""

    def prefill_bucket(self, tokens: int) -> int | None:
        """The edge that the (last part of the) prompt is padded to; None when none holds it, or none are known."""
        if tokens < 1:
            return None
        return _edge(self.prefill, tokens if self.chunk is None else (tokens - 1) % self.chunk + 1)

    def prefill_computed(self, tokens: int) -> int | None:
        """Prompt tokens that are computed for a prompt of so many; None when that is not known."""
        bucket = self.prefill_bucket(tokens)
        if bucket is None:
            return None
        whole = 0 if self.chunk is None else (tokens - 1) // self.chunk
        return whole * (self.chunk or 0) + bucket

    def decode_bucket(self, sequences: int) -> int | None:
        """Sequences that a step with so many computes; None when that is not known."""
        return _edge(self.decode, sequences) if sequences > 0 else None

    def at_edge(self, tokens: int) -> bool:
        """Whether a prompt is exactly as long as a bucket."""
        return tokens in self.prefill

    def to_json(self) -> dict[str, Json]:
        """For a record."""
        return {
            "prefill": list(self.prefill), "decode": list(self.decode), "context": list(self.context),
            "chunk": self.chunk, "source": self.source,
        }  # fmt: skip


def _edge(edges: Sequence[int], count: int) -> int | None:
    index = bisect.bisect_left(edges, count)
    return edges[index] if index < len(edges) else None


def of_settings(settings: FrozenMap, generation: Generation, length: int | None) -> BucketMap:
    """The buckets of a server that is started with these settings. `length`: its max_model_len; None: not known."""
    prefill, decode, context = (edges_of(settings, generation, name) for name in ("prefill", "decode", "context"))
    seqs = settings["max_num_seqs"] or generation.max_num_seqs
    given = "configuration" if prefill or decode or context else "defaults"
    if generation.bucket_rule == "native":
        most = most_tokens(settings, generation, length)
        return BucketMap(
            prefill=tuple(prefill or (doubling(FIRST, most) if most else ())),
            decode=tuple(decode or doubling(1, seqs)),
            context=tuple(sorted({*(context or ()), *((length,) if length else ())})),
            chunk=most,
            source=given,
        )
    if generation.bucket_rule == "static":
        # Batch and length are those of the export; the prompt is padded to the length.
        edges = (length,) if length else ()
        return BucketMap(prefill=edges, decode=(seqs,), context=edges, source="defaults")
    single = settings["neuron_config"].get("enable_bucketing") is False
    made = () if length is None else ((length,) if single else tuple(nxdi(length)))
    return BucketMap(
        prefill=tuple(prefill or made),
        decode=tuple(sorted({*(decode or ()), seqs})),
        context=tuple(context or made),
        source=given,
    )


def doubling(first: int, last: int) -> list[int]:
    """`first`, its doubles below `last`, and `last`: what generation 2 makes by itself."""
    edges = []
    while first < last:
        edges.append(first)
        first *= 2
    return [*edges, last]


def nxdi(length: int) -> list[int]:
    """What NxD Inference makes by itself: powers of two from 128 on, the last one replaced by the length itself."""
    if length <= FIRST:
        return [length]
    return [2**power for power in range(int(math.log2(FIRST)), round(math.log2(length)))] + [length]


def of_artifacts(folder: Path) -> BucketMap | None:
    """The buckets that precompiled artifacts of NxD Inference have, from their `neuron_config.json`; None without."""
    try:
        told = json.loads((folder / "neuron_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    config: Any = told.get("neuron_config", told) if isinstance(told, Mapping) else None
    if not isinstance(config, Mapping):
        return None
    length = _whole(config.get("max_context_length")) or _whole(config.get("seq_len"))
    total = _whole(config.get("max_length")) or _whole(config.get("seq_len"))
    bucketed = config.get("enable_bucketing", False)

    def edges(key: str, last: int | None) -> tuple[int, ...]:
        given = config.get(key)
        if isinstance(given, list) and all(isinstance(edge, int) for edge in given) and given:
            return tuple(sorted(given))
        return () if last is None else tuple(nxdi(last)) if bucketed else (last,)

    batch = _whole(config.get("tkg_batch_size")) or _whole(config.get("batch_size"))
    batches = config.get("token_generation_batches")
    return BucketMap(
        prefill=edges("context_encoding_buckets", length),
        decode=tuple(sorted({*(batches if isinstance(batches, list) else ()), *((batch,) if batch else ())})),
        context=edges("token_generation_buckets", total),
        source="artifacts",
    )


def named(name: str) -> tuple[str, int] | None:
    """Phase and edge of a `bucket_name` of the server's metrics: `prefill_s128` → `("prefill", 128)`."""
    match = _NAMED.match(name)
    return (match["phase"], int(match["edge"])) if match else None


def with_metrics(known: BucketMap, names: Sequence[str]) -> BucketMap:
    """`known`, or where it knows nothing the edges that bucket names of the server's metrics tell."""
    told: dict[str, set[int]] = {"prefill": set(), "decode": set()}
    for found in filter(None, map(named, names)):
        told[found[0]].add(found[1])
    if not known.prefill and told["prefill"]:
        known = replace(known, prefill=tuple(sorted(told["prefill"])), source="metrics")
    if not known.decode and told["decode"]:
        known = replace(known, decode=tuple(sorted(told["decode"])), source="metrics")
    return known


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
