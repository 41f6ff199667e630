"""A tokenizer: each word of a text is a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Handler:
    synchronize = None

    def __init__(self, progress: Callable[[str], None]) -> None:
        pass

    def encode(self, folder: str, texts: list[str], length: int) -> dict[str, Any]:
        return {"ids": [[int(word) for word in text.split()][:length] for text in texts], "digest": "numbers"}
