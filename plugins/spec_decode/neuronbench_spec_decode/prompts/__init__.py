"""Beginnings that a model goes on with, by kind: own texts, cut to a number of tokens by the server's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

CATEGORIES: Final = ("code", "chat", "summarise", "repeat")
"""From what a model has to make up to what it only has to copy: a draft from the prompt is right ever more often."""
_BETWEEN: Final = "\n-----\n"
_WARM_UP: Final = (
    "The lighthouse stands on the last rock before the open sea, and its keeper writes down every ship that passes. "
)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One beginning, as token ids."""

    category: str
    number: int
    ids: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.category}/{self.number}"


def texts(category: str) -> list[str]:
    """Texts of a kind, in a fixed order. Raises `ValueError` for a kind that there is not."""
    if category not in CATEGORIES:
        raise ValueError(f"categories: expected some of {', '.join(CATEGORIES)}, found {category!r}")
    return files(__name__).joinpath(f"{category}.txt").read_text(encoding="utf-8").rstrip("\n").split(_BETWEEN)


def cut(
    encode: Callable[[str], Sequence[int]],
    *,
    categories: Sequence[str],
    each: int,
    tokens: int,
    head: Sequence[int] = (),
) -> tuple[list[Prompt], tuple[int, ...]]:
    """`tokens` tokens of `each` texts of every kind, and a prompt of that length to warm up with.

    The end of a text is kept, as that is where it asks for what is to come; `head`, what the model has every text begin
    with, stands before it and counts. Raises `ValueError` for texts that are too few or too short.
    """
    made = []
    room = tokens - len(head)
    if room < 1:
        raise ValueError(
            f"prompt_tokens: expected more than the {len(head)} that every text begins with, found {tokens}"
        )
    for category in categories:
        known = texts(category)
        if not 1 <= each <= len(known):
            raise ValueError(f"prompts: expected 1 to {len(known)} of each category, found {each}")
        for number, text in enumerate(known[:each], start=1):
            ids = list(encode(text))
            if len(ids) < room:
                raise ValueError(
                    f"prompt_tokens: expected at most {len(head) + len(ids)}, all that {category}/{number} has; "
                    f"found {tokens}"
                )
            made.append(Prompt(category=category, number=number, ids=(*head, *ids[-room:])))
    warm = list(encode(_WARM_UP * (tokens // 8 + 1)))
    return made, (*head, *warm[-room:])
