"""The order in which sequences are seen, the same on every backend and for every number of ranks.

Standard library only. A step takes `batch_size * accumulation * world_size` items one after the other from `order`;
micro-batch m of rank r takes the r-th batch of the m-th group of batches. So ranks that accumulate less see in a step
exactly what a single one that accumulates more does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def order(seed: int, items: int, count: int) -> list[int]:
    """Indices of `count` items out of `items`: each epoch a permutation of its own, drawn from `seed`."""
    if items < 1:
        raise ValueError(f"items: expected at least one to choose from, found {items}")
    chosen: list[int] = []
    epoch = 0
    while len(chosen) < count:
        indices = list(range(items))
        random.Random(f"{seed}/{epoch}").shuffle(indices)
        chosen += indices
        epoch += 1
    return chosen[:count]


def shard(indices: Sequence[int], *, rank: int, world_size: int, batch_size: int) -> list[int]:
    """What rank `rank` takes of `indices`, in the order in which it does."""
    group = batch_size * world_size
    if len(indices) % group:
        raise ValueError(f"{len(indices)} items cannot be shared by {world_size} ranks in batches of {batch_size}")
    begin = rank * batch_size
    return [index for at in range(0, len(indices), group) for index in indices[at + begin : at + begin + batch_size]]
