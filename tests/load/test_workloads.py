"""Workloads: lengths, shared prefixes, sessions, files and traces become the bodies that were asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench.load import arrivals as at
from neuronbench.load import workload as wl
from neuronbench.load.datasets import read_trace
from neuronbench.load.plan import Plan, make_plan
from neuronbench.load.planfile import PlanView
from neuronbench.protocols import Vocabulary
from neuronbench.testing.truth_server import TruthServer

VOCABULARY = Vocabulary(size=5000, special_ids=(0, 1), max_model_len=8192)


def plan(folder: Path, workload: Any, arrivals: Any = None, **options: Any) -> Plan:
    return make_plan(
        folder,
        arrivals=arrivals or at.closed_loop(2, requests=40),
        workload=workload,
        **{"api": "completions", "model": "truth", "vocabulary": VOCABULARY} | options,
    )


def load_bodies(made: Plan) -> list[dict[str, Any]]:
    view = PlanView(made.folder)
    return [json.loads(bytes(view.body(view.warmup + k))) for k in range(view.count)]


@pytest.mark.parametrize(
    "lengths",
    [wl.uniform(5, 60), wl.lognormal(20, 0.7, low=4, high=200), wl.empirical([7, 9, 30])],
)
def test_lengths_follow_their_distribution_and_the_index_says_them(tmp_path: Path, lengths: wl.Lengths) -> None:
    made = plan(tmp_path, wl.synthetic(input_tokens=lengths, output_tokens=lengths))
    bodies = load_bodies(made)
    inputs = [len(body["prompt"]) for body in bodies]
    assert inputs == made.column("input_tokens")[made.warmup_count :].tolist()
    assert [body["max_tokens"] for body in bodies] == made.column("output_tokens")[made.warmup_count :].tolist()
    assert len(set(inputs)) > 1
    assert all(lengths.low <= length <= lengths.high for length in inputs)
    if lengths.values:
        assert set(inputs) <= set(lengths.values)


def test_shared_prefixes_are_shared_and_what_follows_is_not(tmp_path: Path) -> None:
    made = plan(tmp_path, wl.synthetic(input_tokens=64, output_tokens=4, prefix_hit_ratio=0.5, prefixes=2))
    prompts = [tuple(body["prompt"]) for body in load_bodies(made)]
    assert len({prompt[:32] for prompt in prompts}) == 2
    assert len({prompt[32:35] for prompt in prompts}) == len(prompts)
    n = len(prompts)
    assert made.info["prefix"]["expected_hit_ratio"] == pytest.approx((n - 2) * 32 / (n * 64))


def test_the_expected_hit_ratio_is_what_a_prefix_cache_reaches(tmp_path: Path) -> None:
    from neuronbench.load.run import drive
    from neuronbench.processes import spawn

    workload = wl.synthetic(input_tokens=64, output_tokens=2, prefix_hit_ratio=0.5, prefixes=2)
    with TruthServer(ttft_ms=1, tpot_ms=1, prefix_cache=True) as server:
        made = plan(tmp_path / "plan", workload, at.closed_loop(2, requests=60), warmup=wl.warm_up(0))
        result = drive(made, base_url=server.url, out=tmp_path / "out", spawn=spawn, deadline_s=30)
        records = server.truth(chunks=False)["requests"]
    assert result.status == "ok"
    reached = sum(record["cached_tokens"] for record in records) / sum(record["prompt_tokens"] for record in records)
    assert reached == pytest.approx(made.info["prefix"]["expected_hit_ratio"], abs=0.03)


def test_turns_of_a_session_begin_with_the_session_so_far(tmp_path: Path) -> None:
    arrivals = at.sessions(10, turns=3, think_s=0.1, duration_s=2, tail_s=1)
    made = plan(tmp_path, wl.synthetic(input_tokens=10, output_tokens=4), arrivals)
    prompts = [body["prompt"] for body in load_bodies(made)]
    session = made.column("session")[made.warmup_count :].tolist()
    due = made.column("due_ns")[made.warmup_count :]
    for k in range(0, len(prompts), 3):
        assert [len(prompt) for prompt in prompts[k : k + 3]] == [10, 24, 38]
        assert prompts[k + 1][:10] == prompts[k]
        assert prompts[k + 2][:24] == prompts[k + 1]
        assert len(set(session[k : k + 3])) == 1
        assert due[k] >= 0
        assert (due[k + 1 : k + 3] == -1).all()
    think = made.column("think_ns")[made.warmup_count :]
    assert think.mean() / 1e9 == pytest.approx(0.1, rel=0.5)


def test_sharegpt_and_jsonl(tmp_path: Path) -> None:
    share = tmp_path / "share.json"
    turns = [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "hello"},
        {"from": "gpt", "value": "hi"},
    ]
    share.write_text(json.dumps([{"id": "1", "conversations": turns}, {"id": "2", "conversations": []}]))
    made = plan(tmp_path / "a", wl.dataset(share, format="sharegpt", output_tokens=5), api="chat")
    body = load_bodies(made)[0]
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert (body["max_tokens"], body["ignore_eos"]) == (5, True)
    assert made.info["exact_input"] is False
    assert made.info["distinct"] is False  # one prompt, asked again and again
    assert made.info["warmup"]["disjoint"] is False

    lines = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"p{k}", "output_tokens": 3 + k} for k in range(80)]
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    made = plan(tmp_path / "b", wl.dataset(lines, format="jsonl"))
    bodies = load_bodies(made)
    assert {int(body["prompt"][1:]) + 3 == body["max_tokens"] for body in bodies} == {True}
    assert len({body["prompt"] for body in bodies}) == len(bodies)
    assert made.info["distinct"] is True
    assert made.info["warmup"]["disjoint"] is True


def test_natural_answers_have_no_exact_length(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "q"}]}) + "\n")
    made = plan(tmp_path / "p", wl.dataset(path, format="jsonl"), api="chat")
    body = load_bodies(made)[0]
    assert "ignore_eos" not in body
    assert body["max_tokens"] == 256
    assert made.info["exact_output"] is False


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("jsonl", '{"prompt": "a"}\n{"promt": "b"}\n', r"rows:2: expected prompt, messages, input_ids or input"),
        ("jsonl", "not json\n", r"rows:1: expected a JSON object per line"),
        ("jsonl", "[1]\n", r"rows:1: expected a JSON object, found"),
        ("jsonl", '{"prompt": "a", "output_tokens": 0}\n', r"rows:1: output_tokens"),
        ("jsonl", "\n", "expected at least one prompt"),
        ("jsonl", '{"messages": ["a"]}', "messages: expected objects with role and content, found .*a"),
        ("jsonl", '{"messages": []}', "messages: expected objects"),
        ("jsonl", '{"input_ids": ["a", 2]}', "input_ids: expected token ids, whole numbers from 0, found"),
        ("jsonl", '{"input_ids": [true]}', "input_ids: expected token ids"),
        ("jsonl", '{"input_ids": []}', "input_ids: expected token ids"),
        (
            "jsonl",
            '{"prompt": "a", "output_tokens": true}',
            "output_tokens: expected a whole number from 1, found True",
        ),
        ("sharegpt", '[{"conversations": 5}]', "conversation 1: expected a list of turns, .* found 5"),
        ("sharegpt", '[{}, {"conversations": ["a"]}]', "conversation 2: expected a list of turns"),
        ("sharegpt", "{}", "expected a JSON list"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, format: Any, text: str, message: str) -> None:
    path = tmp_path / "rows"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        plan(tmp_path / "p", wl.dataset(path, format=format))


def mooncake(path: Path) -> Path:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [1, 2, 3]},
        {"timestamp": 250, "input_length": 1050, "output_length": 4, "hash_ids": [1, 2, 9]},
        {"timestamp": 1000, "input_length": 10, "output_length": 5, "hash_ids": [7]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_mooncake_trace_keeps_instants_lengths_and_shared_blocks(tmp_path: Path) -> None:
    trace = at.trace(mooncake(tmp_path / "t.jsonl"), format="mooncake", speed=2)
    made = plan(tmp_path / "p", trace, trace)
    bodies = load_bodies(made)
    assert [len(body["prompt"]) for body in bodies] == [1100, 1050, 10]
    assert [body["max_tokens"] for body in bodies] == [3, 4, 5]
    assert bodies[0]["prompt"][:1024] == bodies[1]["prompt"][:1024]
    assert bodies[0]["prompt"][1024] != bodies[1]["prompt"][1024]
    due = made.column("due_ns")[made.warmup_count :] / 1e9
    assert due.tolist() == [0, 0.125, 0.5]
    other = plan(tmp_path / "q", trace, trace)
    assert other.digest == made.digest


def test_an_azure_trace(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:16:46.68059,10,7\n"
    )
    rows = read_trace(at.trace(path, format="azure"))
    assert [row.input_tokens for row in rows] == [374, 396, 10]
    assert np.allclose([row.at_s for row in rows], [0, 4.314579, 60.0], atol=1e-6)
    part = read_trace(at.trace(path, format="azure", start_s=2, duration_s=10))
    assert [row.output_tokens for row in part] == [109]


def test_a_timed_jsonl_trace_is_sorted_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"at_s": 2, "input_tokens": 5, "output_tokens": 1}\n{"at_s": 1, "input_tokens": 4, "output_tokens": 1}\n'
    )
    assert [row.input_tokens for row in read_trace(at.trace(path, format="jsonl"))] == [4, 5]
    path.write_text('{"at_s": -1, "input_tokens": 5, "output_tokens": 1}\n')
    with pytest.raises(ValueError, match=r"t.jsonl:1: at_s: expected a number from 0"):
        read_trace(at.trace(path, format="jsonl"))
    with pytest.raises(ValueError, match="expected the columns"):
        read_trace(at.trace(path, format="azure"))


def test_a_trace_is_arrivals_and_workload_at_once(tmp_path: Path) -> None:
    trace = at.trace(mooncake(tmp_path / "t.jsonl"), format="mooncake")
    with pytest.raises(ValueError, match="pass it as arrivals and as workload"):
        plan(tmp_path / "p", wl.synthetic(input_tokens=1, output_tokens=1), trace)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wl.synthetic(input_tokens=0, output_tokens=1), "input_tokens"),
        (lambda: wl.synthetic(input_tokens=8, output_tokens=1, prefix_tokens=8), "prefix_tokens"),
        (lambda: wl.synthetic(input_tokens=8, output_tokens=1, prefix_hit_ratio=1.0), "prefix_hit_ratio"),
        (lambda: wl.synthetic(input_tokens=wl.uniform(1, 2), output_tokens=1, prefix_hit_ratio=0.5), "fixed input"),
        (lambda: wl.uniform(0, 5), "1 ≤ low"),
        (lambda: wl.lognormal(500, 1, high=100), "median"),
        (lambda: wl.empirical([]), "none"),
        (lambda: wl.dataset("x", format="jsonl", output_tokens=0), "output_tokens"),
        (lambda: wl.warm_up(-1), "warm-up"),
    ],
)
def test_nonsense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("api", ["embeddings", "score", "rerank"])
def test_apis_that_generate_nothing(truth: TruthServer, tmp_path: Path, api: str) -> None:
    from neuronbench.load.run import drive, reduce_run
    from neuronbench.processes import spawn

    fields = {
        "embeddings": {"input": "a few words"},
        "score": {"text_1": "a", "text_2": "b c"},
        "rerank": {"query": "q", "documents": ["one", "two"]},
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(fields[api]) + "\n")
    made = plan(tmp_path / "plan", wl.dataset(path, format="bodies"), at.closed_loop(2, requests=10), api=api)
    result = drive(made, base_url=truth.url, out=tmp_path / "out", spawn=spawn, deadline_s=20)
    reduced = reduce_run(made, tmp_path / "out", drive=result)
    assert result.status == "ok"
    assert reduced.failures == {}
    assert reduced["e2e_p50_ms"] is not None
    assert reduced["input_tokens_mean_tokens"] is not None
    assert not any(metric.id in ("ttft", "tpot", "output_throughput") for metric in reduced.metrics)


def test_embeddings_of_exact_length(truth: TruthServer, tmp_path: Path) -> None:
    from neuronbench.load.run import drive, reduce_run
    from neuronbench.processes import spawn

    made = plan(tmp_path / "plan", wl.synthetic(input_tokens=33, output_tokens=1), api="embeddings")
    result = drive(made, base_url=truth.url, out=tmp_path / "out", spawn=spawn, deadline_s=20)
    reduced = reduce_run(made, tmp_path / "out", drive=result)
    assert reduced.gate("input_length").passed is True
    assert reduced["input_tokens_mean_tokens"] == 33


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ('{"timestamp": Infinity, "input_length": 1, "output_length": 1}', "timestamp: expected a number from 0"),
        ('{"timestamp": 0, "input_length": Infinity, "output_length": 1}', "input_length: expected a number from 1"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', "hash_ids: expected a list of"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 7}', "hash_ids: expected a list of"),
    ],
)
def test_a_trace_with_what_cannot_be_is_refused_with_its_line(tmp_path: Path, row: str, told: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(row + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"trace.jsonl:1: {told}"):
        read_trace(at.Trace(path=str(path), format="mooncake"))
