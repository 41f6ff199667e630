"""From made-up answers whose times are known to metrics and gates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronbench.definitions import of_key
from neuronbench.model import Gate, Metric

pytest.importorskip("neuronbench_spec_decode", reason="plugins/spec_decode is not installed: make harness")

from neuronbench_spec_decode import LANE
from neuronbench_spec_decode.asking import Answer
from neuronbench_spec_decode.counters import Counts
from neuronbench_spec_decode.judge import Judged, judge
from neuronbench_spec_decode.ladder import Climb, Row
from neuronbench_spec_decode.plan import Drafter, Plan
from neuronbench_spec_decode.prompts import Prompt

KEPT = {"code": (1, 0, 2), "repeat": (4, 4, 4)}
"""Tokens kept in each step, where that many are drafted."""
TTFT_MS, FLOOR_MS, COST_MS, TOKENS = 100.0, 10.0, 2.0, 21


def row(turn: int, k: int, category: str, *, slower: float = 1.0) -> Row:
    """An answer of a server whose step takes 10 ms and 2 ms for each token it drafts."""
    sizes, kept = [1], []
    while k and sum(sizes) < TOKENS:
        kept.append(min(KEPT[category][len(kept) % 3], k))
        sizes.append(min(kept[-1] + 1, TOKENS - sum(sizes)))
    sizes = sizes if k else [1] * TOKENS
    step_ms = (FLOOR_MS + COST_MS * k) * slower
    instants = [round(1e6 * (TTFT_MS + step_ms * index)) for index in range(len(sizes))]
    answer = Answer(
        sent_ns=0, chunks_ns=tuple(instants), sizes=tuple(sizes), tokens=tuple(range(TOKENS)), counted=TOKENS,
        prompt_tokens=8,
    )  # fmt: skip
    counted = Counts(generated=TOKENS)
    if k:
        at = tuple(sum(each > position for each in kept) for position in range(k))
        counted = Counts(generated=TOKENS, drafts=len(kept), drafted=k * len(kept), kept=sum(kept), kept_at=at)
    return Row(turn=turn, k=k, prompt=Prompt(category=category, number=1, ids=()), answer=answer, counted=counted)


def climbed(ks: tuple[int, ...] = (0, 2, 4), dtype: str = "float32") -> Climb:
    plan = Plan(
        ks=ks, rounds=2, drafter=Drafter(name="d", method="ngram"), categories=("code", "repeat"), each=1,
        prompt_tokens=8, output_tokens=TOKENS,
    )  # fmt: skip
    rows = [row(turn, k, category) for turn, k in plan.legs for category in plan.categories]
    legs = [{"round": turn, "k": k, "others_cpu_pct": 3.0} for turn, k in plan.legs]
    return Climb(plan=plan, rows=rows, legs=legs, dtype=dtype)


def values(found: Judged) -> dict[str, Metric]:
    assert len({each.key for each in found.metrics}) == len(found.metrics)
    return {each.key: each for each in found.metrics}


def gate(found: Judged, id: str) -> Gate:
    (one,) = (each for each in found.gates if each.id == id)
    return one


def test_times_and_rates_are_what_was_made_up() -> None:
    found = judge(climbed())
    value = {key: one.value for key, one in values(found).items()}
    assert (value["decode_step_k0_ms"], value["tpot_k0_ms"], value["ttft_k0_ms"]) == pytest.approx((10, 10, 100))
    assert value["decode_step_k4_ms"] == pytest.approx(18)
    # 20 tokens: code keeps 1, 0, 2 of its drafts, which makes 2, 1, 3 a step, so 10 steps; repeat 5 a step, so 4
    assert value["tokens_per_step_k4_tokens"] == pytest.approx(40 / 14)
    assert value["tokens_per_step_code_tokens"] == pytest.approx(2)
    assert value["tokens_per_step_repeat_tokens"] == pytest.approx(5)
    assert value["acceptance_rate_repeat_share"] == 1
    assert value["acceptance_rate_code_share"] == pytest.approx(10 / 40)
    assert value["drafted_steps_k4_share"] == 1
    # each prompt on its own: 200 ms / 180 ms, and 200 / 72; the whole request has 100 ms more on both sides
    assert value["decode_speedup_k4_x"] == pytest.approx(((200 / 180) * (200 / 72)) ** 0.5)
    assert value["e2e_speedup_k4_x"] == pytest.approx(((300 / 280) * (300 / 172)) ** 0.5)
    assert value["decode_speedup_best_x"] == value["decode_speedup_k4_x"]
    assert value["measured_best_k_tokens"] == 4
    assert (value["step_floor_ms"], value["draft_cost_ms_token"]) == pytest.approx((10, 2))
    assert value["step_fit_error_ms"] == pytest.approx(0, abs=1e-6)
    assert value["predicted_best_k_repeat_tokens"] == 4  # 5 tokens in 18 ms
    assert value["predicted_best_k_code_tokens"] == 2  # 2 tokens in 14 ms; no third is ever kept
    assert value["equal_answers_share"] == 1
    assert all(each.passed for each in found.gates)


def test_everything_written_is_defined_and_speedups_come_in_pairs() -> None:
    found = judge(climbed())
    for each in found.metrics:
        assert of_key(each.key, LANE.vocabulary), each.key
        assert each.value is not None or each.note, each.key
    stats = {id: {each.stat for each in found.metrics if each.id == id} for id in ("decode_speedup", "e2e_speedup")}
    assert stats["decode_speedup"] == stats["e2e_speedup"] == {"k2", "k4", "best"}
    assert set(LANE.headline) <= values(found).keys()
    assert len(judge(climbed((0, 1, 2, 4))).metrics) <= 60


def test_nothing_gained_is_said() -> None:
    seen = climbed((0, 2))
    seen.rows = [replace(each, answer=row(0, 2, "code", slower=3).answer) if each.k else each for each in seen.rows]
    value = {key: one.value for key, one in values(judge(seen)).items()}
    assert value["measured_best_k_tokens"] == 0
    assert value["decode_speedup_best_x"] == value["decode_speedup_k2_x"] < 1


def test_a_server_that_counts_nothing_has_no_acceptance_and_no_prediction() -> None:
    seen = climbed()
    seen.rows = [replace(each, counted=Counts(generated=None)) for each in seen.rows]
    found = judge(seen)
    value = values(found)
    for key in ("acceptance_rate_k2_share", "accepted_per_step_longest_tokens", "predicted_best_k_tokens"):
        assert (value[key].value, bool(value[key].note)) == (None, True), key
    assert value["tokens_per_step_repeat_tokens"].value == 5
    assert gate(found, "emitted_conserved").passed is None
    assert gate(found, "speculated").passed is True  # chunks of several tokens


def test_counters_that_could_not_be_read_once_are_undecided_and_said_to_be() -> None:
    seen = climbed()
    seen.rows[5] = replace(seen.rows[5], counted=Counts(generated=None, unread="TimeoutError: timed out"))
    found = judge(seen)
    held = gate(found, "emitted_conserved")
    assert held.passed is None
    assert "1 of 12 failed, such as repeat/1 at k = 4, round 1: TimeoutError: timed out" in held.message
    value = values(found)["acceptance_rate_k4_share"]
    assert (value.value, value.note) == (None, "the server's counters could not be read at every request")
    assert values(found)["acceptance_rate_k2_share"].value is not None


@pytest.mark.parametrize(("dtype", "hint"), [("float32", False), ("bfloat16", True)])
def test_the_earliest_other_token_is_shown_and_16_bits_are_explained(dtype: str, hint: bool) -> None:
    seen = climbed(dtype=dtype)
    for index, at in ((2, 9), (5, 4), (7, 6)):
        tokens = list(seen.rows[index].answer.tokens)
        tokens[at] = 777
        seen.rows[index] = replace(seen.rows[index], answer=replace(seen.rows[index].answer, tokens=tuple(tokens)))
    found = gate(judge(seen), "lossless")
    assert (found.passed, found.severity) == (False, "invalid")
    assert found.observed == "repeat/1, token 4: 777 at k = 4"
    assert found.limit == "repeat/1, token 4: 4 at k = 0"
    assert "3 of 8 answers" in found.message
    assert ("float32" in found.message) is hint


def test_a_baseline_that_answers_twice_differently_proves_nothing() -> None:
    seen = climbed()
    assert (seen.rows[-1].k, seen.rows[-1].turn) == (0, 1)
    tokens = (*seen.rows[-1].answer.tokens[:-1], 5)
    seen.rows[-1] = replace(seen.rows[-1], answer=replace(seen.rows[-1].answer, tokens=tokens))
    found = gate(judge(seen), "baseline_repeats")
    assert (found.passed, found.severity) == (False, "invalid")
    assert found.observed == "repeat/1, token 20: 5 at k = 0"
    assert gate(judge(seen), "lossless").passed is True


def test_other_lengths_are_no_pairs() -> None:
    seen = climbed()
    seen.rows[3] = replace(seen.rows[3], answer=replace(seen.rows[3].answer, prompt_tokens=9))
    found = gate(judge(seen), "equal_lengths")
    assert (found.passed, found.observed, found.limit) == (False, "9 in, 21 out", "8 in, 21 out")


@pytest.mark.parametrize("k", [0, 2])
def test_who_drafts_where_nobody_should_or_nobody_where_somebody_should(k: int) -> None:
    seen = climbed()
    drafts = Counts(generated=TOKENS, drafts=3, drafted=6, kept=0, kept_at=(0, 0))
    idle = replace(drafts, drafts=0, drafted=0, kept_at=(0, 0))
    plain = row(0, 0, "code").answer
    seen.rows = [
        replace(each, counted=drafts if k == 0 else idle, answer=plain) if each.k == k else each for each in seen.rows
    ]  # fmt: skip
    found = gate(judge(seen), "speculated")
    assert found.passed is False
    assert found.message == ("nothing was drafted at k = 2" if k else "the baseline drafts")


def test_a_host_that_is_not_the_same_makes_it_provisional() -> None:
    seen = climbed()
    seen.rows = [
        row(each.turn, each.k, each.prompt.category, slower=2.0 if each.k == 0 and each.turn == 0 else 1.0)
        for each in seen.rows
    ]  # fmt: skip
    seen.legs[3]["others_cpu_pct"] = 80.0
    found = judge(seen)
    drift, host, ceiling = (gate(found, id) for id in ("baseline_drift", "host_contended", "ceiling"))
    assert {each.severity for each in (drift, host, ceiling)} == {"provisional"}
    assert (drift.passed, drift.observed) == (False, pytest.approx(1.0))
    assert (host.passed, host.observed) == (False, 80.0)
    assert ceiling.passed is True  # 15 ms on average without a draft, 14 with two
    value = values(found)
    assert value["predicted_best_k_tokens"].value is None
    assert "of a step unexplained" in value["predicted_best_k_tokens"].note


def test_a_step_with_a_draft_is_not_shorter_than_one_without() -> None:
    seen = climbed()
    seen.rows = [row(each.turn, each.k, each.prompt.category, slower=1.0 if each.k else 2.0) for each in seen.rows]
    found = gate(judge(seen), "ceiling")
    assert (found.passed, found.observed) == (False, pytest.approx(20 / 14))
    assert "a step without a draft took 20 ms, one at k = 2 14 ms" in found.message


def test_one_round_and_servers_that_cannot_be_seen_are_undecided() -> None:
    seen = climbed()
    seen.plan = replace(seen.plan, rounds=1)
    seen.rows = [each for each in seen.rows if each.turn == 0]
    seen.legs = [{**leg, "others_cpu_pct": None} for leg in seen.legs]
    found = judge(seen)
    assert gate(found, "baseline_repeats").passed is None
    assert gate(found, "baseline_drift").passed is None
    assert gate(found, "host_contended").passed is None


@pytest.mark.parametrize(("other", "passed"), [("code", True), ("repeat", False)])
def test_drafts_from_the_prompt_are_for_copying(other: str, passed: bool) -> None:
    seen = climbed()
    seen.plan = replace(seen.plan, categories=("chat", "repeat"))
    chat = Prompt(category="chat", number=1, ids=())
    seen.rows = [
        replace(row(each.turn, each.k, other), prompt=chat) if each.prompt.category == "code" else each
        for each in seen.rows
    ]  # fmt: skip
    found = gate(judge(seen), "copies_more")
    assert (found.passed, found.severity, found.observed) == (passed, "info", 1.0)
    seen.plan = replace(seen.plan, drafter=Drafter(name="d", method="eagle3"))
    assert "copies_more" not in {each.id for each in judge(seen).gates}
