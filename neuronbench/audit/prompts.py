"""What a server is asked in an audit: a few texts, and prompts of one length that nobody has asked before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from neuronbench.protocols import Vocabulary

Prompt = str | list[int]

TEXTS: Final = (
    "The river runs from the mountains to the sea, and on its way it passes",
    "To bake a simple loaf of bread you first have to mix flour with",
    "When the last train had left the station, the old man sat down and",
    "Two plus two is four, four plus four is eight, and eight plus eight is",
    "A good map shows roads and towns, but it also shows",
    "In winter the days are short because the sun",
)
"""Beginnings that a language model can go on from; always the same ones, in this order."""

LONGEST: Final = 512
_CONSONANTS: Final = "bdfgklmnprstvz"
_VOWELS: Final = "aeiou"


def equal(count: int, seed: int, vocabulary: Vocabulary | None, max_model_len: int | None) -> Sequence[Prompt]:
    """`count` different prompts of the same length: of token ids where the vocabulary is known, else of words.

    Words of two syllables are nearly all of the same few tokens, so their lengths agree closely. They take half of the
    context at most.
    """
    draw = random.Random(seed)
    room = min(LONGEST, (max_model_len or 2 * LONGEST) // 2)
    if vocabulary is not None:
        special = set(vocabulary.special_ids)
        ordinary = [token for token in range(vocabulary.size) if token not in special]
        return [draw.choices(ordinary, k=room) for _ in range(count)]
    syllables = [a + b for a in _CONSONANTS for b in _VOWELS]
    words = max(room // 4, 8)
    return [" ".join("".join(draw.choices(syllables, k=2)) for _ in range(words)) for _ in range(count)]
