"""The truth server when nothing goes wrong: bodies, usage, stamps, records, counters."""

from __future__ import annotations

import re
from typing import Any

import pytest

from neuronbench.testing.truth import tokens

STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def completion(model: str = "truth", *, n: int = 8, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": [1, 2, 3], "max_tokens": n, "ignore_eos": True, **STREAM, **more}


def chat(model: str = "truth", *, n: int = 8, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello world"}]
    return {"model": model, "messages": messages, "max_tokens": n, "ignore_eos": True, **STREAM, **more}


def record(server, request_id: str) -> dict[str, Any]:
    return next(item for item in server.truth()["requests"] if item["id"] == request_id)


def counters(server) -> dict[str, float]:
    """Every sample of /metrics by its name and the labels that are not on all of them."""
    found = {}
    for line in server.metrics().splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            own = re.sub(r'model_name="[^"]*",engine="0",?', "", labels or "")
            found[name + (f"{{{own}}}" if own else "")] = float(value)
    return found


def test_completions_stream_has_tokens_usage_and_done(client):
    reply = client.ask("/v1/completions", completion())
    assert (reply.status, reply.end) == (200, "complete")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.texts == [f" t{k:05d}" for k in range(8)]
    finishes = [data["choices"][0]["finish_reason"] for data in reply.data[:8]]
    assert finishes == [None] * 7 + ["length"]
    assert reply.data[8]["choices"] == []
    assert reply.usages == [
        {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11, "prompt_tokens_details": None}
    ]
    assert reply.data[9:] == ["[DONE]"]


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", completion), ("/v1/chat/completions", chat)])
def test_short_streams_have_exactly_the_tokens_asked_for(client, path, body, n):
    reply = client.ask(path, body(n=n))
    assert reply.usages[0]["completion_tokens"] == n
    assert reply.body.count(b" t000") == n
    assert reply.body.endswith(b"data: [DONE]\n\n")


def test_no_usage_chunk_unless_asked_for(client):
    reply = client.ask("/v1/completions", completion(stream_options=None))
    assert reply.usages == []
    assert reply.data[-1] == "[DONE]"


def test_continuous_usage_counts_up(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = client.ask("/v1/completions", completion(n=4, stream_options=options))
    assert [usage["completion_tokens"] for usage in reply.usages] == [1, 2, 3, 4, 4]


def test_chat_stream_opens_with_a_role_chunk(client):
    reply = client.ask("/v1/chat/completions", chat(n=3))
    assert reply.deltas == [
        {"role": "assistant", "content": ""},
        {"content": " t00000"},
        {"content": " t00001"},
        {"content": " t00002"},
    ]
    assert reply.usages[0]["prompt_tokens"] == tokens.chat_count([{"content": "hello world"}])


def test_responses_stream_ends_with_its_own_last_event(client):
    body = {"model": "truth", "input": "hello", "max_output_tokens": 3, "stream": True, "ignore_eos": True}
    reply = client.ask("/v1/responses", body)
    assert [name for name, _ in reply.events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [data["sequence_number"] for data in reply.data] == list(range(11))
    assert reply.data[-1]["response"]["usage"]["output_tokens"] == 3


def test_whole_answers(client):
    text = client.ask("/v1/completions", completion(n=3, stream=False)).json
    assert text["choices"][0]["text"] == " t00000 t00001 t00002"
    assert text["usage"]["completion_tokens"] == 3
    message = client.ask("/v1/chat/completions", chat(n=2, stream=False)).json["choices"][0]["message"]
    assert message["content"] == " t00000 t00001"
    response = client.ask("/v1/responses", {"input": "hello", "max_output_tokens": 2}).json
    assert response["output"][0]["content"][0]["text"] == " t00000 t00001"


@pytest.mark.parametrize(
    ("more", "count", "finish"),
    [
        ({"max_tokens": 5}, 5, "length"),
        ({"max_tokens": 300}, 256, "stop"),
        ({"max_tokens": 300, "min_tokens": 280}, 280, "stop"),
        ({"max_tokens": 300, "ignore_eos": True}, 300, "length"),
        ({}, 16, "length"),
    ],
)
def test_length_follows_max_tokens_min_tokens_and_ignore_eos(client, more, count, finish):
    answer = client.ask("/v1/completions", {"model": "truth:tpot=0,ttft=0", "prompt": [1], **more}).json
    assert answer["usage"]["completion_tokens"] == count
    assert answer["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/completions", {"model": "truth:nope", "prompt": "x"}, 404, "no scenario 'nope'"),
        ("/v1/completions", {"model": "other", "prompt": "x"}, 404, "served: org/model, truth"),
        ("/v1/completions", {"model": "truth:stall,at=soon", "prompt": "x"}, 404, "expected a whole number"),
        ("/v1/completions", {"model": "truth:stall,foo=1", "prompt": "x"}, 404, "it has: at, ms, ttft, tpot, tokens"),
        ("/v1/completions", {"model": "truth:usage,form=odd", "prompt": "x"}, 404, "expected one of absent, early"),
        ("/v1/completions", {"model": "truth", "prompt": 7}, 400, "one text or one list of token ids"),
        ("/v1/completions", {"model": "truth", "prompt": [128_000]}, 400, "outside the vocabulary"),
        ("/v1/completions", {"model": "truth", "prompt": "x", "max_tokens": 0}, 400, "max_tokens is 0"),
        ("/v1/completions", {"model": "truth", "prompt": "x", "max_tokens": 131_072}, 400, "context is 131072"),
        ("/v1/completions", {"model": "truth", "prompt": "x", "n": 2}, 400, "n is 2"),
        ("/v1/chat/completions", {"model": "truth", "messages": []}, 400, "at least one message"),
        ("/v1/embeddings", {"model": "truth"}, 400, "input must be"),
        ("/v1/nothing", {}, 404, "no endpoint /v1/nothing"),
        ("/metrics", {}, 405, "does not take POST"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(client, path, body, status, says):
    reply = client.ask(path, body)
    assert reply.status == status
    assert says in reply.json["error"]["message"]
    assert client.ask("/health").status == 200, "the connection is still good"


def test_not_json_and_not_http(client, server, connect):
    client.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
    assert "not JSON" in client.read().json["error"]["message"]
    other = connect(server)
    other.sock.sendall(b"nonsense\r\n\r\n")
    assert other.read().status == 400
    assert other.gone() in ("fin", "reset")


def test_chunked_request_body_expectation_and_pipelining(client):
    client.sock.sendall(
        b"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'5\r\n{"pro\r\nb\r\nmpt":"a b"}\r\n0\r\n\r\n'
        b"GET /health HTTP/1.1\r\n\r\n"
    )
    first = client.read()
    assert first.interim == [100]
    assert first.json["count"] == 3
    assert client.read().status == 200


def test_pipelined_generations_are_answered_in_order(client):
    client.send("/v1/completions", completion(n=2), headers="x-request-id: one\r\n")
    client.send("/v1/completions", completion(n=3), headers="x-request-id: two\r\n")
    first, second = client.read(), client.read()
    assert [first.headers["x-request-id"], second.headers["x-request-id"]] == ["one", "two"]
    assert [len(first.texts), len(second.texts)] == [2, 3]


def test_tokenizer_is_a_fixed_point_only_through_the_template(client):
    prompt = "word " * 5 + "longerword"
    assert client.ask("/tokenize", {"prompt": prompt}).json["count"] == 1 + 5 + 2
    bare = client.ask("/tokenize", {"prompt": prompt, "add_special_tokens": False}).json
    assert bare["count"] == len(bare["tokens"]) == 7
    messages = [{"role": "user", "content": prompt}]
    template = tokens.TEMPLATE_TOKENS + tokens.MESSAGE_TOKENS + tokens.GENERATION_PROMPT_TOKENS
    asked = client.ask("/tokenize", {"messages": messages}).json
    assert asked["count"] == 7 + template
    served = client.ask("/v1/chat/completions", {"model": "truth", "messages": messages, "max_tokens": 1}).json
    assert served["usage"]["prompt_tokens"] == asked["count"]


def test_generated_text_tokenizes_to_the_tokens_it_was_made_of(client):
    text = client.ask("/v1/completions", completion(n=20, stream=False)).json["choices"][0]["text"]
    asked = client.ask("/tokenize", {"prompt": text, "add_special_tokens": False}).json
    assert asked["tokens"] == list(range(20))
    assert client.ask("/detokenize", {"tokens": asked["tokens"]}).json["prompt"] == text.strip()


def test_embeddings_rerank_score(client):
    one = client.ask("/v1/embeddings", {"model": "truth", "input": ["a b", [1, 2, 3]]}).json
    assert [len(item["embedding"]) for item in one["data"]] == [8, 8]
    assert one["usage"]["prompt_tokens"] == 3 + 3
    assert sum(value**2 for value in one["data"][0]["embedding"]) == pytest.approx(1)
    again = client.ask("/v1/embeddings", {"model": "truth", "input": "a b", "encoding_format": "base64"}).json
    assert isinstance(again["data"][0]["embedding"], str)
    ranked = client.ask("/v1/rerank", {"query": "a b", "documents": ["x", "a b", "a"]}).json
    assert [item["index"] for item in ranked["results"]] == [1, 2, 0]
    scored = client.ask("/v1/score", {"text_1": "a b", "text_2": ["a b", "c"]}).json
    assert [item["score"] for item in scored["data"]] == [1.0, 0.0]


def test_models_are_listed_and_all_take_scenarios(client):
    listed = client.ask("/v1/models").json["data"]
    assert [item["id"] for item in listed] == ["org/model", "truth"]
    assert client.ask("/v1/completions", completion("org/model:one_token")).usages[0]["completion_tokens"] == 1


def test_every_event_carries_the_instant_the_record_has(client, server):
    reply = client.ask("/v1/completions", completion(n=16), headers="x-request-id: stamps\r\n")
    truth = record(server, "stamps")
    stamps = [data["x_mono_ns"] for data in reply.data if isinstance(data, dict) and data["choices"]]
    assert stamps == truth["sent_ns"]
    assert truth["chunk_tokens"] == [1] * 16
    assert truth["received_ns"] == truth["anchor_ns"] <= truth["parsed_ns"] <= stamps[0]
    assert stamps[0] < reply.stamps_ns[-1]
    assert truth["done_ns"] >= stamps[-1]
    assert truth["outcome"] == "complete"
    assert truth["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_deadlines_are_absolute_and_never_early(client, server, path):
    body = (completion if path == "/v1/completions" else chat)("truth:ttft=12,tpot=3", n=10)
    client.ask(path, body, headers="x-request-id: deadlines\r\n")
    truth = record(server, "deadlines")
    assert truth["due_ns"] == [truth["anchor_ns"] + 12_000_000 + k * 3_000_000 for k in range(10)]
    assert all(sent >= due for sent, due in zip(truth["sent_ns"], truth["due_ns"], strict=True))
    server.reset()


def test_truth_can_be_asked_for_less_and_reset(client, server):
    client.ask("/v1/completions", completion(n=4))
    assert "sent_ns" not in server.truth(chunks=False)["requests"][-1]
    assert "requests" not in server.truth(records=False)
    summary = server.truth(records=False)["summary"]
    assert summary["chunks"] >= 4
    assert 0 <= summary["lateness_us"]["p50"] <= summary["lateness_us"]["p99"] <= summary["lateness_us"]["max"]
    server.reset()
    assert server.truth()["requests"] == []
    assert server.truth()["summary"]["lateness_us"]["p50"] is None
    client.ask("/v1/completions", completion(n=1))
    assert server.truth()["requests"][0]["id"] == "seq-0"


def test_counters_are_true(client, server):
    before = counters(server)
    client.ask("/v1/completions", completion(n=10))
    client.ask("/v1/completions", completion(n=400, ignore_eos=False, model="truth:tpot=0", stream=False))
    client.ask("/v1/embeddings", {"model": "truth", "input": [1, 2, 3, 4]})
    after = counters(server)
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown["vllm:prompt_tokens_total"] == 3 + 3 + 4
    assert grown["vllm:generation_tokens_total"] == 10 + 256
    assert grown['vllm:request_success_total{finished_reason="length"}'] == 1
    assert grown['vllm:request_success_total{finished_reason="stop"}'] == 2
    assert grown["vllm:request_queue_time_seconds_count"] == 3
    assert grown["vllm:prefix_cache_queries_total"] == 10
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert "vllm:prefix_cache_hits_total" not in grown


def test_gauges_and_tokens_of_a_running_answer(client, server):
    before = counters(server)["vllm:generation_tokens_total"]
    client.send("/v1/completions", completion("truth:hang,at=5", n=50))
    client.read(until=lambda reply: len(reply.texts) == 5)
    during = counters(server)
    assert during["vllm:num_requests_running"] == 1
    assert during["vllm:generation_tokens_total"] - before == 5
    assert during["vllm:kv_cache_usage_perc"] == pytest.approx((3 + 5) / 1_000_000)


def test_client_that_leaves_is_an_abort(server, connect):
    client = connect(server)
    before = counters(server)['vllm:request_success_total{finished_reason="abort"}']
    client.send("/v1/completions", completion("truth:hang,at=5", n=50), headers="x-request-id: leaver\r\n")
    client.read(until=lambda reply: len(reply.texts) == 5)
    client.close()
    # The next request is read after the hang-up, which came first.
    truth = record(server, "leaver")
    assert truth["outcome"] == "client_closed"
    assert truth["completion_tokens"] == 5
    assert counters(server)['vllm:request_success_total{finished_reason="abort"}'] == before + 1
