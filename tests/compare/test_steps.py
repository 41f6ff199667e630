"""Steps in a series of sessions: found where they are, and not where there are none."""

from __future__ import annotations

import math
import random

import pytest
from compare_helpers import Bench
from hypothesis import given
from hypothesis import strategies as st

from neuronbench.compare import Options, SelectionError
from neuronbench.compare.history import Series, series
from neuronbench.compare.noise import spread_of_history
from neuronbench.compare.steps import NEEDED, find
from neuronbench.model import Gate

BAND = math.log(1.02)


def levels(draw: random.Random, *parts: tuple[float, int], noise: float = 0.02) -> list[float]:
    return [level + draw.gauss(0, noise) for level, count in parts for _ in range(count)]


@pytest.mark.parametrize("sessions", [6, 8, 12, 20, 40])
def test_noise_has_few_steps(sessions: int) -> None:
    draw = random.Random(sessions)
    found = sum(bool(find(levels(draw, (0.0, sessions)), BAND)) for _ in range(200))
    assert found <= 14  # 5 % of 200, and what 200 tries may add to it


def test_a_step_is_found_where_it_is() -> None:
    draw = random.Random(1)
    places = [[step.index for step in find(levels(draw, (0.0, 10), (0.1, 10)), BAND)] for _ in range(50)]
    assert sum(place == [10] for place in places) >= 45
    assert all(len(place) == 1 and abs(place[0] - 10) <= 1 for place in places)


def test_two_steps_are_two() -> None:
    draw = random.Random(2)
    first, second = find(levels(draw, (0.0, 8), (0.2, 8), (0.1, 8), noise=0.01), BAND)
    assert (first.index, second.index) == (8, 16)
    assert first.change == pytest.approx(0.2, abs=0.02)
    assert second.change == pytest.approx(-0.1, abs=0.02)


def test_an_odd_session_is_no_step() -> None:
    draw = random.Random(3)
    values = levels(draw, (0.0, 12), noise=0.01)
    values[6] += 0.2
    assert find(values, BAND) == []


def test_steps_within_the_noise_floor_are_none() -> None:
    values = [0.0] * 8 + [0.015] * 8
    assert find(values, BAND) == []
    assert [step.index for step in find(values, 0.01)] == [8]


@given(st.lists(st.floats(-1, 1), max_size=NEEDED - 1))
def test_a_short_series_has_no_steps(values: list[float]) -> None:
    assert find(values, BAND) == []


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=25), st.floats(-5, 5))
def test_steps_do_not_depend_on_the_level(values: list[float], shift: float) -> None:
    moved = [round(value, 6) + round(shift, 6) for value in values]
    here = [step.index for step in find([round(value, 6) for value in values], BAND)]
    assert all(0 < index < len(values) for index in here)
    assert all(b - a >= 2 for a, b in zip([0, *here], [*here, len(values)], strict=True))
    assert len(find(moved, BAND)) <= len(values) // 2


@pytest.mark.parametrize(("sessions", "bias"), [(5, 1.25), (8, 1.2), (20, 1.1), (60, 1.1)])
def test_spread_of_history_is_that_of_the_sessions(sessions: int, bias: float) -> None:
    draw = random.Random(sessions)
    found = []
    for _ in range(400):
        past = spread_of_history(levels(draw, (0.0, sessions)))
        assert past is not None
        found.append(past.sd)
    assert 0.02 / bias <= sum(found) / len(found) <= 0.02 * bias
    stepped = spread_of_history(levels(draw, (0.0, 20), (0.5, 20)))
    assert stepped is not None
    assert stepped.sd < 0.04  # a step is no spread
    assert spread_of_history([0.0] * 4) is None


# -- from receipts ----------------------------------------------------------------------------------------------------


def told(bench: Bench, asked: str = "", **fields: object) -> list[Series]:
    selector = bench.selector()
    found = series(selector, asked, sessions=50, options=Options(**fields), lanes=lambda: ["serving"])  # type: ignore[arg-type]
    assert not selector.problems
    return found


def test_a_step_names_the_session_and_what_changed_there(bench: Bench) -> None:
    draw = random.Random(6)
    for number in range(1, 13):
        late = number > 6
        facts = {"stack.vllm": "0.32.0", "git.commit": "b" * 40} if late else {}
        values = [(12.0 if late else 10.0) * math.exp(draw.gauss(0, 0.01)) for _ in range(2)]
        bench.series(bench.session(str(number)), values, facts=facts)
    (one,) = told(bench, "serving")
    (jump,) = one.jumps
    assert jump.session == bench.session("7")
    assert jump.worse is True
    assert jump.percent == pytest.approx(20, abs=3)
    assert "stack.vllm: 0.31.0 → 0.32.0" in jump.changed
    assert any(text.startswith("git.commit") for text in jump.changed)
    assert [entry.repeats for entry in one.entries] == [2] * 12
    assert one.to_json()["steps"][0]["session"] == jump.session


def test_invalid_sessions_are_left_out_and_counted(bench: Bench) -> None:
    for number in range(1, 8):
        gates = [Gate(id="steady_state", passed=number != 4)]
        bench.series(bench.session(str(number)), [10.0], gates=gates)
    (one,) = told(bench, "serving.loop-*")
    assert (len(one.entries), one.left_out, one.jumps) == (6, 1, [])


def test_no_such_point_says_which_there_are(bench: Bench) -> None:
    bench.series(bench.session("1"), [10.0])
    with pytest.raises(SelectionError, match=r"no point or lane 'encodr'.*serving.loop-cpu-c8"):
        told(bench, "encodr")
