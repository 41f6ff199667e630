"""What the OpenAI-compatible APIs say: paths, and what one parsed event of an answer means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class Usage(NamedTuple):
    """Token counts by the server; -1 where it does not say."""

    output: int
    input: int
    reasoning: int = -1
    cached: int = -1


class Event(NamedTuple):
    """Meaning of one event."""

    output: bool = False
    """It carries generated output."""
    answer: bool = False
    """That output is answer text, not reasoning."""
    key: str = ""
    """JSON key of the one text it carries; empty when the event is not that simple."""
    text: str = ""
    finish: str = ""
    usage: Usage | None = None
    tokens: int = 0
    """Tokens in this event when the server gives their ids; 0 unknown."""
    error: str = ""
    ends: bool = False
    """The answer is complete with this event (where the API has no `[DONE]`)."""
    empty: bool = False
    """A text chunk whose text is empty."""


@dataclass(frozen=True, kw_only=True)
class Api:
    """One API. `read` gives the meaning of a parsed event, or of the whole body when not `streaming`."""

    name: str
    path: str
    streaming: bool
    generates: bool
    """Answers are generated tokens; otherwise there is no output count."""
    done: bool
    """A stream ends with `data: [DONE]`."""
    read: Callable[[Mapping[str, Any]], Event]


_NOTHING: Final = Event()


def _count(data: Mapping[str, Any], *keys: str) -> int:
    value: Any = data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


def _usage(data: object) -> Usage | None:
    if not isinstance(data, dict):
        return None
    return Usage(
        output=_count(data, "completion_tokens"),
        input=_count(data, "prompt_tokens"),
        reasoning=_count(data, "completion_tokens_details", "reasoning_tokens"),
        cached=_count(data, "prompt_tokens_details", "cached_tokens"),
    )


def _error(data: Mapping[str, Any]) -> str:
    """Text of an error object; empty when the event is none."""
    error = data.get("error")
    if error is None:
        return str(data.get("message") or "error object") if data.get("object") == "error" else ""
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error) or "error"


def read_completions(data: Mapping[str, Any]) -> Event:
    if error := _error(data):
        return Event(error=error)
    usage = _usage(data.get("usage"))
    choices = data.get("choices")
    if not choices:
        return Event(usage=usage)
    choice = choices[0]
    text = choice.get("text") or ""
    ids = choice.get("token_ids")
    simple = len(choices) == 1 and usage is None and not ids
    return Event(
        output=bool(text),
        answer=bool(text),
        key="text" if text and simple else "",
        text=text,
        finish=choice.get("finish_reason") or "",
        usage=usage,
        tokens=len(ids) if ids else 0,
        empty=not text,
    )


_TEXTS: Final = (("content", True), ("reasoning", False), ("reasoning_content", False), ("refusal", True))


def read_chat(data: Mapping[str, Any]) -> Event:
    if error := _error(data):
        return Event(error=error)
    usage = _usage(data.get("usage"))
    choices = data.get("choices")
    if not choices:
        return Event(usage=usage)
    choice = choices[0]
    delta = choice.get("delta") or choice.get("message") or {}
    ids = choice.get("token_ids")
    found = [(key, value, answer) for key, answer in _TEXTS if (value := delta.get(key)) and isinstance(value, str)]
    called = bool(delta.get("tool_calls") or delta.get("function_call"))
    simple = len(choices) == 1 and len(found) == 1 and not called and usage is None and not ids
    return Event(
        output=bool(found) or called,
        answer=called or any(answer for _, _, answer in found),
        key=found[0][0] if simple else "",
        text=found[0][1] if found else "",
        finish=choice.get("finish_reason") or "",
        usage=usage,
        tokens=len(ids) if ids else 0,
        empty=not found and not called and not delta.get("role") and any(delta.get(key) == "" for key, _ in _TEXTS),
    )


_DELTAS: Final = {
    "response.output_text.delta": True,
    "response.refusal.delta": True,
    "response.function_call_arguments.delta": True,
    "response.reasoning_text.delta": False,
    "response.reasoning_summary_text.delta": False,
}


def read_responses(data: Mapping[str, Any]) -> Event:
    kind = data.get("type", "")
    if kind in _DELTAS:
        text = data.get("delta") or ""
        return Event(output=bool(text), answer=_DELTAS[kind] and bool(text), text=text, empty=not text)
    if kind == "error" or kind == "response.failed":
        inner = data.get("response") if isinstance(data.get("response"), Mapping) else data
        return Event(error=_error(inner or data) or str(data.get("message") or kind))
    if kind in ("response.completed", "response.incomplete"):
        response = data.get("response") or {}
        counts = response.get("usage")
        usage = None
        if isinstance(counts, Mapping):
            usage = Usage(
                output=_count(counts, "output_tokens"),
                input=_count(counts, "input_tokens"),
                reasoning=_count(counts, "output_tokens_details", "reasoning_tokens"),
                cached=_count(counts, "input_tokens_details", "cached_tokens"),
            )
        return Event(usage=usage, finish="stop" if kind == "response.completed" else "length", ends=True)
    if error := _error(data):
        return Event(error=error)
    return _NOTHING


def read_pooled(data: Mapping[str, Any]) -> Event:
    """Embeddings, scores and reranks: one JSON answer, counted in prompt tokens."""
    if error := _error(data):
        return Event(error=error)
    counts = data.get("usage")
    usage = None
    if isinstance(counts, Mapping):
        prompt = _count(counts, "prompt_tokens")
        usage = Usage(output=-1, input=prompt if prompt >= 0 else _count(counts, "total_tokens"))
    rows = data.get("data") if "data" in data else data.get("results")
    return Event(output=bool(rows), answer=bool(rows), usage=usage, finish="stop", ends=True)


APIS: Final[Mapping[str, Api]] = {
    api.name: api
    for api in (
        Api(
            name="completions", path="/v1/completions", streaming=True, generates=True, done=True, read=read_completions
        ),
        Api(name="chat", path="/v1/chat/completions", streaming=True, generates=True, done=True, read=read_chat),
        Api(name="responses", path="/v1/responses", streaming=True, generates=True, done=False, read=read_responses),
        Api(name="embeddings", path="/v1/embeddings", streaming=False, generates=False, done=False, read=read_pooled),
        Api(name="score", path="/score", streaming=False, generates=False, done=False, read=read_pooled),
        Api(name="rerank", path="/rerank", streaming=False, generates=False, done=False, read=read_pooled),
    )
}
