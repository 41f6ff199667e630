"""Greedy continuations of exact tokens, with the tokens' ids and likelihoods, as vLLM's completions give them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from neuronbench.serving import http

Continuation = tuple[list[int], list[float] | None]
"""Token ids, and the logarithm of each one's probability where that was asked for."""


class NoTokens(Exception):
    """The server does not say which tokens it generated."""


def continuations(
    base_url: str,
    model: str,
    prompts: Sequence[tuple[Sequence[int], int]],
    *,
    likelihoods: bool,
    api_key: str | None,
    concurrency: int,
    deadline_s: float,
) -> list[Continuation]:
    """What the model makes of each prompt (ids, number of tokens), in order.

    `likelihoods` may cost a server half a minute once: vLLM compiles a kernel for them. Raises `http.Unreachable` for
    no answer, `ValueError` for a wrong one, `NoTokens` for one without ids.
    """
    until = time.monotonic() + deadline_s
    more = {"logprobs": 1, "return_tokens_as_token_ids": True} if likelihoods else {"return_token_ids": True}

    def one(asked: tuple[Sequence[int], int]) -> Continuation:
        ids, count = asked
        payload = {
            "model": model, "prompt": list(ids), "max_tokens": count, "temperature": 0, "stream": False,
            "ignore_eos": True, **more,
        }  # fmt: skip
        answer = http.request(
            base_url, "/v1/completions", payload=payload, api_key=api_key, timeout_s=until - time.monotonic()
        )
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.text[:300]!r}")
        found = read(answer.json(), likelihoods=likelihoods)
        if len(found[0]) != count or (found[1] is not None and len(found[1]) != count):
            raise ValueError(f"asked for {count} tokens, got {len(found[0])}; does it know `ignore_eos`?")
        return found

    with ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="tokens") as pool:
        return list(pool.map(one, prompts))


def read(document: Any, *, likelihoods: bool) -> Continuation:
    """Ids and likelihoods from an answer. Raises `ValueError` for one that is no completion, `NoTokens`."""
    try:
        choice = document["choices"][0]
        told = choice.get("logprobs") or {}
        ids, words, logprobs = choice.get("token_ids"), told.get("tokens"), told.get("token_logprobs")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"not a completion: {str(document)[:200]!r}") from None
    if not likelihoods:
        if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
            raise NoTokens("its answers have no `token_ids`")
        return ids, None
    if not isinstance(words, list) or not isinstance(logprobs, list):
        raise NoTokens("its answers have no tokens with likelihoods")
    found = []
    for word in words:
        kind, _, number = str(word).partition(":")
        if kind != "token_id" or not number.isdigit():
            raise NoTokens(f"its tokens are text ({str(word)[:20]!r}), not ids")
        found.append(int(number))
    return found, [float("nan") if value is None else float(value) for value in logprobs]
