"""Every scenario of the truth server, seen from a raw socket: exact bytes, events, and ends."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neuronbench.testing.truth.catalogue import SCENARIOS
from neuronbench.testing.truth_server import TruthServer, scenario_list


def completion(model: str, *, n: int = 12, **more: Any) -> dict[str, Any]:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return {"model": model, "prompt": [1, 2, 3], "max_tokens": n, "ignore_eos": True, **stream, **more}


def chat(model: str, *, n: int = 12, **more: Any) -> dict[str, Any]:
    body = completion(model, n=n, **more)
    del body["prompt"]
    return body | {"messages": [{"role": "user", "content": "hello"}]}


def responses(model: str, *, n: int = 12) -> dict[str, Any]:
    return {"model": model, "input": "hello", "max_output_tokens": n, "ignore_eos": True, "stream": True}


def last_record(server: TruthServer) -> dict[str, Any]:
    return server.truth()["requests"][-1]


def words(*numbers: int) -> str:
    return "".join(f" t{k:05d}" for k in numbers)


def test_every_scenario_is_tested_here_and_listed():
    tests = Path(__file__).read_text()
    listed = scenario_list()
    for name in SCENARIOS:
        assert f"truth:{name}" in tests or name == "plain", f"no test asks for {name}"
        assert f"\n{name} " in "\n" + listed


# -- what the tokens are ------------------------------------------------------------------------------------------


def test_role_chunk_early(client, server):
    reply = client.ask("/v1/chat/completions", chat("truth:role_early,ms=1,ttft=60"))
    assert reply.deltas[0] == {"role": "assistant", "content": ""}
    truth = last_record(server)
    assert truth["anchor_ns"] + 1_000_000 <= reply.data[0]["x_mono_ns"] < reply.data[1]["x_mono_ns"]
    assert reply.data[1]["x_mono_ns"] >= truth["anchor_ns"] + 60_000_000
    assert reply.data[1]["x_mono_ns"] == truth["sent_ns"][0], "the role chunk is not a token"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_comes_first_and_under_its_name(client, field):
    reply = client.ask("/v1/chat/completions", chat(f"truth:reasoning,field={field},count=4"))
    fields = [next(iter(delta)) for delta in reply.deltas[1:]]
    assert fields == [field] * 4 + ["content"] * 8
    assert reply.usages[0]["completion_tokens_details"] == {"reasoning_tokens": 4}
    whole = client.ask("/v1/chat/completions", chat(f"truth:reasoning,field={field},count=4", stream=False)).json
    assert whole["choices"][0]["message"][field] == words(0, 1, 2, 3)


def test_responses_have_reasoning_events(client):
    reply = client.ask("/v1/responses", responses("truth:reasoning,count=4"))
    kinds = Counter(name for name, _ in reply.events)
    assert kinds["response.reasoning_text.delta"] == 4
    assert kinds["response.output_text.delta"] == 8


def test_empty_token_is_a_chunk_and_a_token(client):
    reply = client.ask("/v1/completions", completion("truth:empty,at=3"))
    assert [text for text in reply.texts if not text] == [""]
    assert reply.texts[3] == ""
    assert reply.usages[0]["completion_tokens"] == len(reply.texts) == 12


@pytest.mark.parametrize(("size", "chunks"), [(1, 12), (2, 6), (5, 3)])
def test_several_tokens_in_a_chunk(client, server, size, chunks):
    reply = client.ask("/v1/completions", completion(f"truth:chunks,size={size},tpot=2"))
    assert len(reply.texts) == chunks
    assert "".join(reply.texts) == words(*range(12))
    truth = last_record(server)
    assert sum(truth["chunk_tokens"]) == 12
    first, last, m = truth["due_ns"][0], truth["due_ns"][-1], truth["chunk_tokens"][0]
    assert last - first == (12 - m) * 2_000_000, "TPOT is the one asked for, whatever the chunks"


def test_hidden_tokens_take_time_and_are_in_usage_only(client, server):
    reply = client.ask("/v1/completions", completion("truth:hidden,count=5,tpot=2"))
    assert reply.texts == [words(0), *(words(k) for k in range(6, 12))]
    assert reply.usages[0]["completion_tokens"] == 12
    truth = last_record(server)
    assert truth["completion_tokens"] == 12
    assert truth["due_ns"][-1] - truth["due_ns"][0] == 11 * 2_000_000


def test_speculative_decoding_and_its_counters(client, server):
    assert "spec_decode" not in server.metrics()
    reply = client.ask("/v1/completions", completion("truth:spec,drafted=4,accepted=2", n=10))
    assert [text.count("t") for text in reply.texts] == [1, 3, 3, 3]
    counts = {}
    for line in server.metrics().splitlines():
        if line.startswith("vllm:spec_decode"):
            name, _, value = line.removeprefix("vllm:spec_decode_num_").rpartition(" ")
            position = name.partition('position="')[2].rstrip('"}')
            counts[name.partition("{")[0] + position] = int(value)
    assert counts == {
        "drafts_total": 3,
        "draft_tokens_total": 12,
        "accepted_tokens_total": 6,
        "accepted_tokens_per_pos_total0": 3,
        "accepted_tokens_per_pos_total1": 3,
        "accepted_tokens_per_pos_total2": 0,
        "accepted_tokens_per_pos_total3": 0,
    }


def spec_counts(server: TruthServer) -> dict[str, int]:
    counts = {}
    for line in server.metrics().splitlines():
        if line.startswith("vllm:spec_decode"):
            name, _, value = line.removeprefix("vllm:spec_decode_num_").rpartition(" ")
            position = name.partition('position="')[2].rstrip('"}')
            counts[name.partition("{")[0].removesuffix("_total") + position] = int(value)
    return counts


@pytest.fixture
def fresh() -> Iterator[TruthServer]:
    """A server whose counters nobody has moved."""
    with TruthServer(ttft_ms=5) as running:
        yield running


def test_steps_of_speculation_take_as_long_as_they_take_whatever_they_keep(fresh, connect):
    assert spec_counts(fresh) == {}
    model = "truth:speculate,drafted=3,kept=3-0-x-2,step_ms=6,draft_ms=1"
    reply = connect(fresh).ask("/v1/completions", completion(model, n=10, return_token_ids=True))
    carried = [choice["token_ids"] for data in reply.data[:-1] for choice in data["choices"]]
    assert [len(ids) for ids in carried] == [1, 4, 1, 1, 3]
    assert [token for ids in carried for token in ids] == list(range(10))
    assert "".join(reply.texts) == words(*range(10))
    truth = last_record(fresh)
    assert truth["chunk_tokens"] == [1, 4, 1, 1, 3]
    gaps = [(after - before) / 1e6 for before, after in pairwise(truth["due_ns"])]
    assert gaps == [9, 9, 6, 9], "a step without a draft takes no time for drafted tokens"
    assert spec_counts(fresh) == {
        "drafts": 3, "draft_tokens": 9, "accepted_tokens": 5,
        "accepted_tokens_per_pos0": 2, "accepted_tokens_per_pos1": 2, "accepted_tokens_per_pos2": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("n", "beyond"), [(6, 2), (7, 1), (8, 0)])
def test_what_is_kept_beyond_the_end_is_counted_as_vllm_does(fresh, connect, n, beyond):
    reply = connect(fresh).ask("/v1/completions", completion("truth:speculate,drafted=4,kept=3-2,step_ms=1", n=n))
    assert reply.usages[0]["completion_tokens"] == n
    assert spec_counts(fresh)["accepted_tokens"] + len(reply.texts) == n + beyond


def test_speculation_that_changes_the_answer_or_counts_too_much(fresh, connect):
    model = "truth:speculate,drafted=2,kept=1,step_ms=1,differs_at=3,over=2"
    reply = connect(fresh).ask("/v1/completions", completion(model, n=5))
    assert "".join(reply.texts) == words(0, 1, 2, 1003, 1004)
    assert spec_counts(fresh)["accepted_tokens"] == 2 + 2
    refused = connect(fresh).ask("/v1/completions", completion("truth:speculate,kept=2-y"))
    assert refused.status == 404
    assert "kept=2-y" in refused.json["error"]["message"]


def test_an_answer_in_one_piece_says_its_tokens_too(fresh, connect):
    asked = completion("truth", n=3, return_token_ids=True) | {"stream": False}
    reply = connect(fresh).ask("/v1/completions", asked)
    assert reply.json["choices"][0]["token_ids"] == [0, 1, 2]


def test_tool_call_deltas(client):
    reply = client.ask("/v1/chat/completions", chat("truth:tool_calls", n=3))
    calls = [delta["tool_calls"][0] for delta in reply.deltas[1:]]
    assert calls[0]["function"]["name"] == "answer"
    assert "".join(call["function"]["arguments"] for call in calls) == '{"q":"' + words(0, 1, 2) + '"}'
    assert reply.data[4]["choices"][0]["finish_reason"] == "tool_calls"


def test_refusal_deltas(client):
    reply = client.ask("/v1/chat/completions", chat("truth:refusal", n=3))
    assert reply.deltas[1:] == [{"refusal": words(k)} for k in range(3)]


def test_one_token_and_none(client, server):
    one = client.ask("/v1/completions", completion("truth:one_token"))
    assert one.texts == [words(0)]
    assert one.usages[0]["completion_tokens"] == 1
    none = client.ask("/v1/completions", completion("truth:no_tokens"))
    assert none.texts == [""]
    assert none.data[0]["choices"][0]["finish_reason"] == "stop"
    assert none.usages[0]["completion_tokens"] == 0
    assert none.end == "complete"
    assert last_record(server)["sent_ns"] == []
    assert client.ask("/v1/chat/completions", chat("truth:no_tokens")).data[-1] == "[DONE]"


def test_short_ends_below_what_was_asked(client):
    reply = client.ask("/v1/completions", completion("truth:short,by=5"))
    assert len(reply.texts) == 7
    assert reply.data[6]["choices"][0]["finish_reason"] == "length"
    assert reply.usages[0]["completion_tokens"] == 7


# -- events and usage ---------------------------------------------------------------------------------------------


def test_usage_in_the_wrong_place(client):
    absent = client.ask("/v1/completions", completion("truth:usage,form=absent"))
    assert (absent.usages, absent.data[-1]) == ([], "[DONE]")
    early = client.ask("/v1/completions", completion("truth:usage,form=early"))
    assert [position for position, data in enumerate(early.data[:-1]) if data.get("usage")] == [1]
    assert early.usages[0]["completion_tokens"] == 12
    odd = client.ask("/v1/completions", completion("truth:usage,form=choices"))
    assert odd.data[-2]["usage"]["completion_tokens"] == 12
    assert odd.data[-2]["choices"][0]["text"] == ""
    always = client.ask("/v1/completions", completion("truth:usage,form=continuous", stream_options=None))
    assert [usage["completion_tokens"] for usage in always.usages] == [*range(1, 13), 12]


def test_counters_that_disagree_with_usage(client, server):
    def counted() -> float:
        lines = server.metrics().splitlines()
        return float(next(line for line in lines if line.startswith("vllm:generation_tokens_total")).split()[-1])

    before = counted()
    assert client.ask("/v1/completions", completion("truth:miscount,by=5")).usages[0]["completion_tokens"] == 12
    assert counted() - before == 17


def test_no_finish_reason(client):
    reply = client.ask("/v1/completions", completion("truth:no_finish"))
    assert {data["choices"][0]["finish_reason"] for data in reply.data[:12]} == {None}
    assert reply.data[-1] == "[DONE]"


def test_no_done(client, server, connect):
    clean = client.ask("/v1/completions", completion("truth:no_done"))
    assert clean.end == "complete"
    assert b"[DONE]" not in clean.body
    assert len(clean.texts) == 12
    assert client.ask("/health").status == 200, "the connection is kept"
    closed = connect(server).ask("/v1/completions", completion("truth:no_done,end=close"))
    assert closed.end == "fin"
    assert b"[DONE]" not in closed.body
    assert len(closed.texts) == 12
    responding = client.ask("/v1/responses", responses("truth:no_done"))
    assert responding.events[-1][0] == "response.output_item.done"


def test_error_object_then_done(client, server):
    reply = client.ask("/v1/completions", completion("truth:error,at=4"))
    assert len(reply.texts) == 4
    assert reply.events[4][0] == ""
    assert reply.data[4]["error"]["code"] == 500
    assert reply.data[5:] == ["[DONE]"]
    assert reply.end == "complete"
    truth = last_record(server)
    assert (truth["outcome"], truth["completion_tokens"], truth["finish_reason"]) == ("error_event", 4, None)
    first = client.ask("/v1/completions", completion("truth:error,at=0"))
    assert [next(iter(data)) for data in first.data[:-1]] == ["error"]
    whole = client.ask("/v1/completions", completion("truth:error", stream=False))
    assert whole.status == 500
    assert "error" in whole.json


def test_error_event(client):
    reply = client.ask("/v1/completions", completion("truth:error_event,at=4"))
    assert len(reply.texts) == 4
    assert reply.events[-1][0] == "error"
    assert b"[DONE]" not in reply.body
    assert reply.end == "complete"
    assert client.ask("/v1/responses", responses("truth:error_event,at=4")).events[-1][0] == "error"


# -- bytes --------------------------------------------------------------------------------------------------------


def test_many_events_in_one_segment(client, server):
    reply = client.ask("/v1/completions", completion("truth:coalesce,count=20", n=40))
    assert len(reply.texts) == 40
    assert all(segment.count(b'"text"') % 20 == 0 for segment in reply.segments)
    assert Counter(last_record(server)["sent_ns"]).most_common(2)[1][1] == 20


@pytest.mark.parametrize("framing", ["tcp", "http"])
@pytest.mark.parametrize(("newline", "blank_line"), [("lf", b"\n\n"), ("crlf", b"\r\n\r\n")])
def test_event_over_three_segments(client, framing, newline, blank_line):
    model = f"truth:split,ttft=20,gap_ms=20,framing={framing},newline={newline}"
    for _ in range(10):
        reply = client.ask("/v1/completions", completion(model, n=2))
        assert reply.texts == ["€ t00000", "€ t00001"]
        assert reply.body.count(blank_line) == 4
        carrying = [segment for segment in reply.segments if b"HTTP/1.1" not in segment]
        # A reader that was not scheduled for so long finds two segments at once; then it must look again.
        if len(carrying) == 7:
            break
    else:
        pytest.fail("the segments were never apart")
    for position in (0, 3):
        first, second, third = carrying[position : position + 3]
        assert first.endswith(b'"text":"\xe2' + (b"\r\n" if framing == "http" else b""))
        assert b"\x82\xac t0" in second
        assert second.removesuffix(b"\r\n" if framing == "http" else b"").endswith(blank_line[:-1])
        assert third.startswith(b"1\r\n\n" if framing == "http" else b"\n")
    with pytest.raises(UnicodeDecodeError):
        carrying[0].decode()


def test_no_blank_after_the_colon(client):
    reply = client.ask("/v1/completions", completion("truth:no_blank"))
    assert reply.body.count(b"data:{") == 13
    assert reply.body.endswith(b"data:[DONE]\n\n")


def test_crlf_line_ends(client):
    reply = client.ask("/v1/completions", completion("truth:crlf"))
    assert reply.body.count(b"\r\n\r\n") == 14
    assert reply.body.replace(b"\r\n", b"").count(b"\n") == 0


def test_comments_between_events(client):
    reply = client.ask("/v1/completions", completion("truth:comments,every=3"))
    assert reply.body.startswith(b": keep-alive\n\n")
    assert reply.body.count(b": keep-alive\n\n") == 4
    assert len(reply.texts) == 12


def test_json_over_several_data_lines(client):
    reply = client.ask("/v1/completions", completion("truth:multiline"))
    assert reply.body.split(b"\n\n")[0].count(b"\ndata: ") == 2
    assert "".join(reply.texts) == words(*range(12))


def test_u2028_is_raw_in_the_json(client):
    reply = client.ask("/v1/completions", completion("truth:u2028"))
    assert reply.body.count("\u2028".encode()) == 12
    assert reply.texts[0] == "\u2028 t00000"


# -- transport ----------------------------------------------------------------------------------------------------


def test_content_length_instead_of_chunks(client):
    reply = client.ask("/v1/completions", completion("truth:content_length"))
    assert "transfer-encoding" not in reply.headers
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert client.ask("/health").status == 200


def test_body_that_ends_with_the_connection(client):
    reply = client.ask("/v1/completions", completion("truth:until_close"))
    assert reply.headers["connection"] == "close"
    assert not {"transfer-encoding", "content-length"} & reply.headers.keys()
    assert reply.end == "fin"
    assert reply.body.endswith(b"data: [DONE]\n\n")


def test_continue_that_nobody_asked_for(client):
    reply = client.ask("/v1/completions", completion("truth:continues,count=2"))
    assert (reply.interim, reply.status, len(reply.texts)) == ([100, 100], 200, 12)


def test_no_keep_alive(client):
    reply = client.ask("/v1/completions", completion("truth:no_keep_alive"))
    assert reply.headers["connection"] == "close"
    assert reply.end == "complete"
    assert client.gone() == "fin"


def test_close_race(server, connect):
    at_once = connect(server)
    reply = at_once.ask("/v1/completions", completion("truth:close_race,when=close"))
    assert reply.end == "complete"
    assert "connection" not in reply.headers
    assert at_once.gone() == "fin"

    idle = connect(server)
    assert idle.ask("/v1/completions", completion("truth:close_race,when=idle,ms=30")).end == "complete"
    assert idle.gone() == "fin"
    assert time.monotonic_ns() >= last_record(server)["done_ns"] + 30_000_000

    reused = connect(server)
    assert reused.ask("/v1/completions", completion("truth:close_race,when=reuse")).end == "complete"
    requests = server.truth()["summary"]["requests"]
    reused.send("/v1/completions", completion("truth"))
    assert reused.read().end in ("fin", "reset")
    assert server.truth()["summary"]["requests"] == requests, "the second request was never taken"


def test_fin_between_events(client, server):
    reply = client.ask("/v1/completions", completion("truth:close,at=4"))
    assert reply.end == "fin"
    assert len(reply.texts) == 4
    assert reply.body.endswith(b"\n\n")
    truth = last_record(server)
    assert (truth["outcome"], truth["completion_tokens"]) == ("closed", 4)


def test_fin_inside_an_event(client, server):
    reply = client.ask("/v1/completions", completion("truth:cut,at=4"))
    assert reply.end == "fin"
    whole, _, broken = reply.body.rpartition(b"\n\n")
    assert whole.count(b"data: ") == 4
    assert broken.startswith(b'data: {"id"')
    assert last_record(server)["outcome"] == "cut"


def test_whole_answer_cut_short(client):
    reply = client.ask("/v1/completions", completion("truth:cut", stream=False))
    assert reply.end == "fin"
    assert 0 < len(reply.body) < int(reply.headers["content-length"])


def test_reset(client, server):
    client.send("/v1/completions", completion("truth:reset,at=4"))
    reply = client.read()
    assert reply.end == "reset"
    assert len(reply.texts) == 4
    assert last_record(server)["outcome"] == "reset"


# -- time ---------------------------------------------------------------------------------------------------------


def test_stall_is_a_gap_where_it_was_asked_for(client, server):
    client.ask("/v1/completions", completion("truth:stall,at=5,ms=80"))
    truth = last_record(server)
    due = truth["due_ns"]
    assert [after - before for before, after in pairwise(due)] == [
        81_000_000 if k == 4 else 1_000_000 for k in range(11)
    ]
    assert truth["sent_ns"][5] >= due[5]


def test_hang_keeps_the_connection(client):
    client.send("/v1/completions", completion("truth:hang,at=4"))
    reply = client.read(until=lambda reply: len(reply.texts) == 4)
    assert len(reply.texts) == 4
    assert client.read(within_s=0.2).end == "open"


def test_never_a_first_token(server, connect):
    with_headers = connect(server)
    with_headers.send("/v1/completions", completion("truth:silent"))
    reply = with_headers.read(within_s=0.2)
    assert (reply.status, reply.body, reply.end) == (200, b"", "open")
    without = connect(server)
    without.send("/v1/completions", completion("truth:silent,headers=no"))
    reply = without.read(within_s=0.2)
    assert (reply.segments, reply.end) == ([], "open")


def test_trickle(client, server):
    client.ask("/v1/completions", completion("truth:trickle,ms=20", n=3))
    due = last_record(server)["due_ns"]
    assert [after - before for before, after in pairwise(due)] == [20_000_000] * 2


def test_fake_first_token(client, server):
    client.ask("/v1/completions", completion("truth:fake_first,ms=1,ttft=50"))
    truth = last_record(server)
    assert [due - truth["anchor_ns"] for due in truth["due_ns"][:3]] == [1_000_000, 51_000_000, 52_000_000]


def test_drift_grows_from_the_first_request_on(client, server):
    model = "truth:drift,percent_per_s=1000"
    steps = []
    for _ in range(3):
        client.ask("/v1/completions", completion(model, n=3))
        due = last_record(server)["due_ns"]
        steps.append(due[2] - due[1])
    assert steps[0] == 1_000_000
    assert steps == sorted(set(steps))


def test_prompt_seen_before_is_answered_early(client, server):
    def ttft_ns(prompt: list[int]) -> int:
        client.ask("/v1/completions", completion("truth:prefix_cheat,ttft=40") | {"prompt": prompt})
        truth = last_record(server)
        return truth["due_ns"][0] - truth["anchor_ns"]

    prompt = list(range(5000, 5064))
    assert ttft_ns(prompt) == 40_000_000
    assert ttft_ns(prompt) == 2_000_000
    assert last_record(server)["cached_tokens"] == 64
    assert ttft_ns(list(range(6000, 6064))) == 40_000_000


def test_answers_become_other_ones_from_some_request_on(client):
    def answer():
        reply = client.ask("/v1/completions", completion("truth:other_answers,after=2", n=3))
        events = [event for event in reply.data if isinstance(event, dict)]
        return "".join(choice["text"] for event in events for choice in event["choices"])

    first, second, third, fourth = (answer() for _ in range(4))
    assert first == second
    assert third == fourth != first


def test_a_first_chunk_may_say_what_it_is_told_to(client):
    reply = client.ask("/v1/completions", completion("truth:fake_first,ms=1,ttft=20,text=Hm", n=3))
    assert reply.data[0]["choices"][0]["text"] == "Hm"


def test_staircase_of_buckets_each_cold_once(client, server):
    def ttft_ms(tokens: int) -> float:
        model = "truth:staircase,first=16,cold_ms=7,ttft=3"
        client.ask("/v1/completions", completion(model, n=1) | {"prompt": [1] * tokens})
        truth = last_record(server)
        return (truth["due_ns"][0] - truth["anchor_ns"]) / 1e6

    assert [ttft_ms(tokens) for tokens in (16, 16, 17, 32, 33)] == [3 + 7, 3, 6 + 7, 6, 12 + 7]


def test_one_request_compiles(client, server):
    model = "truth:compile,after_ms=1,ms=30,ttft=3"
    waits = []
    for _ in range(4):
        client.ask("/v1/completions", completion(model, n=1))
        truth = last_record(server)
        waits.append((truth["due_ns"][0] - truth["anchor_ns"]) // 1_000_000)
    assert waits == [3, 33, 3, 3]


def test_freeze_stops_everything_and_the_truth_says_so(connect):
    with TruthServer(ttft_ms=2, tpot_ms=1) as server:
        first, second = connect(server), connect(server)
        first.send("/v1/completions", completion("truth:freeze,ms=300"), headers="x-request-id: first\r\n")
        second.send("/v1/completions", completion("truth"), headers="x-request-id: second\r\n")
        assert first.read().end == second.read().end == "complete"
        truth = server.truth()
        ((start_ns, end_ns),) = truth["frozen_ns"]
        assert end_ns - start_ns >= 290_000_000
        for record in truth["requests"]:
            assert all(not start_ns < sent < end_ns for sent in record["sent_ns"])
            assert record["sent_ns"][-1] >= end_ns
        late_ns = [
            sent - (end_ns if start_ns <= due < end_ns else due)
            for record in truth["requests"]
            for due, sent in zip(record["due_ns"], record["sent_ns"], strict=True)
        ]
        assert truth["summary"]["lateness_us"]["max"] == max(late_ns) / 1000, "a freeze asked for is not lateness"


# -- refusals and ends --------------------------------------------------------------------------------------------


def test_rate_limited(client, server):
    reply = client.ask("/v1/completions", completion("truth:rate_limited,retry_after=7"))
    assert (reply.status, reply.headers["retry-after"]) == (429, "7")
    assert reply.json["error"]["code"] == 429
    truth = last_record(server)
    assert (truth["outcome"], truth["status"]) == ("refused", 429)


def test_unavailable_for_the_first_requests(client):
    statuses = [client.ask("/v1/completions", completion("truth:unavailable,first=2")).status for _ in range(4)]
    assert statuses == [503, 503, 200, 200]


def test_other_refusals(client):
    assert client.ask("/v1/completions", completion("truth:bad_request")).status == 400
    assert client.ask("/v1/completions", completion("truth:server_error")).status == 500
    assert client.ask("/v1/embeddings", {"model": "truth:server_error", "input": "x"}).status == 500


def test_error_in_a_200(client):
    reply = client.ask("/v1/completions", completion("truth:json_error"))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert "error" in reply.json


def test_slow_accept(client, server, connect):
    client.ask("/v1/completions", completion("truth:slow_accept,ms=250"))
    shut_ns = last_record(server)["received_ns"]
    late = connect(server)
    assert late.ask("/v1/completions", completion("truth", n=1)).end == "complete"
    assert late_parsed(client) >= shut_ns + 250_000_000


def late_parsed(client: Any) -> int:
    return client.ask("/truth").json["requests"][-1]["parsed_ns"]


def test_die_after_some_answers(connect):
    with TruthServer(ttft_ms=1, tpot_ms=0.1) as server:
        model = "truth:die,after=2,at=3,code=7"
        client = connect(server)
        assert [client.ask("/v1/completions", completion(model)).end for _ in range(2)] == ["complete"] * 2
        fatal = client.ask("/v1/completions", completion(model))
        assert fatal.end in ("fin", "reset")
        assert len(fatal.texts) == 3
        assert server.stop() == 7
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5)
