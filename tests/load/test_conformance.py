"""What the client makes of every kind of answer, one test per scenario of the truth server.

All scenarios of one API share a single run of the driver; each test looks at its own request in the table.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from load_helpers import LONG, Run, plan_of_models

from neuronbench.load.run import Timeouts, drive, reduce_run
from neuronbench.processes import spawn
from neuronbench.testing.truth_server import TruthServer

TOKENS = 16

# model → class of failure (empty: a success), and what else its row says
GOOD: dict[str, dict[str, Any]] = {
    "truth": {},
    "truth:role_early,ms=1,ttft=20": {},
    "truth:chunks,size=2": {"chunks": 8},
    "truth:chunks,size=5": {"chunks": 4},
    "truth:hidden": {"chunks": TOKENS - 5},
    "truth:spec": {},
    "truth:empty": {"chunks": TOKENS - 1, "empty_chunks": 1},
    "truth:usage,form=absent": {"output_tokens": None, "input_tokens": None, "tpot_ms": None},
    "truth:usage,form=early": {},
    "truth:usage,form=choices": {},
    "truth:usage,form=continuous": {"chunk_tokens": [1] * TOKENS},
    "truth:coalesce": {},
    "truth:split": {},
    "truth:split,framing=http": {},
    "truth:split,newline=crlf": {},
    "truth:split,newline=crlf,framing=http": {},
    "truth:no_blank": {},
    "truth:crlf": {},
    "truth:comments": {},
    "truth:multiline": {},
    "truth:u2028": {},
    "truth:content_length": {},
    "truth:until_close": {},
    "truth:continues": {},
    "truth:continues,count=3": {},
    "truth:no_keep_alive": {},
    "truth:close_race,when=close": {},
    "truth:stall,at=10,ms=300": {},
    "truth:trickle,ms=20": {},
    "truth:fake_first": {},
    "truth:compile,after_ms=0,ms=200": {},
}
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "truth:no_tokens": ("zero_tokens", {"chunks": 0, "ttft_ms": None}),
    "truth:one_token": ("wrong_length", {"output_tokens": 1}),
    "truth:short": ("wrong_length", {"output_tokens": TOKENS - 5}),
    "truth:short,finish=stop": ("wrong_length", {"finish_reason": "stop"}),
    "truth:no_finish": ("no_finish", {}),
    "truth:no_done": ("no_done", {}),
    "truth:no_done,end=close": ("disconnected", {}),
    "truth:error": ("stream_error", {"chunks": 8}),
    "truth:error_event": ("error_event", {"chunks": 8}),
    "truth:close": ("disconnected", {"chunks": 8}),
    "truth:cut": ("disconnected", {}),
    "truth:reset": ("disconnected", {}),
    "truth:rate_limited": ("http_429", {"http_status": 429}),
    "truth:unavailable": ("http_503", {"http_status": 503}),
    "truth:bad_request": ("http_400", {"http_status": 400}),
    "truth:server_error": ("http_500", {"http_status": 500}),
    "truth:json_error": ("json_error", {"http_status": 200}),
    "nobody": ("http_404", {"http_status": 404}),
}
LATE: dict[str, tuple[str, dict[str, Any]]] = {
    "truth:hang": ("inter_token_timeout", {"chunks": 8}),
    "truth:silent": ("first_token_timeout", {"chunks": 0}),
    "truth:silent,headers=no": ("first_token_timeout", {"http_status": None}),
}
"""What takes a time-out to be found; the others must have time for whatever a busy host does with them."""
PATIENCE = Timeouts(connect_s=30, first_token_s=3, inter_token_s=3, total_s=60, drain_s=2)
CHAT_GOOD: dict[str, dict[str, Any]] = {
    "truth": {},
    "truth:role_early,ms=1,ttft=20": {},
    "truth:reasoning": {},
    "truth:reasoning,field=reasoning_content": {},
    "truth:tool_calls": {},
    "truth:refusal": {},
    "truth:hidden": {"chunks": TOKENS - 5},
    "truth:empty": {"empty_chunks": 1},
    "truth:split,framing=http": {},
}
RESPONSES_GOOD: dict[str, dict[str, Any]] = {
    "truth": {},
    "truth:reasoning": {},
    "truth:chunks,size=4": {"chunks": 4},
    "truth:split": {},
    "truth:comments": {},
}

Rows = dict[str, dict[str, Any]]


def table_of(truth: TruthServer, folder: Path, models: list[str], api: str, timeouts: Timeouts = LONG) -> Rows:
    plan = plan_of_models(folder / "plan", models, api=api, tokens=TOKENS, concurrency=8)
    result = drive(plan, base_url=truth.url, out=folder / "out", spawn=spawn, deadline_s=200, timeouts=timeouts)
    assert result.status == "ok", result.message
    reduced = reduce_run(plan, folder / "out", drive=result)
    rows: Rows = {}
    for row in pq.read_table(reduced.table).to_pylist():
        rows.setdefault(models[row["body"]], row)
    assert set(rows) == set(models)
    return rows


@pytest.fixture(scope="module")
def completions(truth: TruthServer, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return table_of(truth, tmp_path_factory.mktemp("completions"), [*GOOD, *BAD], "completions")


@pytest.fixture(scope="module")
def late(truth: TruthServer, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return table_of(truth, tmp_path_factory.mktemp("late"), [*LATE], "completions", PATIENCE)


@pytest.fixture(scope="module")
def chat(truth: TruthServer, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return table_of(truth, tmp_path_factory.mktemp("chat"), [*CHAT_GOOD, "truth:error", "truth:no_done"], "chat")


@pytest.fixture(scope="module")
def responses(truth: TruthServer, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return table_of(
        truth, tmp_path_factory.mktemp("responses"), [*RESPONSES_GOOD, "truth:no_done", "truth:error"], "responses"
    )


def check_good(row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert row["failure"] is None
    assert row["ok"]
    expected = {"output_tokens": TOKENS} | expected
    assert {name: row[name] for name in expected} == expected
    assert row["scheduled_ns"] <= row["sent_ns"] <= row["first_output_ns"] <= row["last_output_ns"] <= row["end_ns"]
    assert len(row["icl_ms"]) == row["chunks"] - 1
    assert row["http_status"] == 200


@pytest.mark.parametrize("model", GOOD)
def test_a_correct_answer(completions: Rows, model: str) -> None:
    check_good(completions[model], GOOD[model])


@pytest.mark.parametrize("model", [*BAD, *LATE])
def test_a_failure_is_classed(request: pytest.FixtureRequest, model: str) -> None:
    failure, expected = {**BAD, **LATE}[model]
    rows: Rows = request.getfixturevalue("completions" if model in BAD else "late")
    row = rows[model]
    assert row["failure"] == failure
    assert not row["ok"]
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("model", CHAT_GOOD)
def test_a_correct_chat_answer(chat: Rows, model: str) -> None:
    check_good(chat[model], CHAT_GOOD[model])


@pytest.mark.parametrize("model", RESPONSES_GOOD)
def test_a_correct_answer_of_responses(responses: Rows, model: str) -> None:
    check_good(responses[model], RESPONSES_GOOD[model])


def test_failures_of_the_other_apis(chat: Rows, responses: Rows) -> None:
    assert [chat[m]["failure"] for m in ("truth:error", "truth:no_done")] == ["stream_error", "no_done"]
    assert [responses[m]["failure"] for m in ("truth:no_done", "truth:error")] == ["no_done", "error_event"]


@pytest.mark.parametrize("field", ["truth:reasoning", "truth:reasoning,field=reasoning_content"])
def test_the_first_token_is_reasoning_and_the_first_answer_comes_later(chat: Rows, field: str) -> None:
    row = chat[field]
    # half of the tokens are reasoning; a server that was late may have sent them all at once
    assert row["ttfat_ms"] - row["ttft_ms"] == pytest.approx(sum(row["icl_ms"][: TOKENS // 2]), abs=1e-3)
    assert row["first_answer_ns"] >= row["first_output_ns"]
    assert row["reasoning_tokens"] in (None, TOKENS // 2)
    assert row["chunks"] == TOKENS


def test_an_early_role_chunk_is_not_the_first_token(chat: Rows) -> None:
    row = chat["truth:role_early,ms=1,ttft=20"]
    assert row["first_event_ns"] < row["first_output_ns"]


def test_trap_hidden_tokens_usage_counts_more_than_can_be_seen(completions: Rows) -> None:
    """A client that counts chunks reports TPOT too high and throughput too low by the hidden share."""
    row = completions["truth:hidden"]
    span = row["last_output_ms"] - row["first_output_ms"]
    assert row["chunks"] == TOKENS - 5
    assert row["output_tokens"] == TOKENS
    assert row["tpot_ms"] == pytest.approx(span / (TOKENS - 1))
    assert row["tpot_ms"] < span / (row["chunks"] - 1)


def test_a_stall_is_one_long_gap_and_a_max_stall(completions: Rows, truth: TruthServer) -> None:
    model = "truth:stall,at=10,ms=300"
    row = completions[model]
    assert row["max_stall_ms"] >= 290
    assert row["max_stall_ms"] == pytest.approx(max(row["icl_ms"]))
    assert row["icl_ms"][9] >= 290
    # Every other gap is what the server left, and not one of them was meant to be long.
    record = next(each for each in truth.truth()["requests"] if each["model"] == model)
    assert [round((b - a) / 1e6) for a, b in itertools.pairwise(record["due_ns"])] == [1] * 9 + [301] + [1] * 5
    stamps = [row["first_output_ns"], *(row["first_output_ns"] + np.cumsum(row["icl_ms"]) * 1e6)]
    assert all(sent <= at + 1_000 for sent, at in zip(record["sent_ns"], stamps, strict=True))
    assert stamps[-1] <= record["done_ns"] + 1_000


def test_without_usage_no_token_metric_is_invented(completions: Rows) -> None:
    row = completions["truth:usage,form=absent"]
    assert row["chunks"] == TOKENS
    assert (row["output_tokens"], row["input_tokens"], row["tpot_ms"]) == (None, None, None)
    assert row["ttft_ms"] is not None


def test_a_connection_closed_while_idle_is_tried_again_and_the_clock_runs_on(run: Run) -> None:
    ran = run(model="truth:close_race,when=reuse")
    assert ran.drive.status == "ok"
    assert ran.reduction.failures == {}
    again = [row for row in ran.rows if row["attempts"] == 2 and row["phase"] != "tail"]  # the tail is cut off
    assert again
    assert all(row["sent_ns"] < row["response_ns"] and row["ok"] for row in again)


def test_a_server_that_closes_when_idle_costs_no_request(run: Run) -> None:
    ran = run(model="truth:close_race,when=idle,ms=1")
    assert ran.reduction.failures == {}
    assert ran["error_rate_share"] == 0


def test_planned_cancels_are_no_failures_and_have_a_first_token(truth: TruthServer, tmp_path: Path) -> None:
    models = ["truth"] * 12
    plan = plan_of_models(tmp_path / "plan", models, tokens=64, cancel_after=[3, -1] * 6)
    result = drive(plan, base_url=truth.url, out=tmp_path / "out", spawn=spawn, deadline_s=200, timeouts=LONG)
    reduced = reduce_run(plan, tmp_path / "out", drive=result)
    rows = pq.read_table(reduced.table).to_pylist()
    cancelled = [row for row in rows if row["body"] % 2 == 0 and row["phase"] != "tail"]
    assert cancelled
    assert {row["failure"] for row in cancelled} == {"client_cancel"}
    assert all(
        row["ok"] and row["chunks"] == 3 and row["ttft_ms"] is not None and row["e2e_ms"] is None for row in cancelled
    )
    assert reduced.failures == {}


def test_nobody_listens(run: Run) -> None:
    ran = run(url="http://127.0.0.1:9", deadline_s=60.0)
    assert ran.drive.status in ("server_gone", "all_failed")
    assert {row["failure"] for row in ran.rows} <= {"connect_refused", "abandoned"}
    assert ran.reduction.gate("window_complete").passed is False
