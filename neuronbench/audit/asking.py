"""One question at a time, greedily, streamed or not: the text, its chunks with their instants, the server's counts."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

from neuronbench.audit.prompts import Prompt
from neuronbench.load.apis import APIS
from neuronbench.protocols import Endpoint
from neuronbench.serving import http

TIMEOUT_S: Final = 120.0


class NoAnswer(Exception):
    """The server did not answer a question, or not with a generation."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer."""

    text: str
    tokens: int | None
    """By the server's usage."""
    cached: int
    """Prompt tokens that the usage says were cached."""
    chunks: tuple[tuple[int, str], ...] = ()
    """Of a stream: instant (ns) and text of each chunk with output."""
    sent_ns: int = 0

    @property
    def ttft_ms(self) -> float:
        return (self.chunks[0][0] - self.sent_ns) / 1e6

    @property
    def e2e_ms(self) -> float:
        return (self.chunks[-1][0] - self.sent_ns) / 1e6

    @property
    def gaps_ms(self) -> list[float]:
        """Between the chunks."""
        instants = [at for at, _ in self.chunks]
        return [(after - before) / 1e6 for before, after in itertools.pairwise(instants)]


@dataclass(kw_only=True)
class Asker:
    """Asks one server. `api`: `completions` or `chat`. Raises `NoAnswer` for whatever is no answer."""

    endpoint: Endpoint
    api: str
    until: float
    """`time.monotonic()` at which it has to be over."""
    asked: int = field(default=0, init=False)

    def say(self, prompt: Prompt, *, tokens: int, exact: bool = False) -> Said:
        """The whole answer in one piece; `exact`: of exactly `tokens` tokens, whatever the model would say."""
        answer = self._sent(http.request, prompt, tokens, exact, stream=False)
        if answer.status != 200:
            raise NoAnswer(f"status {answer.status}: {answer.text[:200]}")
        document = answer.json()
        try:
            choice = document["choices"][0]
            text = choice["text"] if self.api == "completions" else _message(choice["message"])
        except (KeyError, IndexError, TypeError):
            raise NoAnswer(f"not a generation: {answer.text[:200]!r}") from None
        usage = APIS[self.api].read(document).usage
        known = usage is not None and usage.output >= 0
        cached = max(usage.cached, 0) if usage is not None else 0
        return Said(text=str(text or ""), tokens=usage.output if usage is not None and known else None, cached=cached)

    def stream(self, prompt: Prompt, *, tokens: int, exact: bool = False) -> Said:
        """The answer as it comes."""
        found = self._sent(http.timed_lines, prompt, tokens, exact, stream=True)
        if found.status != 200:
            raise NoAnswer(f"status {found.status}: {b''.join(line for _, line in found.lines)[:200]!r}")
        chunks: list[tuple[int, str]] = []
        counted: int | None = None
        cached = 0
        for at, line in found.lines:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = _event(self.api, line[5:])
            if event.error:
                raise NoAnswer(f"an error in the stream: {event.error[:200]}")
            if event.output:
                chunks.append((at, event.text))
            if event.usage is not None:
                counted, cached = max(event.usage.output, counted or 0), max(event.usage.cached, cached)
        if not chunks:
            raise NoAnswer("a stream without any output")
        text = "".join(part for _, part in chunks)
        return Said(text=text, tokens=counted, cached=cached, chunks=tuple(chunks), sent_ns=found.sent_ns)

    def count(self, text: str) -> int:
        """Tokens of a text by the server's tokenizer, without special ones."""
        asked = {"model": self.endpoint.model, "prompt": text, "add_special_tokens": False}
        try:
            answer = http.request(
                self.endpoint.base_url, "/tokenize", payload=asked, timeout_s=self._left(),
                api_key=self.endpoint.api_key,
            )  # fmt: skip
        except http.Unreachable as error:
            raise NoAnswer(str(error)) from error
        document = answer.json()
        tokens = document.get("tokens") if isinstance(document, dict) else None
        if answer.status != 200 or not isinstance(tokens, list):
            raise NoAnswer(f"the server has no /tokenize (status {answer.status})")
        return len(tokens)

    def _sent(self, send: Any, prompt: Prompt, tokens: int, exact: bool, *, stream: bool) -> Any:
        payload: dict[str, Any] = {"model": self.endpoint.model, "temperature": 0, "max_tokens": tokens}
        payload["stream"] = stream
        if stream:
            payload["stream_options"] = {"include_usage": True}
        if exact:
            payload |= {"min_tokens": tokens, "ignore_eos": True}
        if self.api == "completions":
            payload["prompt"] = prompt
        else:
            payload["messages"] = [{"role": "user", "content": prompt}]
        self.asked += 1
        try:
            return send(
                self.endpoint.base_url, APIS[self.api].path, payload=payload, timeout_s=self._left(),
                api_key=self.endpoint.api_key,
            )  # fmt: skip
        except http.Unreachable as error:
            raise NoAnswer(str(error)) from error

    def _left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise NoAnswer("no time left for it")
        return min(left, TIMEOUT_S)


def api_of(endpoint: Endpoint) -> str:
    """The generating API that its first generation came by."""
    first = endpoint.facts.get("first_generation")
    api = first.get("api") if isinstance(first, dict) else None
    return str(api) if api in ("completions", "chat") else "completions"


def _message(message: dict[str, Any]) -> str:
    """Reasoning and answer, in the order in which a stream has them."""
    return f"{message.get('reasoning') or message.get('reasoning_content') or ''}{message.get('content') or ''}"


def _event(api: str, data: bytes) -> Any:
    try:
        return APIS[api].read(json.loads(data))
    except (ValueError, AttributeError, TypeError, IndexError, KeyError) as error:
        raise NoAnswer(f"an event that is none ({error}): {data[:200]!r}") from error
