"""Plans: exact lengths, distinct prompts, disjoint warm-up, and an identity that covers all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench.load.arrivals import closed_loop
from neuronbench.load.plan import Plan, make_plan
from neuronbench.load.planfile import PlanView
from neuronbench.load.prompts import PromptSource
from neuronbench.load.workload import synthetic, warm_up
from neuronbench.protocols import Vocabulary
from neuronbench.testing.truth_server import TruthServer

VOCABULARY = Vocabulary(size=1000, special_ids=(0, 1, 999), max_model_len=128)


def plan(folder: Path, **options: Any) -> Plan:
    options = {
        "arrivals": closed_loop(3, requests=10),
        "workload": synthetic(input_tokens=8, output_tokens=6),
        "api": "completions",
        "model": "m",
        "vocabulary": VOCABULARY,
    } | options
    return make_plan(folder, **options)


def bodies(made: Plan) -> list[dict[str, Any]]:
    view = PlanView(made.folder)
    return [json.loads(bytes(view.body(index))) for index in range(view.warmup + view.count)]


def test_every_body_says_what_was_asked(tmp_path: Path) -> None:
    made = plan(tmp_path, extra_body={"seed": 7})
    for body in bodies(made):
        assert len(body["prompt"]) == 8
        assert not {0, 1, 999} & set(body["prompt"])
        assert max(body["prompt"]) < 1000
        assert body["max_tokens"] == body["min_tokens"] == 6
        assert body["ignore_eos"] is True
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert (body["temperature"], body["model"], body["seed"]) == (0, "m", 7)
    assert made.count == 10 + 8 * 3 + 16
    assert made.warmup_count == 4
    assert set(made.column("input_tokens")) == {8}
    assert set(made.column("output_tokens")) == {6}


def test_warm_up_and_load_share_no_first_token(tmp_path: Path) -> None:
    made = plan(tmp_path, arrivals=closed_loop(3, requests=200), warmup=warm_up(50))
    prompts = [body["prompt"] for body in bodies(made)]
    warm, load = prompts[:50], prompts[50:]
    assert not {prompt[0] for prompt in warm} & {prompt[0] for prompt in load}
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)


def test_the_digest_is_the_identity_of_the_workload(tmp_path: Path) -> None:
    first = plan(tmp_path / "a")
    assert plan(tmp_path / "b").digest == first.digest
    others = {
        plan(tmp_path / "c", seed=1).digest,
        plan(tmp_path / "d", workload=synthetic(input_tokens=9, output_tokens=6)).digest,
        plan(tmp_path / "e", workload=synthetic(input_tokens=8, output_tokens=6, seed=3)).digest,
        plan(tmp_path / "f", extra_body={"top_k": 1}).digest,
        plan(tmp_path / "g", arrivals=closed_loop(3, requests=10, ramp_s=2)).digest,
        plan(tmp_path / "h", warmup=warm_up(0)).digest,
    }
    assert len(others) == 6
    assert first.digest not in others
    assert Plan.open(tmp_path / "a") == first


def test_a_plan_is_never_rewritten(tmp_path: Path) -> None:
    plan(tmp_path)
    with pytest.raises(FileExistsError, match="never rewritten"):
        plan(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api": "telnet"}, "expected one of completions, chat"),
        ({"vocabulary": None}, "vocabulary of the model is not known"),
        ({"vocabulary": Vocabulary(size=3, special_ids=(0, 1))}, "at least 2 ordinary token ids"),
        ({"workload": synthetic(input_tokens=120, output_tokens=20)}, "do not fit the model's context of 128"),
        ({"api": "chat"}, "give base_url"),
    ],
)
def test_what_cannot_be_planned_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(tmp_path, **options)
    assert not (tmp_path / "plan.json").exists()


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(2, 300),
    st.sets(st.integers(0, 50), max_size=10),
    st.integers(0, 5),
)
@settings(max_examples=60)
def test_prompts_have_exact_lengths_and_are_distinct_where_that_is_possible(
    lengths: list[int], size: int, special: set[int], seed: int
) -> None:
    special = {id for id in special if id < size}
    if size - len(special) < 2:
        return
    prompts, distinct = PromptSource(Vocabulary(size=size, special_ids=tuple(special)), seed).draw(lengths, "load")
    assert [len(prompt) for prompt in prompts] == lengths
    for prompt in prompts:
        assert not special & set(prompt.tolist())
        assert max(prompt.tolist()) < size
    if distinct:
        assert len({tuple(prompt[: min(lengths)].tolist()) for prompt in prompts}) == len(prompts)


def test_a_timed_window_gets_as_many_bodies_as_a_fast_server_could_answer(tmp_path: Path) -> None:
    made = plan(tmp_path, arrivals=closed_loop(4, duration_s=2))
    assert made.count > 4 * 2 / (0.010 + 6 * 0.002)
    assert made.info["count_rule"] == "upper bound by duration"


def test_chat_prompts_count_exactly_after_the_template(truth: TruthServer, tmp_path: Path) -> None:
    made = plan(
        tmp_path, api="chat", model="truth", base_url=truth.url, workload=synthetic(input_tokens=40, output_tokens=4)
    )
    texts = [body["messages"][0]["content"] for body in bodies(made)]
    assert len(set(texts)) == len(texts)
    assert not {text.split()[0] for text in texts[:4]} & {text.split()[0] for text in texts[4:]}


def test_a_chat_prompt_shorter_than_the_template_is_refused(truth: TruthServer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="template alone takes"):
        plan(
            tmp_path, api="chat", model="truth", base_url=truth.url, workload=synthetic(input_tokens=1, output_tokens=4)
        )
