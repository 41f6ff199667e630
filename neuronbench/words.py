"""Numbers and nouns as they are printed: `1 file`, `2 files`, `3 series`. Standard library only."""

from __future__ import annotations

from typing import Final

_SAME: Final = frozenset({"series"})


def counted(count: int, one: str, several: str = "") -> str:
    """`1 lock`, `2 locks`, `3 boxes`.

    `one`: the noun, or words that end in it (`failed request`). `several`: the same for any number but 1, where that
    is not the plain plural or what follows changes too (`record is`, `records are`).
    """
    return f"{count} {one if count == 1 else several or _plural(one)}"


def _plural(noun: str) -> str:
    if noun in _SAME:
        return noun
    return f"{noun}es" if noun.endswith(("x", "s", "ch", "sh")) else f"{noun}s"
