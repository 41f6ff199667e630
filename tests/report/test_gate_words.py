"""What is said of gates: the range of all records, the worst one's words, and those that could not be evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neuronbench.model import Gate
from neuronbench.report.gates import gate_line, unjudged_lines


def contended(share: float | None, **more: Any) -> Gate:
    return Gate(
        id="host_contended", passed=False, severity="provisional", observed=share, limit=20, unit="%",
        message=f"others took {share} %", **more,
    )  # fmt: skip


@pytest.mark.parametrize("turned", [list, lambda gates: list(reversed(gates))])
def test_several_records_say_their_range_and_the_worst_words(turned: Callable[[list[Gate]], list[Gate]]) -> None:
    gates = turned([contended(41.9), contended(135.4), contended(112.3)])
    line = "provisional: host_contended, 3 records: 41.9 to 135.4 % (limit 20): others took 135.4 %"
    assert gate_line(gates) == line
    assert gate_line(gates, 9).startswith("provisional: host_contended, 9 records: 41.9 to 135.4 % in 3 of them (limit")


def test_a_limit_from_below_has_its_worst_below() -> None:
    gates = [
        Gate(id="samples", passed=False, severity="provisional", observed=seen, limit=100, message=f"{seen} of 100")
        for seen in (90, 8, 60)
    ]
    assert gate_line(gates) == "provisional: samples, 3 records: 8 to 90 (limit 100): 8 of 100"


def test_limits_that_differ_are_none_and_what_is_no_number_is_left_out() -> None:
    one = contended(30.0)
    other = Gate(id=one.id, passed=False, severity="provisional", observed=60.0, limit=50, unit="%", message="much")
    assert gate_line([one, other]) == "provisional: host_contended, 2 records: 30 to 60 %: others took 30.0 %"
    assert gate_line([contended(None)]) == "provisional: host_contended, 1 record: others took None %"


def test_gates_that_could_not_be_evaluated_are_said_where_they_would_have_marked() -> None:
    short = [
        Gate(id="steady_state", passed=None, severity="invalid", message=f"the window has {seen} requests, 10 needed")
        for seen in (4, 6)
    ]
    info = Gate(id="client_error", passed=None, severity="info", message="not calibrated")
    held = Gate(id="client_lag", passed=True, severity="invalid", observed=1.0, limit=5)
    assert unjudged_lines([*short, info, held]) == [
        "not judged: steady_state, 2 records: the window has 4 requests, 10 needed"
    ]
