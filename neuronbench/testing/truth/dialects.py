"""The three generating APIs: what their events and bodies look like, in vLLM's shape.

An event is its name (empty for unnamed ones) and its JSON without the closing brace, to which the wire adds the
instant of sending.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import orjson

from neuronbench.testing.truth import tokens


class Event(NamedTuple):
    """One server-sent event before it is stamped."""

    name: bytes
    head: bytes


def event(payload: dict[str, Any], name: str = "") -> Event:
    """An event from a JSON object that is not empty."""
    return Event(name.encode(), orjson.dumps(payload)[:-1])


def usage(prompt: int, completion: int, *, reasoning: int = 0, cached: int = 0) -> dict[str, Any]:
    """The usage object of completions and chat."""
    data: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
    }
    if reasoning:
        data["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return data


def error_body(message: str, kind: str, code: int) -> dict[str, Any]:
    """The error object of the OpenAI API, as vLLM fills it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class Dialect:
    """Completions; the other two differ from it. One object per answer."""

    api = "completions"
    prefix = "cmpl"
    ends_with_done = True

    def __init__(self, request_id: str, model: str) -> None:
        self.id = f"{self.prefix}-{request_id}"
        self.model = model
        self.created = int(time.time())

    def envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def opening(self) -> list[Event]:
        """Events before the first token."""
        return []

    def tool_opening(self) -> list[Event]:
        """Events that name the tool before its arguments come."""
        return []

    def choice(self, text: str, finish: str | None, field: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}

    def chunk(
        self,
        text: str,
        finish: str | None = None,
        field: str = "content",
        usage: dict[str, Any] | None = None,
        ids: list[int] | None = None,
    ) -> Event:
        """An event with text in `field`: content, reasoning, reasoning_content, refusal or tool_calls."""
        choice = self.choice(text, finish, field)
        if ids is not None:
            choice["token_ids"] = ids
        payload = self.envelope(self.stream_object) | {"choices": [choice]}
        if usage is not None:
            payload["usage"] = usage
        return event(payload)

    stream_object = "text_completion"
    body_object = "text_completion"

    def closing(self, text: str, finish: str | None, usage: dict[str, Any]) -> list[Event]:
        """Events after the last token that are not the usage chunk."""
        return []

    def usage_event(self, usage: dict[str, Any], *, choices: bool = False) -> Event:
        shown = [self.choice("", None, "content")] if choices else []
        return event(self.envelope(self.stream_object) | {"choices": shown, "usage": usage})

    def error(self, message: str) -> Event:
        return event(error_body(message, "internal_error", 500))

    def whole(self, parts: dict[str, str], finish: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that is not streamed; `parts` maps fields to their text."""
        choice = self.choice("".join(parts.values()), finish, "content")
        return self.envelope(self.body_object) | {"choices": [choice], "usage": usage}


class Chat(Dialect):
    """/v1/chat/completions."""

    api = "chat"
    prefix = "chatcmpl"
    stream_object = "chat.completion.chunk"
    body_object = "chat.completion"

    def opening(self) -> list[Event]:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [event(self.envelope(self.stream_object) | {"choices": [role]})]

    def tool_opening(self) -> list[Event]:
        call = {"index": 0, "id": "call-0", "type": "function", "function": {"name": "answer", "arguments": ""}}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "logprobs": None, "finish_reason": None}
        return [event(self.envelope(self.stream_object) | {"choices": [choice]})]

    def choice(self, text: str, finish: str | None, field: str) -> dict[str, Any]:
        delta: dict[str, Any]
        if field == "tool_calls":
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        else:
            delta = {field: text}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}

    def whole(self, parts: dict[str, str], finish: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []} | parts
        if isinstance(message["tool_calls"], str):
            function = {"name": "answer", "arguments": message["tool_calls"]}
            message["tool_calls"] = [{"id": "call-0", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return self.envelope(self.body_object) | {"choices": [choice], "usage": usage}


_DELTAS = {
    "content": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "reasoning_content": "response.reasoning_text.delta",
    "refusal": "response.refusal.delta",
    "tool_calls": "response.function_call_arguments.delta",
}


class Responses(Dialect):
    """/v1/responses. Its events are named and numbered, and no `[DONE]` ends them."""

    api = "responses"
    prefix = "resp"
    ends_with_done = False

    def __init__(self, request_id: str, model: str) -> None:
        super().__init__(request_id, model)
        self._number = 0
        self._item = f"msg-{request_id}"

    def _event(self, kind: str, **fields: Any) -> Event:
        payload = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        return event(payload, kind)

    def _response(self, status: str, output: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "output": output,
            "usage": usage,
        }

    def _usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        details = usage.get("completion_tokens_details") or {"reasoning_tokens": 0}
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"] or {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": details,
            "total_tokens": usage["total_tokens"],
        }

    def _message(self, text: str, status: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": content}

    def opening(self) -> list[Event]:
        item = {"id": self._item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        where = {"output_index": 0, "item_id": self._item, "content_index": 0}
        return [
            self._event("response.created", response=self._response("in_progress", [], None)),
            self._event("response.in_progress", response=self._response("in_progress", [], None)),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", part=part, **where),
        ]

    def chunk(
        self,
        text: str,
        finish: str | None = None,
        field: str = "content",
        usage: dict[str, Any] | None = None,
        ids: list[int] | None = None,
    ) -> Event:
        return self._event(_DELTAS[field], item_id=self._item, output_index=0, content_index=0, delta=text)

    def closing(self, text: str, finish: str | None, usage: dict[str, Any]) -> list[Event]:
        where = {"output_index": 0, "item_id": self._item, "content_index": 0}
        message = self._message(text, "completed")
        status = "incomplete" if finish == "length" else "completed"
        return [
            self._event("response.output_text.done", text=text, **where),
            self._event("response.content_part.done", part=message["content"][0], **where),
            self._event("response.output_item.done", output_index=0, item=message),
            self._event(f"response.{status}", response=self._response(status, [message], self._usage(usage))),
        ]

    def error(self, message: str) -> Event:
        return self._event("error", code="internal_error", message=message, param=None)

    def whole(self, parts: dict[str, str], finish: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        status = "incomplete" if finish == "length" else "completed"
        return self._response(status, [self._message("".join(parts.values()), "completed")], self._usage(usage))


def plain_parts(dialect: Dialect) -> tuple[bytes, bytes]:
    """The bytes before and after the text of a chunk that carries one token and no finish reason."""
    mark = tokens.WORDS[0].decode()
    before, after = dialect.chunk(mark).head.split(mark.encode(), 1)
    return before, after
