"""Reading request bodies: what is asked for, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from neuronbench.testing.truth import tokens
from neuronbench.testing.truth.settings import Settings


class BadRequest(Exception):
    """The body cannot be served; becomes HTTP `status` with the message."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, kw_only=True)
class Generation:
    """A request to generate: counts in tokens."""

    model: str
    prompt: list[int] | str | list[dict[str, Any]]
    prompt_tokens: int
    tokens: int
    finish: str
    stream: bool
    usage: bool
    continuous_usage: bool
    token_ids: bool
    """Whether chunks say which tokens they carry (`return_token_ids`, as vLLM has it)."""


def load(body: bytes) -> dict[str, Any]:
    """The JSON object in a body."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest(f"the body is a JSON {type(data).__name__}; expected an object")
    return data


def model_of(data: dict[str, Any], settings: Settings) -> str:
    """The model asked for; the first one served when none is named."""
    model = data.get("model", settings.served[0])
    if not isinstance(model, str):
        raise BadRequest(f"model is {model!r}; expected a string")
    return model


def completion(data: dict[str, Any], settings: Settings) -> Generation:
    """/v1/completions: one prompt, as text or as token ids."""
    prompt = data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        count = tokens.count(prompt) + (1 if data.get("add_special_tokens", True) else 0)
    elif isinstance(prompt, list) and prompt and all(map(int.__instancecheck__, prompt)):
        count = len(prompt)
        if min(prompt) < 0 or max(prompt) >= tokens.VOCABULARY:
            raise BadRequest(f"a token id is outside the vocabulary of {tokens.VOCABULARY}")
    else:
        raise BadRequest("prompt must be one text or one list of token ids")
    return _generation(data, settings, prompt, count, data.get("max_tokens", 16))


def chat(data: dict[str, Any], settings: Settings) -> Generation:
    """/v1/chat/completions."""
    messages = _messages(data.get("messages"), "messages")
    count = tokens.chat_count(messages, generation_prompt=data.get("add_generation_prompt", True))
    asked = data.get("max_completion_tokens", data.get("max_tokens"))
    return _generation(data, settings, messages, count, asked)


def responses(data: dict[str, Any], settings: Settings) -> Generation:
    """/v1/responses: `input` is a text or a list of messages, `instructions` a system message."""
    asked = data.get("input")
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else _messages(asked, "input")
    if data.get("instructions"):
        messages = [{"role": "system", "content": data["instructions"]}, *messages]
    return _generation(data, settings, messages, tokens.chat_count(messages), data.get("max_output_tokens"))


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{name} must be a list of at least one message object")
    return value


def _generation(data: dict[str, Any], settings: Settings, prompt: Any, prompt_tokens: int, asked: Any) -> Generation:
    if data.get("n", 1) != 1:
        raise BadRequest(f"n is {data['n']!r}; this server gives one answer to a request")
    room = settings.max_model_len - prompt_tokens
    if asked is None:
        asked = room
    if not isinstance(asked, int) or asked < 1:
        raise BadRequest(f"max_tokens is {asked!r}; expected a whole number of at least 1")
    if asked > room or room < 1:
        raise BadRequest(
            f"this model's context is {settings.max_model_len} tokens; "
            f"the prompt has {prompt_tokens} and {asked} more were asked for"
        )
    natural = asked if data.get("ignore_eos") else max(settings.natural_tokens, data.get("min_tokens") or 0)
    options = data.get("stream_options") or {}
    return Generation(
        model=model_of(data, settings),
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        tokens=min(asked, natural),
        finish="length" if asked <= natural else "stop",
        stream=bool(data.get("stream", False)),
        usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        token_ids=bool(data.get("return_token_ids")),
    )


def prompt_ids(prompt: list[int] | str | list[dict[str, Any]]) -> list[int]:
    """The token ids the model would see."""
    if isinstance(prompt, str):
        return [tokens.BOS, *tokens.encode(prompt)]
    if prompt and isinstance(prompt[0], dict):
        return tokens.chat_encode([message for message in prompt if isinstance(message, dict)])
    return [item for item in prompt if isinstance(item, int)]
