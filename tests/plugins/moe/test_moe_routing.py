"""Statistics of routers made by hand, beside what numpy or plain arithmetic says of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neuronbench import Point, PointFailure
from neuronbench.model import FrozenMap

pytest.importorskip("neuronbench_moe", reason="plugins/moe is not installed: make harness")

from neuronbench_moe import routing, study


def logits_for(choices: Any, experts: int) -> Any:
    """Router logits that choose exactly `choices` [layers, sequences, positions, top_k], the first the most."""
    made = np.zeros((*np.shape(choices)[:3], experts))
    top_k = np.shape(choices)[3]
    for at in np.ndindex(*np.shape(choices)):
        made[(*at[:3], choices[at])] = 10.0 + top_k - at[3]
    return made


CHOICES = np.array([[[[0, 1], [0, 2]], [[0, 3], [1, 0]]], [[[3, 2], [1, 0]], [[0, 1], [2, 3]]]])
"""2 layers, 2 sequences of 2 tokens, 2 of 4 experts each. The second layer is even."""


def test_loads_of_a_router_made_by_hand() -> None:
    found = routing.Routed.of(logits_for(CHOICES, 4), 2)
    assert np.array_equal(found.experts, CHOICES)
    assert found.tokens == 4
    assert found.shares.tolist() == [[4 / 8, 2 / 8, 1 / 8, 1 / 8], [2 / 8] * 4]
    assert routing.imbalance(found.shares).tolist() == [2.0, 1.0]
    # 4 of 8, 2 of 8, 1 of 8, 1 of 8: 1/2 + 1/2 + 3/8 + 3/8 = 1.75 of 2 bits
    assert routing.entropy(found.shares) == pytest.approx([1.75 / 2, 1.0])
    assert routing.over_ranks(found.shares, 2).tolist() == [[0.75, 0.25], [0.5, 0.5]]


def test_what_a_capacity_drops() -> None:
    # 8 assignments a layer: a capacity of 2 drops two of expert 0 in the first layer; of 3, one; of 4, none
    assert [routing.dropped(CHOICES, 4, factor) for factor in (1.0, 1.5, 2.0)] == [2 / 16, 1 / 16, 0.0]
    assert routing.dropped(CHOICES, 4, 1.01) == 1 / 16, "a capacity is rounded up"


def test_what_a_decode_step_touches() -> None:
    # one sequence: its two experts. Both at a position: {0,1,3} and {0,2,1}; {3,2,0,1} and {1,0,2,3}
    assert routing.touched(CHOICES, 1) == 2.0
    assert routing.touched(CHOICES, 2) == (3 + 3 + 4 + 4) / 4
    with pytest.raises(ValueError, match="1 to 2 sequences, found 3"):
        routing.touched(CHOICES, 3)


def test_an_even_router_touches_what_the_formula_says() -> None:
    draw = np.random.default_rng(5)
    logits = draw.standard_normal((2, 64, 200, 16))
    found = routing.Routed.of(logits, 2)
    assert np.array_equal(found.experts[..., 0], logits.argmax(-1))
    for batch, used in found.touched([1, 4, 32]).items():
        assert used == pytest.approx(routing.touched_evenly(16, 2, batch), rel=0.01)
    assert routing.imbalance(found.shares).max() < 1.1
    assert found.dropped(1.25) == 0.0


def test_a_collapsed_router_is_seen_as_one() -> None:
    found = routing.Routed.of(logits_for(np.zeros((1, 2, 8, 1), dtype=int), 8), 1)
    assert routing.imbalance(found.shares).tolist() == [8.0]
    assert routing.entropy(found.shares).tolist() == [0.0]
    assert found.dropped(1.0) == 14 / 16
    assert found.touched([1, 2]) == {1: 1.0, 2: 1.0}


def test_how_decided_a_router_is() -> None:
    even = routing.Routed.of(np.zeros((1, 1, 4, 8)), 2)
    assert even.router_entropy == pytest.approx(1.0)
    assert routing.probabilities(np.array([1000.0, 0.0])).tolist() == [1.0, 0.0], "large logits do not overflow"
    assert routing.chosen(np.zeros((1, 1, 1, 8)), 2).ravel().tolist() == [0, 1], "of equal ones the first"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: routing.Routed.of(np.full((1, 1, 1, 4), np.nan), 2), "finite"),
        (lambda: routing.Routed.of(np.zeros((4, 4)), 2), r"found \(4, 4\)"),
        (lambda: routing.chosen(np.zeros((1, 1, 1, 4)), 5), "top_k: expected 1 to 4, found 5"),
        (lambda: routing.over_ranks(np.ones((1, 6)), 4), "divisor of 6, found 4"),
    ],
)
def test_what_is_no_routing_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize(
    ("params", "leased", "said"),
    [
        ({"tokens": "prose"}, False, "tokens: expected one of text, random, found 'prose'"),
        ({"sequences": 8}, False, r"batches: expected 1 to 8, the `sequences` .* found \[32\]"),
        ({"ranks": [2, 3]}, True, r"ranks: expected divisors of 16, .* found \[3\]"),
    ],
)
def test_a_study_that_cannot_be_is_refused_before_the_router_is_asked(
    params: dict[str, Any], leased: bool, said: str
) -> None:
    """They were found out when all was measured; a batch that is too large as an error without a remedy."""
    given = {"tokens": "text", "sequences": 32, "positions": 4, "batches": [1, 32], "ranks": [2, 8], **params}
    point = Point(benchmark="b.py::f", lane="moe", backend="cpu", params=FrozenMap(given), id="p")
    asked: list[str] = []

    class Measure:
        @contextlib.contextmanager
        def lease(self, kind: str) -> Iterator[Any]:
            asked.append(kind)
            yield SimpleNamespace(shape=SimpleNamespace(experts=16), told={})

    with pytest.raises(PointFailure, match=said) as caught:
        study.study(Measure(), point)
    assert caught.value.failure.kind == "bad_parameters"
    assert asked == (["moe_router"] if leased else [])
