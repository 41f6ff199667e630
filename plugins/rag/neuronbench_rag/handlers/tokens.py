"""A tokenizer that stays open: texts to token ids, within the time of a query."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers  # type: ignore[import-not-found,unused-ignore]


class Handler:
    """`open` once, then `encode`."""

    synchronize = None

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._tokenizer: Any = None
        self._padding = 0

    def open(self, folder: str) -> dict[str, Any]:
        """The digest of the file, its padding token, and the library's version."""
        path = Path(folder, "tokenizer.json")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        known = [self._tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>", "<|pad|>")]
        self._padding = next((token for token in known if token is not None), 0)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return {"digest": digest, "padding": self._padding, "tokenizers": tokenizers.__version__}

    def encode(self, texts: list[str], length: int) -> dict[str, Any]:
        """Token ids of each text, special tokens within, at most `length`; how many were longer; special ones."""
        self._tokenizer.no_truncation()
        entries = self._tokenizer.encode_batch(texts)
        longer = sum(len(entry.ids) > length for entry in entries)
        if longer:
            self._tokenizer.enable_truncation(length)
            entries = self._tokenizer.encode_batch(texts)
        return {
            "ids": [entry.ids for entry in entries],
            "special": [entry.special_tokens_mask for entry in entries],
            "truncated": longer,
        }
