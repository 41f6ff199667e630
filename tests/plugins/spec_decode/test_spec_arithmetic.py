"""The arithmetic of the lane: counters of vLLM, the cost of a step, speed-ups as pairs, first differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("neuronbench_spec_decode", reason="plugins/spec_decode is not installed: make harness")

from neuronbench_spec_decode import cost, counters, pairs
from neuronbench_spec_decode.asking import Answer
from neuronbench_spec_decode.counters import Counts
from neuronbench_spec_decode.lossless import differences, first_difference


def answer(sizes: list[int], *, step_ms: float = 10.0, counted: int | None = None) -> Answer:
    tokens = tuple(range(sum(sizes)))
    instants = tuple(1_000_000 * round(50 + step_ms * index) for index in range(len(sizes)))
    return Answer(
        sent_ns=0, chunks_ns=instants, sizes=tuple(sizes), tokens=tokens,
        counted=len(tokens) if counted is None else counted, prompt_tokens=96,
    )  # fmt: skip


# what vLLM 0.32 said of a list that was to be copied, k = 4, 64 tokens: one token was kept beyond the end
COPIED = answer([1, 5, 1, 5, 5, 2, 5, 5, 2, 5, 5, 2, 5, 5, 2, 5, 4])
COUNTED = Counts(generated=64, engine_steps=17, drafts=16, drafted=64, kept=48, kept_at=(15, 11, 11, 11))


# -- counters


def test_counters_are_read_by_name_over_engines_and_positions() -> None:
    series = {
        'vllm:generation_tokens_total{engine="0",model_name="m"}': 60.0,
        'vllm:generation_tokens_total{engine="1",model_name="m"}': 4.0,
        'vllm:iteration_tokens_total_count{engine="0"}': 17.0,
        'vllm:iteration_tokens_total_sum{engine="0"}': 1234.0,
        'vllm:spec_decode_num_drafts_total{engine="0"}': 16.0,
        'vllm:spec_decode_num_draft_tokens_total{engine="0"}': 64.0,
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"}': 48.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"}': 11.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"}': 15.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="3"}': 11.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"}': 11.0,
        "vllm:kv_cache_usage_perc": None,
    }
    assert counters.of(series) == COUNTED
    assert counters.of({"vllm:prompt_tokens_total": 3.0}) == Counts(generated=None)


def test_what_appears_only_once_it_is_counted_was_nothing_before() -> None:
    before = Counts(generated=10)
    now = Counts(generated=14, drafts=2, drafted=4, kept=2, kept_at=(2, 0))
    assert now.since(before) == Counts(generated=4, drafts=2, drafted=4, kept=2, kept_at=(2, 0))
    assert now.since(now) == Counts(generated=0, drafts=0, drafted=0, kept=0, kept_at=(0, 0))
    assert Counts(generated=None).since(before).generated is None


def test_what_could_not_be_read_before_is_no_total_that_grew() -> None:
    """One failed scrape had the whole of a server's life counted as one request's, and the record called void."""
    now = Counts(generated=5000, drafts=800, drafted=3200, kept=1400, kept_at=(700, 700))
    for one, other in ((now, Counts(generated=None, unread="timed out")), (Counts(generated=None, unread="x"), now)):
        grown = one.since(other)
        assert (grown.generated, grown.drafts, grown.kept, grown.kept_at) == (None, None, None, ())
        assert grown.unread
        assert counters.disagreement(COPIED, grown, 4) == ""
        assert (now + grown).unread


def test_sums_are_unknown_as_soon_as_one_part_is() -> None:
    known = Counts(generated=4, drafts=2, drafted=4, kept=2, kept_at=(2,))
    assert (known + known).kept_at == (4,)
    assert (known + replace(known, kept_at=(1, 1))).kept_at == (3, 1)
    assert (known + Counts(generated=3)).generated == 7
    assert (known + Counts(generated=3)).kept is None


def test_tokens_are_steps_and_what_was_kept() -> None:
    assert counters.disagreement(COPIED, COUNTED, 4) == ""
    assert counters.disagreement(answer([1, 1, 1]), Counts(generated=3), 0) == ""


@pytest.mark.parametrize(
    ("said", "counted", "k", "words"),
    [
        (answer([1, 2], counted=4), Counts(generated=3), 4, "its usage says 4 tokens, its chunks carry 3"),
        (answer([1, 2]), Counts(generated=5), 4, "counted 5 generated tokens, its chunks carry 3"),
        (answer([1, 2]), Counts(generated=3), 0, "more than the 1 that a step can emit"),
        (COPIED, COUNTED.since(replace(COUNTED, generated=640)), 4, "went back: it was started anew"),
        (COPIED, COUNTED.since(replace(COUNTED, generated=0, kept_at=(16,))), 4, "went back"),
        (COPIED, replace(COUNTED, kept=49), 4, "49 tokens kept, 48 by position"),
        (COPIED, replace(COUNTED, kept=52, kept_at=(15, 15, 11, 11)), 4, "17 steps and 52 kept tokens make 69"),
        (COPIED, replace(COUNTED, kept=46, kept_at=(13, 11, 11, 11)), 4, "make 63"),
        (COPIED, replace(COUNTED, drafted=47), 4, "48 tokens kept of 47 drafted"),
        (COPIED, replace(COUNTED, drafts=15), 4, "64 drafted in 15 drafts of at most 4"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_told(said: Answer, counted: Counts, k: int, words: str) -> None:
    assert words in counters.disagreement(said, counted, k)


def test_rates_of_an_answer() -> None:
    assert (COPIED.steps, COPIED.decoded) == (16, 63)
    assert (COPIED.ttft_ms, COPIED.decode_ms, COPIED.e2e_ms) == (50.0, 160.0, 210.0)


# -- the cost of a step


def test_a_line_is_found_and_what_it_leaves_is_stated() -> None:
    found = cost.fit([0, 0, 2, 2, 4, 4], [9, 11, 13, 15, 17, 19])
    assert found is not None
    assert (found.floor_ms, found.cost_ms, found.error_ms, found.n) == pytest.approx((10, 2, 1, 6))
    assert found.relative_error == pytest.approx(0.1)


@pytest.mark.parametrize("drafted", [[], [0.0, 4.0], [3.0, 3.0, 3.0, 3.0], [0.0, 0.01, 0.02]])
def test_no_line_through_one_point(drafted: list[float]) -> None:
    assert cost.fit(drafted, [10.0] * len(drafted)) is None


@given(
    floor=st.floats(1, 100), slope=st.floats(0, 20),
    kept=st.lists(st.integers(0, 20), min_size=1, max_size=6), idle=st.integers(0, 20),
)  # fmt: skip
def test_the_predicted_length_is_the_best_by_the_model_itself(
    floor: float, slope: float, kept: list[int], idle: int
) -> None:
    kept_at = tuple(sorted(kept, reverse=True))
    drafts, longest = 20, len(kept_at)
    counted = Counts(generated=1, drafts=drafts, drafted=drafts * longest, kept=sum(kept_at), kept_at=kept_at)
    line = cost.Fit(floor_ms=floor, cost_ms=slope, error_ms=0.0, n=9)
    found = cost.predict(line, counted, drafts + idle)
    assert found is not None
    share = drafts / (drafts + idle)
    per_token = [
        (floor + slope * share * k) / (1 + share * sum(kept_at[:k]) / drafts) for k in range(longest + 1)
    ]  # fmt: skip
    assert found.by_k[0] == 1
    assert found.by_k == pytest.approx([floor / each for each in per_token])
    assert per_token[found.k] == pytest.approx(min(per_token))
    assert found.speedup >= 1


def test_free_drafts_are_worth_their_whole_length_and_useless_ones_nothing() -> None:
    all_kept = Counts(generated=1, drafts=10, drafted=40, kept=40, kept_at=(10, 10, 10, 10))
    found = cost.predict(cost.Fit(floor_ms=10, cost_ms=0, error_ms=0, n=4), all_kept, 10)
    assert found is not None
    assert (found.k, found.speedup) == (4, 5.0)
    none_kept = replace(all_kept, kept=0, kept_at=(0, 0, 0, 0))
    found = cost.predict(cost.Fit(floor_ms=10, cost_ms=0, error_ms=0, n=4), none_kept, 10)
    assert found is not None
    assert (found.k, found.speedup) == (0, 1.0)


@pytest.mark.parametrize("counted", [Counts(generated=9), Counts(generated=9, drafts=0, drafted=0, kept=0)])
def test_nothing_is_predicted_where_nothing_was_drafted(counted: Counts) -> None:
    assert cost.predict(cost.Fit(floor_ms=10, cost_ms=1, error_ms=0, n=4), counted, 10) is None


# -- pairs


def test_each_prompt_is_divided_by_its_own_baseline() -> None:
    found = pairs.ratio({"a": [100, 300], "b": [1000, 1000]}, {"a": [50, 50], "b": [1000, 1000]})
    assert found.value == pytest.approx(2.0)  # 4 and 1, whatever their sizes
    assert found.n == 2
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < 2 < found.high  # two prompts that disagree so much prove nothing
    same = pairs.ratio({"a": [10], "b": [20], "c": [30]}, {"a": [5], "b": [10], "c": [15]})
    assert (same.low, same.value, same.high) == pytest.approx((2, 2, 2))


def test_the_interval_is_students() -> None:
    found = pairs.ratio({"a": [math.e**3], "b": [math.e**1]}, {"a": [1], "b": [1]})
    assert found.value == pytest.approx(math.e**2)
    half = 12.706204736432095 * math.sqrt(2) / math.sqrt(2)  # t of one degree of freedom at 97.5 %
    assert math.log(found.high or 0) == pytest.approx(2 + half)


def test_one_prompt_has_no_interval_and_odd_ones_are_no_pairs() -> None:
    assert pairs.ratio({"a": [2]}, {"a": [1]}) == pairs.Ratio(value=2.0, low=None, high=None, n=1)
    with pytest.raises(ValueError, match="the same prompts on both sides, found b on one only"):
        pairs.ratio({"a": [1], "b": [1]}, {"a": [1]})
    with pytest.raises(ValueError, match="same prompts"):
        pairs.ratio({}, {})


# -- lossless


def test_the_first_difference_has_position_and_both_tokens() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 9, 3], [1, 2, 3]) == (1, 9, 2)
    assert first_difference([1, 2], [1, 2, 3]) == (2, None, 3)
    assert first_difference([1, 2, 3], [1, 2]) == (2, 3, None)
    (found,) = differences([("code/1", 2, [5, 6]), ("chat/1", 2, [5, 7])], {"code/1": [5, 6], "chat/1": [5, 6]})
    assert (found.prompt, found.k, found.position, found.token, found.wanted) == ("chat/1", 2, 1, 7, 6)
