"""Bodies of the endpoints that answer in one piece: embeddings, rerank, score, tokenize."""

from __future__ import annotations

import base64
import struct
import time
import zlib
from typing import Any

from neuronbench.testing.truth import tokens
from neuronbench.testing.truth.requests import BadRequest

DIMENSIONS = 8


def embeddings(data: dict[str, Any], model: str, request_id: str) -> tuple[dict[str, Any], int]:
    """The body of /v1/embeddings and the number of prompt tokens."""
    asked = data.get("input")
    if isinstance(asked, str) or (isinstance(asked, list) and asked and all(isinstance(i, int) for i in asked)):
        asked = [asked]
    if not isinstance(asked, list) or not asked:
        raise BadRequest("input must be a text, a list of token ids, or a list of either")
    dimensions = data.get("dimensions") or DIMENSIONS
    encoded = data.get("encoding_format", "float") == "base64"
    total = 0
    items = []
    for index, item in enumerate(asked):
        total += _count(item)
        vector = _vector(item, dimensions)
        shown: Any = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode() if encoded else vector
        items.append({"index": index, "object": "embedding", "embedding": shown})
    usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}
    body = {"id": f"embd-{request_id}", "object": "list", "created": int(time.time()), "model": model}
    return body | {"data": items, "usage": usage}, total


def rerank(data: dict[str, Any], model: str, request_id: str) -> tuple[dict[str, Any], int]:
    """The body of /v1/rerank, best first, and the number of prompt tokens."""
    query, documents = data.get("query"), data.get("documents")
    if not isinstance(query, str) or not isinstance(documents, list) or not documents:
        raise BadRequest("query must be a text and documents a list of at least one text")
    total = sum(_count(query) + _count(document) for document in documents)
    results: list[dict[str, Any]] = [
        {"index": index, "document": {"text": document}, "relevance_score": _similarity(query, document)}
        for index, document in enumerate(documents)
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    body = {"id": f"rerank-{request_id}", "model": model, "usage": {"prompt_tokens": total, "total_tokens": total}}
    return body | {"results": results[: data.get("top_n") or len(results)]}, total


def score(data: dict[str, Any], model: str, request_id: str) -> tuple[dict[str, Any], int]:
    """The body of /v1/score and the number of prompt tokens."""
    left, right = data.get("text_1"), data.get("text_2")
    lefts = left if isinstance(left, list) else [left]
    rights = right if isinstance(right, list) else [right]
    if len(lefts) == 1:
        lefts = lefts * len(rights)
    if len(lefts) != len(rights) or not all(isinstance(item, str) for item in (*lefts, *rights)):
        raise BadRequest("text_1 and text_2 must be texts, or lists of texts of one length")
    total = sum(_count(a) + _count(b) for a, b in zip(lefts, rights, strict=True))
    items = [
        {"index": index, "object": "score", "score": _similarity(a, b)}
        for index, (a, b) in enumerate(zip(lefts, rights, strict=True))
    ]
    usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}
    body = {"id": f"score-{request_id}", "object": "list", "created": int(time.time()), "model": model}
    return body | {"data": items, "usage": usage}, total


def tokenize(data: dict[str, Any], max_model_len: int) -> dict[str, Any]:
    """The body of /tokenize, for a prompt or for chat messages."""
    if isinstance(data.get("messages"), list):
        ids = tokens.chat_encode(data["messages"], generation_prompt=data.get("add_generation_prompt", True))
    elif isinstance(data.get("prompt"), str):
        ids = [tokens.BOS] if data.get("add_special_tokens", True) else []
        ids += tokens.encode(data["prompt"])
    else:
        raise BadRequest("expected `prompt` (a text) or `messages` (a list)")
    strings = [tokens.decode([i]) for i in ids] if data.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": strings}


def detokenize(data: dict[str, Any]) -> dict[str, Any]:
    """The body of /detokenize."""
    ids = data.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
        raise BadRequest("tokens must be a list of token ids")
    return {"prompt": tokens.decode(ids)}


def _count(item: Any) -> int:
    if isinstance(item, str):
        return 1 + tokens.count(item)
    if isinstance(item, list) and item and all(isinstance(i, int) for i in item):
        return len(item)
    raise BadRequest(f"expected a text or a list of token ids, found {type(item).__name__}")


def _vector(item: Any, dimensions: int) -> list[float]:
    """A unit vector that depends on nothing but the input."""
    seed = zlib.crc32(repr(item).encode())
    raw = [(zlib.crc32(b"%d" % i, seed) % 2001 - 1000) / 1000 or 0.001 for i in range(dimensions)]
    length = sum(value * value for value in raw) ** 0.5
    return [value / length for value in raw]


def _similarity(left: str, right: str) -> float:
    """Share of the words of either text that are in both."""
    a, b = set(left.split()), set(right.split())
    return len(a & b) / len(a | b) if a | b else 0.0
