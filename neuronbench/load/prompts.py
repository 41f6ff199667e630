"""Prompts of token ids, of exact length, drawn without a tokenizer.

The ids of a prompt are ordinary ones of the vocabulary. The first id of a warm-up prompt comes from a part of the
vocabulary that prompts of the load never begin with, so that the two share no prefix, not even of one token; prompts of
one set differ within their first three tokens (after a shared prefix, where they have one) wherever the vocabulary has
that many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from neuronbench.load.workload import Lengths
from neuronbench.protocols import Vocabulary

Ids = npt.NDArray[np.uint32]
Part = Literal["warmup", "load"]

_HEAD: Final = 3
_RESERVED_SHARE: Final = 16
"""One ordinary id in this many is kept for the first token of warm-up prompts."""
MOONCAKE_BLOCK: Final = 512


def ordinary_ids(vocabulary: Vocabulary) -> Ids:
    """Ids that prompts may use. Raises `ValueError` when there are too few to tell prompts apart."""
    ids = np.arange(vocabulary.size, dtype=np.uint32)
    if vocabulary.special_ids:
        ids = np.setdiff1d(ids, np.array(vocabulary.special_ids, dtype=np.int64)).astype(np.uint32)
    if len(ids) < 2:
        raise ValueError(
            f"vocabulary: expected at least 2 ordinary token ids, found {len(ids)} of {vocabulary.size} "
            f"({len(vocabulary.special_ids)} special)"
        )
    return ids


class PromptSource:
    """Draws distinct token-id prompts from a seeded generator."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        ids = ordinary_ids(vocabulary)
        split = np.random.default_rng([seed, 0]).permutation(ids)
        reserved = max(len(ids) // _RESERVED_SHARE, 1)
        self._ids = ids
        self._first = {"warmup": split[:reserved], "load": split[reserved:]}
        self._seed = seed

    def draw(self, lengths: Sequence[int], part: Part, stream: int = 0) -> tuple[list[Ids], bool]:
        """One prompt per length, and whether all are distinct. Another `stream` gives other prompts."""
        count = len(lengths)
        if not count:
            return [], True
        rng = np.random.default_rng([self._seed, 1 if part == "warmup" else 2, stream])
        first = self._first[part]
        wide = np.asarray(lengths, dtype=np.int64)
        flat = self._ids[rng.integers(0, len(self._ids), int(wide.sum()))]
        ends = np.cumsum(wide)
        starts = ends - wide
        depth = min(int(wide.min()), _HEAD)
        heads, distinct = self._heads(rng, count, depth, first)
        for column in range(depth):
            flat[starts + column] = heads[:, column]
        return np.split(flat, ends[:-1]), distinct

    def draw_shared(
        self, lengths: Sequence[int], part: Part, *, prefixes: int, prefix_tokens: int
    ) -> tuple[list[Ids], bool]:
        """As `draw`, but each prompt begins with one of `prefixes` common beginnings of `prefix_tokens` tokens."""
        shared, _ = self.draw([prefix_tokens] * prefixes, part, stream=1)
        rests, distinct = self.draw([length - prefix_tokens for length in lengths], part, stream=2)
        chosen = np.random.default_rng([self._seed, 3, part == "warmup"]).integers(0, prefixes, len(lengths))
        return [np.concatenate([shared[k], rest]) for k, rest in zip(chosen, rests, strict=True)], distinct

    def block(self, identity: int) -> Ids:
        """512 tokens that depend on nothing but `identity` (and the seed)."""
        rng = np.random.default_rng([self._seed, 4, identity])
        ids = self._ids[rng.integers(0, len(self._ids), MOONCAKE_BLOCK)]
        ids[0] = self._first["load"][identity % len(self._first["load"])]
        return ids

    def _heads(self, rng: np.random.Generator, count: int, depth: int, first: Ids) -> tuple[Any, bool]:
        """The first `depth` tokens of each prompt, distinct when there are enough combinations."""
        rest = len(self._ids)
        room = len(first) * rest ** (depth - 1)
        if room < 2 * count:
            numbers = np.resize(rng.permutation(room), count) if room <= 1 << 24 else rng.integers(0, room, count)
            distinct = count <= room
        else:
            numbers = np.empty(0, dtype=np.int64)
            while len(numbers) < count:
                more = rng.integers(0, room, count + count // 2 + 8)
                joined = np.concatenate([numbers, more])
                _, index = np.unique(joined, return_index=True)
                numbers = joined[np.sort(index)]
            numbers, distinct = numbers[:count], True
        heads = np.empty((count, depth), dtype=np.uint32)
        heads[:, 0] = first[numbers % len(first)]
        numbers = numbers // len(first)
        for column in range(1, depth):
            heads[:, column] = self._ids[numbers % rest]
            numbers = numbers // rest
        return heads, distinct


def draw_lengths(lengths: int | Lengths, count: int, seed: int, stream: int) -> list[int]:
    """`count` lengths in tokens."""
    if isinstance(lengths, int):
        return [lengths] * count
    rng = np.random.default_rng([seed, 5, stream])
    if lengths.kind == "uniform":
        return [int(x) for x in rng.integers(lengths.low, lengths.high + 1, count)]
    if lengths.kind == "empirical":
        return [int(x) for x in rng.choice(np.array(lengths.values), count)]
    found = np.empty(0)
    while len(found) < count:
        drawn = np.rint(np.exp(rng.normal(np.log(lengths.median), lengths.sigma, 2 * count + 16)))
        found = np.concatenate([found, drawn[(drawn >= lengths.low) & (drawn <= lengths.high)]])
    return [int(x) for x in found[:count]]


def encode_ids(ids: Ids) -> bytes:
    """`[1,22,333]`."""
    return b"[" + ",".join(map(str, ids.tolist())).encode() + b"]"
