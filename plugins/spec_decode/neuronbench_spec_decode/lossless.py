"""Whether speculation changed a single token: greedy answers at every k beside those of the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first token of an answer that is not the baseline's."""

    prompt: str
    k: int
    position: int
    """Counted from 0."""
    token: int | None
    """None where the answer ends before it."""
    wanted: int | None


def first_difference(found: Sequence[int], wanted: Sequence[int]) -> tuple[int, int | None, int | None] | None:
    """Position and both tokens; None for equal answers. One that ends early differs where it ends."""
    for position in range(max(len(found), len(wanted))):
        one = found[position] if position < len(found) else None
        other = wanted[position] if position < len(wanted) else None
        if one != other:
            return position, one, other
    return None


def differences(
    answers: Sequence[tuple[str, int, Sequence[int]]], baseline: Mapping[str, Sequence[int]]
) -> list[Difference]:
    """Of all answers (prompt, k, tokens) that are not those of `baseline` (by prompt), in their order."""
    found = []
    for prompt, k, tokens in answers:
        where = first_difference(tokens, baseline[prompt])
        if where is not None:
            found.append(Difference(prompt=prompt, k=k, position=where[0], token=where[1], wanted=where[2]))
    return found
