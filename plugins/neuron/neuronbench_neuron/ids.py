"""Lists of core ids as Neuron's variables have them: `0-3,5`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_LARGEST = 4095
"""No host has more cores."""
_PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def parse(text: str) -> tuple[int, ...]:
    """`0-3,5` → (0, 1, 2, 3, 5), in the order given. Raises `ValueError` that says what is wrong with it."""
    ids: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"expected ids and ranges such as 0-3,5, found {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"expected a range from low to high, found {part.strip()!r} in {text!r}")
        if last > _LARGEST:
            raise ValueError(f"expected ids of cores, found {last}")
        ids += range(first, last + 1)
    twice = sorted(one for one, times in Counter(ids).items() if times > 1)
    if twice:
        raise ValueError(f"expected every id once, found {show(twice)} more than once in {text!r}")
    return tuple(ids)


def show(ids: Iterable[int]) -> str:
    """(0, 1, 2, 3, 5) → `0-3,5`; sorted."""
    runs: list[list[int]] = []
    for one in sorted(set(ids)):
        if runs and runs[-1][1] == one - 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def contiguous(ids: Sequence[int]) -> bool:
    """Whether they are one run without gaps, in rising order."""
    return bool(ids) and list(ids) == list(range(ids[0], ids[0] + len(ids)))
