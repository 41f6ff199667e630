"""A model's tokenizer: texts to tokens and back, and how fast. Needs `tokenizers`, which every stack has."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import tokenizers  # type: ignore[import-not-found,unused-ignore]

NOTHING = [{"name": "nothing", "dtype": "int64", "shape": [1], "kind": "zeros"}]


class Handler:
    """See the README of `neuronbench/worker`."""

    synchronize = None

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._tokenizer: Any = None
        self._texts: list[str] = []

    def encode(self, folder: str, texts: list[str], length: int) -> dict[str, Any]:
        """Token ids of each text, at most `length`, special tokens within; and what a padding token is."""
        tokenizer, digest = _open(folder)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        whole = [len(entry.ids) for entry in tokenizer.encode_batch(texts)]
        tokenizer.enable_truncation(length)
        ids = [entry.ids for entry in tokenizer.encode_batch(texts)]
        known = [tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>", "<|pad|>")]
        padding = next((token for token in known if token is not None), 0)
        truncated = sum(count > length for count in whole)
        return {"ids": ids, "padding": padding, "truncated": truncated, "digest": digest}

    def decode(self, folder: str, rows: list[list[int]]) -> list[str]:
        tokenizer, _ = _open(folder)
        return list(tokenizer.decode_batch(rows, skip_special_tokens=True))

    # -- as a timed loop: one call encodes all texts, one after the other, on one thread

    def load(self, folder: str, texts: list[str]) -> dict[str, Any]:
        self._tokenizer, digest = _open(folder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._texts = texts
        counts = [len(entry.ids) for entry in self._tokenizer.encode_batch(texts)]
        return {
            "inputs": NOTHING, "outputs": ["tokens"], "seconds": 0.0,
            "tokens": sum(counts), "digest": digest, "version": tokenizers.__version__,
        }  # fmt: skip

    def step(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        encode, texts = self._tokenizer.encode, self._texts
        return lambda: [encode(text) for text in texts]

    def tensors(self, output: Any) -> dict[str, Any]:
        count = sum(len(entry.ids) for entry in output)
        return {"tokens": ("int64", (1,), count.to_bytes(8, "little"))}


def _open(folder: str) -> tuple[Any, str]:
    """The tokenizer and the digest of its file."""
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return tokenizers.Tokenizer.from_file(path), digest
