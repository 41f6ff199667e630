"""What a model is asked, by kind: own texts, cut to a number of tokens by the server's own tokenizer.

Code and lists are to be gone on with as they stand. Questions and reports are put to the model as a user's message,
where it has a chat template: a small model that is made to go on with one instead says the same words over and over,
and would look like a copyist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

CATEGORIES: Final = ("code", "chat", "summarise", "repeat")
ASKED: Final = ("chat", "summarise")
"""Those that are a user's message."""
WARM_UP: Final = (
    "The lighthouse stands on the last rock before the open sea, and its keeper writes down every ship that passes. "
)
_BETWEEN: Final = "\n-----\n"

Encode = Callable[[str, bool], Sequence[int]]
"""Token ids of a text with all that stands around it; true: as a user's message to be answered."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt, as token ids."""

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


def cut(encode: Encode, *, categories: Sequence[str], each: int, tokens: int) -> tuple[list[Prompt], tuple[int, ...]]:
    """`tokens` tokens of `each` texts of every kind, and a prompt of that length to warm up with.

    What stands around a text (a token that begins all texts, a template) stays, and so does the text's end, where it
    says what is to come. Raises `ValueError` for texts that are too few or too short.
    """
    made = []
    heads = {asked: _head(encode, asked) for asked in (False, True)}
    for category in categories:
        known = texts(category)
        if not 1 <= each <= len(known):
            raise ValueError(f"prompts: expected 1 to {len(known)} of each category, found {each}")
        asked = category in ASKED
        for number, text in enumerate(known[:each], start=1):
            ids = _shortened(list(encode(text, asked)), heads[asked], tokens, f"{category}/{number}")
            made.append(Prompt(category=category, number=number, ids=ids))
    warm = list(encode(WARM_UP * (tokens // 8 + 1), False))
    return made, _shortened(warm, heads[False], tokens, "the prompt to warm up with")


def _head(encode: Encode, asked: bool) -> int:
    """How many tokens stand before any text: what two texts that have nothing in common both begin with."""
    one, other = list(encode("12", asked)), list(encode("you", asked))
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)


def _shortened(ids: list[int], head: int, tokens: int, name: str) -> tuple[int, ...]:
    if not head < tokens <= len(ids):
        raise ValueError(f"prompt_tokens: expected {head + 1} to {len(ids)}, all that {name} has; found {tokens}")
    return (*ids[:head], *ids[head + len(ids) - tokens :])
