"""One greedy answer, streamed: when each chunk came and which tokens it carried."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuronbench.protocols import Endpoint
from neuronbench.serving import http


class NoTokens(Exception):
    """The server does not say which tokens it generated."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer and its instants (monotonic ns): `sent_ns` the request's first byte, `chunks_ns` its chunks."""

    sent_ns: int
    chunks_ns: tuple[int, ...]
    sizes: tuple[int, ...]
    """Tokens of each chunk."""
    tokens: tuple[int, ...]
    counted: int
    """Generated tokens, by the server's `usage`."""
    prompt_tokens: int

    @property
    def ttft_ms(self) -> float:
        return (self.chunks_ns[0] - self.sent_ns) / 1e6

    @property
    def decode_ms(self) -> float:
        """From the first to the last chunk."""
        return (self.chunks_ns[-1] - self.chunks_ns[0]) / 1e6

    @property
    def e2e_ms(self) -> float:
        """From the request's first byte to the last chunk."""
        return (self.chunks_ns[-1] - self.sent_ns) / 1e6

    @property
    def steps(self) -> int:
        """Decode steps: chunks after the first, which comes with the prompt."""
        return len(self.sizes) - 1

    @property
    def decoded(self) -> int:
        """Tokens of the decode steps."""
        return len(self.tokens) - self.sizes[0]


def tokenize(endpoint: Endpoint, text: str, *, asked: bool, timeout_s: float) -> list[int]:
    """Token ids of a text, by the server; `asked`: as a user's message to be answered, where it has a chat template.

    Raises `ValueError` for a server that does not say, `http.Unreachable`.
    """
    payload: dict[str, Any] = {"model": endpoint.model, "prompt": text}
    if asked:
        message = {"role": "user", "content": text}
        payload = {"model": endpoint.model, "messages": [message], "add_generation_prompt": True}
    answer = http.request(
        endpoint.base_url, "/tokenize", payload=payload, api_key=endpoint.api_key, timeout_s=timeout_s
    )
    if asked and answer.status == 400:  # no template: it is a model that was not taught to answer
        return tokenize(endpoint, text, asked=False, timeout_s=timeout_s)
    document = answer.json()
    ids = document.get("tokens") if isinstance(document, dict) else None
    if answer.status != 200 or not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise ValueError(f"/tokenize: expected token ids, found status {answer.status}: {answer.text[:200]!r}")
    return ids


def ask(endpoint: Endpoint, ids: Sequence[int], *, tokens: int, timeout_s: float) -> Answer:
    """What the model makes of `ids`, greedily, `tokens` tokens of it whatever they say.

    Raises `http.Unreachable` for no answer, `ValueError` for a wrong one, `NoTokens` for one without ids.
    """
    payload = {
        "model": endpoint.model, "prompt": list(ids), "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
    }  # fmt: skip
    timed = http.timed_lines(
        endpoint.base_url, "/v1/completions", payload=payload, api_key=endpoint.api_key, timeout_s=timeout_s
    )
    if timed.status != 200:
        raise ValueError(f"status {timed.status}: {b''.join(line for _, line in timed.lines)[:300]!r}")
    return read(timed)


def read(timed: http.TimedLines) -> Answer:
    """An answer from its lines; see `ask` for what is raised."""
    instants: list[int] = []
    sizes: list[int] = []
    tokens: list[int] = []
    usage: dict[str, Any] = {}
    for at_ns, line in timed.lines:
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        event = json.loads(line[5:])
        if "error" in event:
            raise ValueError(str(event["error"])[:300])
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            ids = choice.get("token_ids")
            if choice.get("text") and not ids:
                raise NoTokens("a chunk of its answer has text and no `token_ids`")
            if ids:
                instants.append(at_ns)
                sizes.append(len(ids))
                tokens += ids
    if len(sizes) < 2:
        raise ValueError(f"expected an answer of several chunks, found {len(sizes)}")
    if "completion_tokens" not in usage:
        raise ValueError("the answer does not say how many tokens it has (`usage`)")
    return Answer(
        sent_ns=timed.sent_ns, chunks_ns=tuple(instants), sizes=tuple(sizes), tokens=tuple(tokens),
        counted=int(usage["completion_tokens"]), prompt_tokens=int(usage.get("prompt_tokens") or 0),
    )  # fmt: skip
