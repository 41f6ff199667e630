"""The FLOP model against counts by hand and against what the public study printed, timer and wall."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronbench.catalog.accelerators import accelerator_of
from neuronbench.training.flops import FlopModel, Parameters
from neuronbench.training.gates import ESCAPE_LIMIT, escape

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


def start(**parameters: Any) -> dict[str, Any]:
    return {"data_shard": [0, 1], "parameters": parameters}


def model_of(*starts: dict[str, Any], sequence: float = 0) -> FlopModel:
    return FlopModel.of(Parameters.of(starts), starts[0], sequence)


def test_a_table_that_is_looked_up_is_not_multiplied() -> None:
    tied = model_of(start(trainable=100, frozen=0, embedding=30, tied=True, adapter=False))
    own = model_of(start(trainable=100, frozen=0, embedding=30, tied=False, adapter=False))
    frozen = model_of(start(trainable=10, frozen=100, embedding=30, tied=False, adapter=True))
    assert (tied.per_token, own.per_token, frozen.per_token) == (600, 420, 60 + 4 * 70)
    assert "30 looked-up" in own.formula()


def test_attention_is_as_wide_as_its_heads() -> None:
    by_heads = model_of(start(trainable=1, frozen=0, layers=3, hidden=5, heads=4, head_dim=2), sequence=7)
    assert by_heads.attention_per_token == 6 * 3 * 8 * 7
    without = model_of(start(trainable=1, frozen=0, layers=3, hidden=5, heads=4, head_dim=None), sequence=7)
    assert without.attention_per_token == 6 * 3 * 5 * 7


# Two ranks that split a model of 1,000 frozen parameters, 40 of them norms that each holds whole, and an adapter of 60,
# 20 of which each holds whole.
HALF = {
    "trainable": 20 + 20, "frozen": 480 + 40, "total": 40 + 520, "optimizer": 40, "adapter": True, "tied": False,
    "embedding": 50, "layers": 2, "hidden": 8, "tp_degree": 2, "replicated": {"trainable": 20, "frozen": 40},
}  # fmt: skip


def test_a_model_that_ranks_split_is_counted_whole_and_once() -> None:
    whole = Parameters.of([start(**HALF), start(**HALF)])
    assert (whole.trainable, whole.frozen, whole.total, whole.optimizer) == (60, 1000, 1060, 60)
    assert whole.embedding == 100
    assert whole.tensor_degree == 2
    assert whole.problem == ""
    assert (whole.layers, whole.width) == (2, 8)
    assert model_of(start(**HALF), start(**HALF)).weights_per_token == 6 * 60 + 4 * (1000 - 100)


def test_an_adapter_has_as_many_parameters_on_four_ranks_as_on_two() -> None:
    quarter = {**HALF, "trainable": 20 + 10, "optimizer": 30, "frozen": 240 + 40, "total": 310, "embedding": 25}
    two = model_of(start(**HALF), start(**HALF))
    four = model_of(*[start(**{**quarter, "tp_degree": 4})] * 4)
    assert (four.trainable, four.frozen, four.per_token) == (two.trainable, two.frozen, two.per_token)


def test_copies_of_a_model_on_other_data_are_one_model() -> None:
    others = [{"data_shard": [shard, 2], "parameters": HALF} for shard in (0, 0, 1, 1)]
    assert Parameters.of(others).trainable == 60
    copies = [{"data_shard": [shard, 2], "parameters": {**HALF, "tp_degree": 1}} for shard in (0, 1)]
    assert Parameters.of(copies).trainable == 40


def test_parts_of_a_model_that_are_not_all_there_give_no_utilisation() -> None:
    alone = Parameters.of([start(**HALF)])
    assert "tp_degree is 2, but 1" in alone.problem
    with pytest.raises(ValueError, match="tp_degree"):
        FlopModel.of(alone, start(**HALF), 1)
    with pytest.raises(ValueError, match="not counted"):
        model_of(start(trainable=None, frozen=1))


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


# What the study's receipts say and what it printed: LoRA with recompute at 16,384 tokens a step where nothing else is
# said; rates by its timer and by the wall, and the utilisation of each by the peak it was (or should have been) of.
TOKENS_PER_STEP = 16_384
QWEN = FlopModel(trainable=55_443_456, frozen=8_191_043_584, recompute=True)
ON_FOUR = FlopModel(trainable=77_600_000, frozen=8_030_527_488, recompute=True)  # its adapter, counted on four ranks
KEPT = FlopModel(trainable=77_600_000, frozen=8_030_527_488)


@pytest.mark.parametrize(
    ("model", "timer_ms", "first_ms", "wall_s", "steps", "printed", "true"),
    [
        (LORA_8B, 5550.43, 36_446.16, 7333.66, 645, (2952, 68.3), (1446, 37.0)),
        (QWEN, 6753.565, 49_005.69, 9759.28, 624, (2426, 57.3), (1051, 27.4)),
    ],
    ids=["8B", "Qwen3-8B"],
)
def test_the_printed_utilisation_and_the_true_one(
    model: FlopModel, timer_ms: float, first_ms: float, wall_s: float, steps: int,
    printed: tuple[float, float], true: tuple[float, float],
) -> None:  # fmt: skip
    wall_ms = (wall_s * 1e3 - first_ms) / (steps - 1)
    by_timer, by_wall = TOKENS_PER_STEP / timer_ms * 1e3, TOKENS_PER_STEP / wall_ms * 1e3
    assert by_timer == pytest.approx(printed[0], abs=0.5)
    assert by_wall == pytest.approx(true[0], abs=0.5)
    assert model.mfu_pct(by_timer, 105e12, 2) == pytest.approx(printed[1], abs=0.05)  # 210 TFLOP/s, as printed
    assert model.mfu_pct(by_wall, 95e12, 2) == pytest.approx(true[1], abs=0.05)  # 190 TFLOP/s, as documented
    assert escape(timer_ms, wall_ms) > 10 * ESCAPE_LIMIT


@pytest.mark.parametrize(
    ("model", "instance", "rates", "shares"),
    [
        (LORA_8B, "trn1.2xlarge", (3572, 1405), (91.4, 35.9)),  # 4,096 tokens
        (ON_FOUR, "trn2.3xlarge", (3618, 3300), (26.5, 24.1)),
        (ON_FOUR, "trn2.3xlarge", (7277, 3799), (53.3, 27.8)),  # 4,096 tokens
        (ON_FOUR, "trn2.3xlarge", (8337, 3296), (61.0, 24.1)),  # 8,192 tokens
        (KEPT, "trn2.3xlarge", (5266, 4657), (25.7, 22.8)),  # without recompute
    ],
)
def test_rates_and_utilisations_of_the_study_s_other_lanes(
    model: FlopModel, instance: str, rates: tuple[float, float], shares: tuple[float, float]
) -> None:
    chip = accelerator_of(instance)
    assert chip is not None
    peak = chip.peak()
    assert peak is not None
    for rate, share in zip(rates, shares, strict=True):
        found = model.mfu_pct(rate, peak.flops, chip.cores // chip.logical_core_config)
        assert found == pytest.approx(share, abs=0.06)  # rates are rounded too
    assert escape(1 / rates[0], 1 / rates[1]) > ESCAPE_LIMIT


def test_attention_has_the_share_that_the_study_left_out() -> None:
    for sequence, share in ((2048, 8.9), (4096, 17.7), (8192, 35.5)):
        full = FlopModel(
            trainable=52_428_800, frozen=8_030_527_488, recompute=True, layers=32, hidden=4096, sequence=sequence,
            causal=False,
        )  # fmt: skip
        assert 100 * full.attention_per_token / full.weights_per_token == pytest.approx(share, rel=0.01)


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
