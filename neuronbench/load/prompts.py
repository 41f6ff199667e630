"""Prompts of token ids, of exact length, drawn without a tokenizer.

The ids of a prompt are ordinary ones of the vocabulary. The first id of a warm-up prompt comes from a part of the
vocabulary that prompts of the load never begin with, so that the two share no prefix, not even of one token; prompts of
one set differ within their first three tokens wherever the vocabulary has that many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronbench.protocols import Vocabulary

Ids = npt.NDArray[np.uint32]

_HEAD: Final = 3
_RESERVED_SHARE: Final = 16
"""One ordinary id in this many is kept for the first token of warm-up prompts."""


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

    def draw(self, lengths: Sequence[int], part: str) -> tuple[list[Ids], bool]:
        """One prompt per length, and whether all are distinct. `part` is `warmup` or `load`."""
        count = len(lengths)
        rng = np.random.default_rng([self._seed, 1 if part == "warmup" else 2])
        first = self._first[part]
        wide = np.asarray(lengths, dtype=np.int64)
        flat = self._ids[rng.integers(0, len(self._ids), int(wide.sum()))]
        ends = np.cumsum(wide)
        starts = ends - wide
        depth = min(int(wide.min(initial=1)), _HEAD)
        heads, distinct = self._heads(rng, count, depth, first)
        for column in range(depth):
            flat[starts + column] = heads[:, column]
        return np.split(flat, ends[:-1]), distinct

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
                _, index = np.unique(np.concatenate([numbers, more]), return_index=True)
                numbers = np.concatenate([numbers, more])[np.sort(index)]
            numbers, distinct = numbers[:count], True
        heads = np.empty((count, depth), dtype=np.uint32)
        heads[:, 0] = first[numbers % len(first)]
        numbers = numbers // len(first)
        for column in range(1, depth):
            heads[:, column] = self._ids[numbers % rest]
            numbers = numbers // rest
        return heads, distinct


def encode_ids(ids: Ids) -> bytes:
    """`[1,22,333]`."""
    return b"[" + ",".join(map(str, ids.tolist())).encode() + b"]"
