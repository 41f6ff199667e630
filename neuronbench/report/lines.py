"""Lines that are rewritten in place."""

from __future__ import annotations

from typing import Final

SEPARATOR: Final = "  "
"""Between the parts of a line of progress."""


def fitted(text: str, width: int) -> str:
    """`text` in at most `width` columns: parts that do not fit are left out whole, from the end; a number cut in two
    would be another number. Of a first part that is too long alone, the beginning."""
    while len(text) > width and SEPARATOR in text:
        text = text[: text.rindex(SEPARATOR)].rstrip()
    return text[: max(width, 0)]
