"""One generation that proves a server works: right status, tokens counted, text that is text.

Of a server that generates nothing (an embedder, a reranker) it is one vector, or one pair of scores.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from typing import Any, Final

from neuronbench.serving import http

PROMPT: Final = "The capital of France is"
MAX_TOKENS: Final = 8


REMEDY: Final = (
    "A server that writes garbage has the wrong weights, dtype or kernels: try another dtype, enforce_eager, or the "
    "weights' original source."
)


class GenerationError(Exception):
    """The server answered, but not with a generation. `kind` is the class of failure."""

    def __init__(self, kind: str, message: str, body: str = "", *, status: int = 200) -> None:
        super().__init__(message)
        self.kind, self.body, self.status = kind, body, status


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What the server generated."""

    text: str
    tokens: int
    api: str
    """`completions` or `chat`; `embeddings` or `rerank` of a server that generates nothing: no text, no tokens."""


def served_models(base_url: str, *, timeout_s: float, api_key: str | None = None) -> list[dict[str, Any]]:
    """Entries of `/v1/models`. Raises `http.Unreachable`, or `GenerationError` for an answer that is no such list."""
    answer = http.request(base_url, "/v1/models", timeout_s=timeout_s, api_key=api_key)
    _authorised(answer)
    document = answer.json()
    entries = document.get("data") if isinstance(document, dict) else None
    if answer.status != 200 or not isinstance(entries, list):
        raise GenerationError(
            "not_openai_compatible",
            f"/v1/models answered with status {answer.status} and no list of models",
            answer.text,
        )
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _authorised(answer: http.Answer) -> None:
    if answer.status in (401, 403):
        message = f"the server refuses the API key or wants one (status {answer.status})"
        raise GenerationError("endpoint_auth", message, answer.text, status=answer.status)


def generate(base_url: str, model: str, *, timeout_s: float, api_key: str | None = None) -> Generation:
    """Ask for a few greedy tokens, not streamed, and check the answer; chat is tried where completions do not exist.

    Where neither does, one embedding or one pair of scores is asked for and checked.

    Raises `http.Unreachable` and `GenerationError`.
    """
    asked = {"model": model, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": False}
    api = "completions"
    answer = http.request(
        base_url, "/v1/completions", timeout_s=timeout_s, payload={**asked, "prompt": PROMPT}, api_key=api_key
    )
    if _is_not_offered(answer):
        api = "chat"
        payload = {**asked, "messages": [{"role": "user", "content": PROMPT}]}
        answer = http.request(base_url, "/v1/chat/completions", timeout_s=timeout_s, payload=payload, api_key=api_key)
    _authorised(answer)
    if _is_not_offered(answer):
        pooled = _pooled(base_url, model, timeout_s=timeout_s, api_key=api_key)
        if pooled is not None:
            return pooled
    if answer.status != 200:
        message = f"the first request failed with status {answer.status}: {answer.text[:500]}"
        raise GenerationError("generation_failed", message, answer.text, status=answer.status)
    document = answer.json()
    try:
        choice = document["choices"][0]
        text = choice["text"] if api == "completions" else _chat_text(choice["message"])
        tokens = document["usage"]["completion_tokens"]
    except (KeyError, IndexError, TypeError):
        raise GenerationError(
            "generation_invalid", f"the first answer lacks text or usage: {answer.text[:300]!r}", answer.text
        ) from None
    if not isinstance(tokens, int) or tokens < 1:
        raise GenerationError("generation_invalid", f"the server counts {tokens!r} generated tokens in its answer")
    wrong = what_is_wrong(text)
    if wrong:
        raise GenerationError("generation_invalid", f"the first generation {wrong}: {text[:80]!r}")
    return Generation(text=text, tokens=tokens, api=api)


def _is_not_offered(answer: http.Answer) -> bool:
    """Whether the server has no such API, or none for what it serves; an unknown model is another matter."""
    if answer.status in (404, 405, 501):
        return "does not exist" not in answer.text
    return answer.status == 400 and "does not support" in answer.text


def _pooled(base_url: str, model: str, *, timeout_s: float, api_key: str | None) -> Generation | None:
    """One vector or two scores that are what they should be; None where the server offers neither."""
    asked: dict[str, dict[str, Any]] = {
        "embeddings": {"input": PROMPT},
        "rerank": {"query": PROMPT, "documents": ["Paris", "The tide comes in twice a day."]},
    }
    for api, payload in asked.items():
        answer = http.request(
            base_url, f"/v1/{api}", timeout_s=timeout_s, payload={"model": model, **payload}, api_key=api_key
        )
        if answer.status != 200:
            continue
        document = answer.json()
        try:
            if api == "embeddings":
                numbers = [float(value) for value in document["data"][0]["embedding"]]
            else:
                numbers = [float(entry["relevance_score"]) for entry in document["results"]]
        except (KeyError, IndexError, TypeError, ValueError):
            numbers = []
        if len(numbers) < 2 or not all(map(math.isfinite, numbers)) or len(set(numbers)) == 1:
            raise GenerationError(
                "generation_invalid", f"the first answer of /v1/{api} is not made of numbers that differ: "
                f"{answer.text[:200]!r}", answer.text,
            )  # fmt: skip
        return Generation(text="", tokens=0, api=api)
    return None


def _chat_text(message: dict[str, Any]) -> Any:
    return message.get("content") or message.get("reasoning") or message.get("reasoning_content") or ""


def what_is_wrong(text: object) -> str:
    """Why `text` cannot be what a working model writes; empty when nothing is."""
    if not isinstance(text, str):
        return "is not text"
    if not text.strip():
        return "is empty"
    if "\x00" in text:
        return "contains NUL characters"
    bad = sum(
        char == "\ufffd" or (unicodedata.category(char) in ("Cc", "Cn", "Co") and char not in "\n\r\t") for char in text
    )
    if 2 * bad > len(text.strip()):
        return "is mostly unprintable"
    return ""
