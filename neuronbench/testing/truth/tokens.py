"""A tokenizer anyone can compute by hand, and a chat template that costs tokens.

Text is split at ASCII white space and each word into pieces of six bytes; a piece is a token. Generated text is made of
six-byte words (" t00042"), so that re-tokenising an answer gives the tokens it was made of.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

VOCABULARY = 128_000
# Words of generated text occupy the first ids, so that `t00042` is token 42.
GENERATED_IDS = 100_000
BOS = VOCABULARY - 1
MARK = VOCABULARY - 2
TEMPLATE_TOKENS = 5
MESSAGE_TOKENS = 4
GENERATION_PROMPT_TOKENS = 3

_PIECE = re.compile(rb"\S{1,6}")
_GENERATED = re.compile(rb"t\d{5}\Z")

# Text of the k-th generated token, with its leading blank; all of one length.
WORDS: tuple[bytes, ...] = tuple(b" t%05d" % k for k in range(4096))


def word(k: int) -> bytes:
    """The k-th token of any answer, as it appears in its text."""
    return WORDS[k & 4095]


def count(prompt: str) -> int:
    """Number of tokens in a text, without special tokens."""
    return len(_PIECE.findall(prompt.encode()))


def encode(prompt: str) -> list[int]:
    """Token ids of a text, without special tokens."""
    return [
        int(piece[1:]) if _GENERATED.match(piece) else GENERATED_IDS + zlib.crc32(piece) % (MARK - GENERATED_IDS)
        for piece in _PIECE.findall(prompt.encode())
    ]


def decode(ids: Sequence[int]) -> str:
    """Text of token ids. Ids of generated words give that word; the others, whose text is unknown, a word of theirs."""
    return " ".join(f"t{i:05d}" if i < GENERATED_IDS else f"u{i - GENERATED_IDS:05d}" for i in ids)


def chat_count(messages: Sequence[dict[str, Any]], *, generation_prompt: bool = True) -> int:
    """Number of tokens of a conversation after the chat template."""
    inside = sum(MESSAGE_TOKENS + count(message_text(message)) for message in messages)
    return TEMPLATE_TOKENS + inside + (GENERATION_PROMPT_TOKENS if generation_prompt else 0)


def chat_encode(messages: Sequence[dict[str, Any]], *, generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation after the chat template."""
    ids = [MARK] * TEMPLATE_TOKENS
    for message in messages:
        ids += [MARK] * MESSAGE_TOKENS + encode(message_text(message))
    return ids + [MARK] * (GENERATION_PROMPT_TOKENS if generation_prompt else 0)


def message_text(message: dict[str, Any]) -> str:
    """All text of one chat message: plain content, or its text parts joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""
