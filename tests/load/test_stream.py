"""The stream parser: the same bytes mean the same however they are cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronbench.load import layout
from neuronbench.load.apis import APIS
from neuronbench.load.outcomes import Kind, Phase
from neuronbench.load.stream import Stream


def stream(api: str = "completions", **options: Any) -> Stream:
    made = Stream(APIS[api], seq=0, body=0, phase=Phase.WINDOW, s=1, **options)
    made.status = 200
    return made


def completion(text: str, finish: str | None = None, **more: Any) -> str:
    return json.dumps({"id": "c-1", "choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def delta(**fields: Any) -> str:
    finish = fields.pop("finish", None)
    return json.dumps({"id": "c-1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(n: int, prompt: int = 4, **more: Any) -> str:
    return json.dumps({"id": "c-1", "choices": [], "usage": {"completion_tokens": n, "prompt_tokens": prompt, **more}})


def sse(*payloads: str, end: str = "\n") -> bytes:
    return "".join(f"data: {payload}{end}{end}" for payload in payloads).encode()


def fed(made: Stream, *pieces: bytes) -> Stream:
    for number, piece in enumerate(pieces):
        made.feed(piece, 100 + number, 3)
    made.finish(1000)
    return made


texts = st.text(st.characters(codec="utf-8"), min_size=0, max_size=6)


@given(
    st.lists(texts, min_size=1, max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.lists(st.integers(0, 4000), max_size=12),
    st.booleans(),
)
def test_any_cut_of_the_bytes_gives_the_same_answer(
    words: list[str], end: str, ascii_only: bool, cuts: list[int], stamped: bool
) -> None:
    payloads = []
    for number, word in enumerate(words):
        last = number == len(words) - 1
        data = {"id": "c-1", "choices": [{"index": 0, "text": word, "finish_reason": "length" if last else None}]}
        if stamped:
            data["stamp"] = 10**9 + number  # type: ignore[assignment]
        payloads.append(json.dumps(data, ensure_ascii=ascii_only))
    body = sse(*payloads, usage(9), "[DONE]", end=end)
    at = sorted({cut % (len(body) + 1) for cut in cuts} | {0, len(body)})
    pieces = [body[a:b] for a, b in itertools.pairwise(at)]
    made = fed(stream(), *pieces)
    shown = sum(bool(word) for word in words)
    assert made.count == shown
    assert made.empties == len(words) - shown
    assert made.n_out == 9
    assert made.kind == (Kind.OK if shown else Kind.NO_VISIBLE_OUTPUT)
    assert made.tail == b""


def test_chunks_are_stamped_with_the_read_that_completed_them() -> None:
    body = sse(completion("a"), completion("b", "stop"), usage(2), "[DONE]")
    cut = body.index(b"b") + 1
    made = fed(stream(), body[:cut], body[cut:])
    assert list(made.chunks) == [100, 101]
    assert (made.f, made.l, made.e, made.f_lag) == (100, 101, 1000, 3)


@pytest.mark.parametrize(
    "text",
    ['say "x"', '","usage":{"completion_tokens":99},"q":"', "back\\slash", '{"error": "no"}', "data: [DONE]", "\n\n"],
)
def test_text_that_looks_like_protocol_is_only_text(text: str) -> None:
    made = fed(stream(), sse(completion("a"), completion(text), completion("z", "stop"), usage(3), "[DONE]"))
    assert (made.kind, made.count, made.n_out, made.error) == (Kind.OK, 3, 3, "")


def test_usage_hidden_between_equal_ends_is_seen() -> None:
    """Same beginning and end as the chunk before, but a usage object in the middle."""
    plain = '{"choices":[{"text":"a"}],"x":1}'
    odd = '{"choices":[{"text":"a"}],"usage":{"completion_tokens":5,"prompt_tokens":1},"x":1}'
    made = stream()
    made.feed(sse(plain, plain, odd), 5, 0)
    assert made.n_out == 5
    assert made.count == 3


def test_an_error_hidden_between_equal_ends_is_seen() -> None:
    made = stream()
    made.feed(sse('{"choices":[{"text":"a"}],"x":"y"}', '{"choices":[{"text":"a"}],"error":"gone","x":"y"}'), 5, 0)
    assert made.kind == Kind.STREAM_ERROR


def test_an_event_whose_text_never_ends_is_no_event() -> None:
    """Its last quotation mark is escaped; the bytes after it are those of the event before."""
    made = stream()
    made.feed(sse('{"choices":[{"text":"a"}],"x":1}', '{"choices":[{"text":"a\\"}],"x":1}'), 5, 0)
    assert (made.kind, made.count) == (Kind.PROTOCOL, 1)


def test_role_empty_comment_usage_and_finish_chunks_are_not_output() -> None:
    body = (
        sse(delta(role="assistant", content=""))
        + b": keep-alive\n\n"
        + sse(delta(content=""), delta(content="hi"), delta(finish="stop"), usage(2), "[DONE]")
    )
    made = stream("chat")
    for number, block in enumerate(body.split(b"\n\n")[:-1]):
        made.feed(block + b"\n\n", 10 * (number + 1), 0)
    made.finish(99)
    assert made.kind == Kind.OK
    assert (made.o, made.f, made.l) == (10, 40, 40)  # the role chunk is the first event, not the first output
    assert made.count == 1
    assert made.empties == 1


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_output_but_not_answer(field: str) -> None:
    made = stream("chat")
    made.feed(sse(delta(role="assistant"), delta(**{field: "hm"})), 10, 0)
    made.feed(sse(delta(**{field: "hmm"})), 20, 0)
    made.feed(
        sse(delta(content="yes", finish="stop"), usage(3, completion_tokens_details={"reasoning_tokens": 2})), 30, 0
    )
    made.feed(sse("[DONE]"), 40, 0)
    made.finish(50)
    assert (made.f, made.c, made.l, made.n_reason) == (10, 30, 30, 2)
    assert list(made.chunks) == [10, 20, 30]


@pytest.mark.parametrize(
    "fields", [{"tool_calls": [{"index": 0}]}, {"refusal": "no"}, {"function_call": {"arguments": "{"}}]
)
def test_tool_calls_and_refusals_are_output(fields: dict[str, Any]) -> None:
    made = fed(stream("chat"), sse(delta(**fields), delta(finish="stop"), usage(1), "[DONE]"))
    assert (made.kind, made.count) == (Kind.OK, 1)


def test_logprobs_do_not_count_as_text() -> None:
    chunk = json.dumps(
        {"choices": [{"delta": {"content": ""}, "logprobs": {"content": [{"token": "x"}]}, "finish_reason": None}]}
    )
    made = stream("chat")
    made.feed(sse(chunk), 10, 0)
    assert (made.count, made.empties) == (0, 1)


def test_usage_in_every_chunk_gives_the_tokens_of_each() -> None:
    def chunk(text: str, n: int, finish: str | None = None) -> str:
        return completion(text, finish, usage={"completion_tokens": n, "prompt_tokens": 4})

    made = stream()
    made.feed(sse(chunk("ab", 2), chunk("c", 3), chunk("def", 6, "length"), "[DONE]"), 10, 0)
    assert list(made.tokens or ()) == [2, 1, 3]
    assert (made.m, made.n_out) == (2, 6)
    assert made.pack()  # the flag is in the record
    assert layout.REQUEST.unpack(made.pack())[5] & layout.CHUNK_TOKENS


def test_token_ids_give_the_tokens_of_each_chunk() -> None:
    chunk = '{"choices":[{"text":"abc","token_ids":[1,2,3],"finish_reason":null}]}'
    made = stream()
    made.feed(sse(chunk, chunk), 10, 0)
    assert list(made.tokens or ()) == [3, 3]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (sse(completion("a"), '{"error": {"message": "boom"}}', "[DONE]"), Kind.STREAM_ERROR),
        (sse(completion("a")) + b'event: error\ndata: {"message": "boom"}\n\n', Kind.ERROR_EVENT),
        (sse(completion("a", "stop"), usage(1)), Kind.NO_DONE),
        (sse(completion("a"), usage(1), "[DONE]"), Kind.NO_FINISH),
        (sse(completion("", "stop"), usage(0), "[DONE]"), Kind.ZERO_TOKENS),
        (sse(completion("", "stop"), "[DONE]"), Kind.ZERO_TOKENS),
        (sse(completion("", "stop"), usage(3), "[DONE]"), Kind.NO_VISIBLE_OUTPUT),
        (sse(completion("a"), "{not json", "[DONE]"), Kind.PROTOCOL),
        (sse(completion("a"), "[1, 2]", "[DONE]"), Kind.PROTOCOL),
        (sse(completion("a", "stop"), "[DONE]"), Kind.OK),
        (sse(completion("a", "stop"), usage(1)) + b"data: [DONE]", Kind.OK),
        (sse(completion("a", "stop"), usage(1)) + b"data:[DONE]\n\n", Kind.OK),
        (b"", Kind.NO_DONE),
    ],
)
def test_how_a_stream_ends(body: bytes, kind: Kind) -> None:
    assert fed(stream(), body).kind == kind


def test_the_length_is_checked_only_when_an_exact_one_was_promised() -> None:
    body = sse(completion("a", "stop"), usage(1), "[DONE]")
    assert fed(stream(exact=2), body).kind == Kind.WRONG_LENGTH
    assert fed(stream(exact=1), body).kind == Kind.OK
    assert fed(stream(), body).kind == Kind.OK


def test_unknown_usage_stays_unknown() -> None:
    made = fed(stream(exact=5), sse(completion("a"), completion("b", "stop"), "[DONE]"))
    assert (made.kind, made.n_out, made.n_in) == (Kind.OK, -1, -1)


def test_a_planned_cancel_asks_to_hang_up_at_its_chunk() -> None:
    made = stream(cancel_after=2)
    assert not made.feed(sse(completion("a")), 1, 0)
    assert made.feed(sse(completion("b"), completion("c")), 2, 0)
    assert made.count == 2


def test_responses_end_with_their_own_event() -> None:
    def event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    body = event("response.created", response={}) + event("response.reasoning_text.delta", delta="hm")
    body += event("response.output_text.delta", delta="yes")
    counts = {"input_tokens": 4, "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 1}}
    done = event("response.completed", response={"usage": counts})
    made = fed(stream("responses"), body, done)
    assert (made.kind, made.count, made.n_out, made.n_in, made.n_reason) == (Kind.OK, 2, 2, 4, 1)
    assert fed(stream("responses"), body).kind == Kind.NO_DONE
    failed = event("response.failed", response={"error": {"message": "boom"}})
    broken = fed(stream("responses"), body, failed)
    assert (broken.kind, broken.error) == (Kind.STREAM_ERROR, "boom")


@pytest.mark.parametrize(
    "form", ["data: {p}\n\n", "data:{p}\n\n", "id: 7\ndata: {p}\nretry: 5\n\n", "\n\ndata: {p}\n\n"]
)
def test_forms_of_an_event(form: str) -> None:
    body = "".join(form.replace("{p}", p) for p in (completion("a"), completion("b", "stop"), usage(2), "[DONE]"))
    made = fed(stream(), body.encode())
    assert (made.kind, made.count) == (Kind.OK, 2)
