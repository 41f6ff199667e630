"""Asking the served model, with the instants of its answer; what the prompts are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuronbench import Endpoint
from neuronbench.serving import http

SYSTEM: Final = "Answer the question from the passages, in as few words as possible."
JUDGE: Final = "You check whether passages answer a question. Reply with yes or no."
REFINE: Final = "Write one short search query that would find what is still missing. Reply with the query only."
OUTPUT: Final = ("content", "reasoning", "reasoning_content", "refusal")
"""Fields of a delta that are generated text."""


class AskFailed(Exception):
    """A request that gave no answer: its class, and in the server's words why."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer and its instants (CLOCK_MONOTONIC, ns)."""

    text: str
    input_tokens: int | None
    output_tokens: int | None
    """By the server's own count; None when it gives none."""
    sent_ns: int
    first_ns: int
    last_ns: int


def messages(question: str, passages: Sequence[str], *, system: str = SYSTEM) -> list[dict[str, str]]:
    """Passages are numbered and stand before the question; what they say is quoted and never a message of its own."""
    shown = "\n".join(f"[{number}] {text}" for number, text in enumerate(passages, start=1))
    before = f"Passages:\n{shown}\n\n" if passages else ""
    return [{"role": "system", "content": system}, {"role": "user", "content": f"{before}Question: {question}"}]


def ask(endpoint: Endpoint, said: Sequence[Mapping[str, str]], *, max_tokens: int, timeout_s: float) -> Said:
    """Greedy and streamed. Raises `AskFailed`."""
    payload = {
        "model": endpoint.model, "messages": [dict(each) for each in said], "temperature": 0, "max_tokens": max_tokens,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    try:
        answer = http.timed_lines(
            endpoint.base_url, "/v1/chat/completions", payload=payload, api_key=endpoint.api_key, timeout_s=timeout_s
        )
    except http.Unreachable as error:
        raise AskFailed("unreachable", str(error)) from error
    if answer.status != 200:
        body = b"".join(line for _, line in answer.lines).decode("utf-8", errors="replace")
        raise AskFailed(f"http_{answer.status}", body[:300])
    text: list[str] = []
    usage: Mapping[str, Any] = {}
    first = last = None
    for at, line in answer.lines:
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        try:
            event = json.loads(line[5:])
        except ValueError:
            raise AskFailed("bad_event", line.decode("utf-8", errors="replace")[:300]) from None
        if not isinstance(event, Mapping) or event.get("error"):
            raise AskFailed("error_in_stream", str(event)[:300])
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            delta: Mapping[str, Any] = choice.get("delta") or {}
            if any(delta.get(name) for name in OUTPUT):
                first, last = first or at, at
            text.append(str(delta.get("content") or ""))
    if first is None or last is None:
        raise AskFailed("no_output", "the answer ended without any text")
    return Said(
        text="".join(text).strip(), input_tokens=_count(usage, "prompt_tokens"),
        output_tokens=_count(usage, "completion_tokens"), sent_ns=answer.sent_ns, first_ns=first, last_ns=last,
    )  # fmt: skip


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None
