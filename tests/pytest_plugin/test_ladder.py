"""Climbing to the wall: the rungs, the bisection, the failure's class."""

from __future__ import annotations

from typing import Any

import pytest

BENCH = """
from neuronbench import Failure, PointFailure

@pytest.mark.parametrize("wall", [700, 100, 10, 9999])
@nb.bench(lane="toy")
def bench_it(measure, wall):
    def attempt(value):
        if value >= wall:
            why = "the kernel said so"
            raise PointFailure(Failure(kind="out_of_memory", phase="window", message="no", causal_line=why))
        return value
    ladder = measure.ladder([64, 128, 512, 1024], attempt, metric="largest_context", resolution=64)
    assert ladder.rungs[0].result == 64
"""


def test_the_wall_is_bisected_and_its_class_recorded(project: Any) -> None:
    project.bench(BENCH)
    project.run("-m", "fake").assert_outcomes(passed=3, failed=1)
    records = {record["point"]["params"]["wall"]: record for record in project.records()}
    assert {wall: [rung["value"] for rung in record["workload"]["ladder"]] for wall, record in records.items()} == {
        700: [64, 128, 512, 1024, 768, 640, 704],
        100: [64, 128],
        10: [64],
        9999: [64, 128, 512, 1024],
    }
    found = records[700]["metrics"]["largest_context_tokens"]
    assert found["value"] == 640
    assert found["note"] == "704 fails: out_of_memory: the kernel said so"
    failed = [rung for rung in records[700]["workload"]["ladder"] if not rung["passed"]]
    assert [rung["value"] for rung in failed] == [1024, 768, 704]
    assert {rung["failure"]["kind"] for rung in failed} == {"out_of_memory"}
    assert "no wall up to 1024" in records[9999]["metrics"]["largest_context_tokens"]["note"]
    assert records[10]["outcome"] == "error"
    assert records[10]["error"]["kind"] == "out_of_memory"
    assert "largest_context_tokens" not in records[10]["metrics"]


@pytest.mark.parametrize(("values", "resolution"), [([], 1), ([2, 1], 1), ([1, 1], 1), ([1, 2], 0)])
def test_a_ladder_that_is_none(values: list[int], resolution: int) -> None:
    from neuronbench import measure_ladder

    with pytest.raises(ValueError, match="ladder: "):
        measure_ladder.climb(None, None, values, print, id="largest_batch", resolution=resolution)  # type: ignore[arg-type]
