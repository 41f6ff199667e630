"""The FLOP model against counts by hand and against what the public study printed, timer and wall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronbench.training.flops import FlopModel
from neuronbench.training.reduce import ESCAPE_LIMIT, escape

LORA_8B = FlopModel(trainable=52_428_800, frozen=8_030_527_488, recompute=True)


def test_without_attention_it_is_six_and_four_and_two() -> None:
    assert FlopModel(trainable=10, frozen=100).per_token == 6 * 10 + 4 * 100
    assert FlopModel(trainable=10, frozen=100, recompute=True).per_token == 8 * 10 + 6 * 100
    assert LORA_8B.per_token == 48_602_595_328  # as the study's receipt has it


def test_attention_is_halved_where_causal() -> None:
    full = FlopModel(trainable=1, frozen=0, layers=3, hidden=5, sequence=7, causal=False)
    causal = FlopModel(trainable=1, frozen=0, layers=3, hidden=5, sequence=7)
    assert full.attention_per_token == 12 * 3 * 5 * 7
    assert causal.attention_per_token == 6 * 3 * 5 * 7
    again = FlopModel(trainable=1, frozen=0, layers=3, hidden=5, sequence=7, recompute=True)
    assert again.attention_per_token == pytest.approx(8 * 3 * 5 * 7)


def test_attention_by_counting_products() -> None:
    """Scores and their product with the values: 2·s·d each per token forward, twice that backward."""
    layers, hidden, sequence = 2, 8, 16
    forward = 2 * (2 * sequence * hidden)
    assert FlopModel(
        trainable=1, frozen=0, layers=layers, hidden=hidden, sequence=sequence, causal=False
    ).attention_per_token == layers * (forward + 2 * forward)


def test_a_table_that_is_looked_up_is_not_multiplied() -> None:
    tied = FlopModel.of(
        {"parameters": {"trainable": 100, "frozen": 0, "embedding": 30, "tied": True, "adapter": False}}, 0
    )
    own = FlopModel.of(
        {"parameters": {"trainable": 100, "frozen": 0, "embedding": 30, "tied": False, "adapter": False}}, 0
    )
    frozen = FlopModel.of(
        {"parameters": {"trainable": 10, "frozen": 100, "embedding": 30, "tied": False, "adapter": True}}, 0
    )
    assert (tied.per_token, own.per_token, frozen.per_token) == (600, 420, 60 + 4 * 70)
    assert "30 looked-up" in own.formula()


def test_the_formula_says_every_number_and_its_sum() -> None:
    model = FlopModel(trainable=1000, frozen=2000, recompute=True, layers=2, hidden=8, sequence=16)
    text = model.formula()
    for part in (
        "6·1,000 trainable",
        "4·2,000 frozen",
        "2·3,000 recompute",
        "causal attention",
        f"{model.per_token:.6g}",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"trainable": -1}, "trainable"),
        ({"trainable": 0, "frozen": 0}, "without parameters"),
        ({"looked_up": 999}, "looked_up"),
    ],
)
def test_counts_that_cannot_be(change: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        FlopModel(**{"trainable": 1, "frozen": 10, **change})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="peak"):
        LORA_8B.mfu_pct(1.0, 0.0, 2)


# What the study printed for LoRA of an 8B model on trn1.2xlarge at 2,048 tokens, and what its own receipts say.
TOKENS_PER_STEP, STEPS = 16_384, 645
TIMER_MS, FIRST_MS, WALL_S = 5550.43, 36_446.16, 7333.66


def test_the_printed_utilisation_and_the_true_one() -> None:
    wall_ms = (WALL_S * 1e3 - FIRST_MS) / (STEPS - 1)
    by_timer, by_wall = TOKENS_PER_STEP / TIMER_MS * 1e3, TOKENS_PER_STEP / wall_ms * 1e3
    assert by_timer == pytest.approx(2952, abs=0.5)
    assert by_wall == pytest.approx(1446, abs=0.5)
    assert LORA_8B.mfu_pct(by_timer, 105e12, 2) == pytest.approx(68.3, abs=0.05)  # 210 TFLOP/s, as printed
    assert LORA_8B.mfu_pct(by_wall, 95e12, 2) == pytest.approx(37.0, abs=0.05)  # 190 TFLOP/s, as documented
    assert escape(TIMER_MS, wall_ms) > 10 * ESCAPE_LIMIT


@pytest.mark.parametrize(
    ("timer_ms", "wall_ms", "honest"), [(8.09098, 8.151, True), (0.745, 0.746, True), (4.53, 4.96, False)]
)
def test_the_gate_passes_the_study_s_honest_lanes_only(timer_ms: float, wall_ms: float, honest: bool) -> None:
    assert (escape(timer_ms, wall_ms) <= ESCAPE_LIMIT) is honest


@given(t=st.integers(1, 10**12), r=st.integers(0, 10**12), rate=st.floats(1e-3, 1e6), cores=st.integers(1, 128))
def test_utilisation_is_linear_in_the_rate_and_inverse_in_cores(t: int, r: int, rate: float, cores: int) -> None:
    model = FlopModel(trainable=t, frozen=r)
    one = model.mfu_pct(rate, 1e14, 1)
    assert model.mfu_pct(2 * rate, 1e14, 1) == pytest.approx(2 * one)
    assert model.mfu_pct(rate, 1e14, cores) == pytest.approx(one / cores)
