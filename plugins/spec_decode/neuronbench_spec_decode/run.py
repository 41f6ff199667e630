"""A ladder from beginning to end, into a record."""

from __future__ import annotations

from typing import Any, Final

from neuronbench.model import Failure, Point
from neuronbench.protocols import PointFailure
from neuronbench_spec_decode import table
from neuronbench_spec_decode.judge import Judged, judge
from neuronbench_spec_decode.ladder import Climb, climb
from neuronbench_spec_decode.plan import Plan

PART: Final = "speculation"
"""Of the record's workload, and the name of its table."""


def planned(point: Point) -> Plan:
    """The plan of a point; raises `PointFailure` for parameters that cannot be, before anything boots."""
    try:
        return Plan.of(point)
    except ValueError as error:
        text, remedy = str(error), "correct the grid, or what was given with --nb-set"
        raise PointFailure(
            Failure(kind="bad_parameters", phase="boot", message=text, causal_line=text, remedy=remedy)
        ) from error


def ladder(measure: Any, plan: Plan) -> Judged:
    """Climb, and record; answers seen until a failure are kept, without any number made of them."""
    seen = Climb(plan=plan)
    try:
        climb(measure, plan, seen)
    finally:
        if seen.rows:
            measure.record.tables[PART] = table.write(measure.folder, seen.rows)
            measure.record.workload[PART] = {"legs": list(seen.legs), "draft_model": seen.draft or None}
    found = judge(seen)
    measure.record.add(*found.metrics)
    measure.record.gate(*found.gates)
    measure.record.workload[PART] = dict(found.facts)
    order = ", ".join(str(k) for _, k in plan.legs)
    measure.note(
        f"k in this order: {order}; each on a server of its own, k = 0 on the same stack and weights. "
        f"One request at a time, {plan.output_tokens} greedy tokens after {plan.prompt_tokens}."
    )
    return found
