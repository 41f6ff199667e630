"""A language of 97 words, whose next word follows from the two before: for a reference and a server that both speak it.

Standard library only: the reference's worker and the tests load it. Now and then two words are all but equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence

WORDS = 97


def likeliest(before: Sequence[int]) -> tuple[list[int], list[float]]:
    """The three likeliest next words, and the logarithms of their probabilities."""
    one, other = before[-2:]
    first = (3 * one + 7 * other + 11) % WORDS
    second, third = (first + 1 + one % 5) % WORDS, (first + 50) % WORDS
    gap = 0.05 if is_tie(before) else 2.0
    return [first, second, third], [-0.5, -0.5 - gap, -9.0]


def is_tie(before: Sequence[int]) -> bool:
    return (before[-1] + before[-2]) % 8 == 0
