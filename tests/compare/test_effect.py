"""Whether an option changed what it has to change."""

from __future__ import annotations

from typing import Any

import pytest

from neuronbench.compare.effect import no_effect_gate


@pytest.mark.parametrize(
    ("pairs", "witnesses", "passed"),
    [
        ({"losses": ([1.0, 0.9], [1.0, 0.9])}, (), False),
        ({"losses": ([1.0, 0.9], [1.0, 0.8])}, (), True),
        ({"memory": (10, 10), "speed": (1.0, 1.1)}, ("memory",), False),
        ({"memory": (10, 6), "speed": (1.0, 1.0)}, ("memory",), True),
        ({"memory": (10, 10), "speed": (1.0, 1.1)}, (), True),
        ({"memory": (None, 10), "speed": (1.0, 1.1)}, ("memory",), None),
        ({}, (), None),
    ],
)
def test_every_witness_that_is_the_same_makes_it_idle(
    pairs: dict[str, tuple[Any, Any]], witnesses: tuple[str, ...], passed: bool | None
) -> None:
    gate = no_effect_gate("an option", pairs, witnesses=witnesses)
    assert gate.passed is passed
    assert gate.message.startswith("an option: ")


def test_what_noise_can_change_is_told_and_proves_nothing() -> None:
    gate = no_effect_gate("fp8", {"memory": (10, 10), "speed": (1.0, 1.25)}, witnesses=("memory",))
    assert "speed 1 → 1.25" in gate.message
